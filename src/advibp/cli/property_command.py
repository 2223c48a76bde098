"""advibp certify --onnx NET --vnnlib PROPERTY: a network and a question from elsewhere, answered as in the VNN-COMP."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from advibp.cli.console import one_line, refuse_ignored
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.storage import checkpoint
from advibp.verify.certification import arithmetic_of
from advibp.vnncomp import onnx
from advibp.vnncomp.properties import Finding, decide
from advibp.vnncomp.vnnlib import vnnlib_file

#: An answer, or none though it was looked for to the end, is success; running out of time is told apart.
_EXIT = {"sat": 0, "unsat": 0, "unknown": 0, "timeout": 1}

#: Options of `certify` that are about runs and their test images.
_IGNORED = (
    "eps", "by", "budget", "sample", "workers", "radius", "data", "data_root", "stage", "net", "limit",
    "attack", "steps", "step", "restarts", "loss", "seed",
)  # fmt: skip

_GRACE = 0.5  # seconds, in which a search that looks at the clock can come to its end


def property_options(certify: argparse.ArgumentParser) -> None:
    files = certify.add_argument_group("files from elsewhere, instead of a run")
    files.add_argument("--onnx", metavar="NET", help="a network: .onnx")
    files.add_argument("--vnnlib", metavar="PROPERTY", help="what it must not do: .vnnlib or .vnnlib.gz")
    files.add_argument("--timeout", type=float, metavar="SECONDS", help="in all; default: none")
    files.add_argument("--result", metavar="FILE", help="the answer, and the counterexample below it, as a file too")


def run_property(args: argparse.Namespace) -> int:
    """The last line is sat, unsat, unknown, timeout or error, come what may; before it, on sat, the counterexample."""
    try:
        found = _found(args)
        if args.result:
            checkpoint.write_atomically(Path(args.result), f"{found.verdict}\n{_counterexample(found)}")
    except UserError as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename or 'a file'}: {error.strerror or error}; free or name another place.")
    except Exception:
        traceback.print_exc()
        return _failed("this is a mistake of advibp; please report the lines above.")
    print(f"{_counterexample(found)}{found.verdict}")
    return _EXIT[found.verdict]


def _found(args: argparse.Namespace) -> Finding:
    if args.run or not (args.onnx and args.vnnlib):
        raise UserError("A property needs --onnx NET and --vnnlib PROPERTY, and no run; give both.")
    refuse_ignored(args, _IGNORED, "with --onnx and --vnnlib")
    if args.timeout is not None and not args.timeout > 0:
        raise UserError(f"timeout is {args.timeout}, but must be seconds above 0.")
    if args.result and not Path(args.result).parent.is_dir():
        raise UserError(f"the folder {Path(args.result).parent} does not exist; make it first.")
    if args.threads:
        torch.set_num_threads(args.threads)
    deadline = time.monotonic() + (math.inf if args.timeout is None else args.timeout)
    net = onnx.load(args.onnx)
    try:
        with _ending(deadline + _GRACE):
            asked = vnnlib_file.read(args.vnnlib)
            if not asked.cases:
                print("note: no input and no output fulfil the property, whatever the network.", file=sys.stderr)
            net = net.to(resolve_device(args.device))
            real = arithmetic_of(net, args.arithmetic) == "real"
            return decide(net, net.input_shape, asked, seconds=deadline - time.monotonic(), real=real)
    except _Late:
        return Finding("timeout")


class _Late(BaseException):
    """The time is over. No Exception: those are caught on the way."""


@contextmanager
def _ending(deadline: float) -> Iterator[None]:
    """Ends by _Late what takes longer and does not look at the clock: to read a large file, to bound a large network.

    Signals reach the main thread alone, and not every system has this one.
    """
    if math.isinf(deadline) or threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return

    def ring(*_: object) -> None:
        raise _Late

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, min(max(deadline - time.monotonic(), 0.01), 1e9))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _failed(sentence: str) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    print("error")
    return 2


def _counterexample(found: Finding) -> str:
    if found.x is None or found.y is None:
        return ""
    return vnnlib_file.counterexample_text(found.x, found.y).rstrip("\n") + "\n"
