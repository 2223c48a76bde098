"""advibp certify --onnx NET --vnnlib PROPERTY: decide a property, with the output format of the VNN-COMP."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from advibp.cli.console import print_json, refuse_ignored
from advibp.cli.parser import one_line
from advibp.cli.supervised import run_supervised
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.storage import checkpoint
from advibp.verify.certification import arithmetic_of
from advibp.verify.exact.trace import Trace
from advibp.vnncomp import Finding, decide, load_onnx, read_vnnlib
from advibp.vnncomp.vnnlib.vnnlib_file import counterexample_text

_EXIT_CODES = {"sat": 0, "unsat": 0, "unknown": 0, "timeout": 1}

#: Options of `certify` that are about runs and their test images.
_IGNORED = (
    "eps", "by", "budget", "sample", "workers", "radius", "data", "data_root", "stage", "net", "limit",
    "attack", "attack_steps", "attack_step_size", "attack_restarts", "attack_loss", "seed",
)  # fmt: skip

#: Seconds after the deadline, in which a search that checks the time can finish.
_GRACE = 0.2


def property_options(certify: argparse.ArgumentParser) -> None:
    files = certify.add_argument_group("ONNX and VNN-LIB files, instead of a run")
    files.add_argument("--onnx", metavar="NET", help="the network, an .onnx file")
    files.add_argument("--vnnlib", metavar="PROPERTY", help="the unsafe behavior, a .vnnlib or .vnnlib.gz file")
    files.add_argument("--timeout", type=float, metavar="SECONDS", help="time limit; default: none")
    files.add_argument(
        "--trace",
        nargs="?",
        const=True,
        metavar="PAGE",
        help="show what the search did: time of each method, bound over time; PAGE.html: as a page with charts",
    )
    files.add_argument("--result", metavar="FILE", help="also write the verdict and the counterexample to this file")


def run_property(args: argparse.Namespace) -> int:
    """Print sat, unsat, unknown, timeout or error as the last line; a counterexample comes before sat.

    The time limit starts with the process, if the command line is its program.
    """
    deadline = args.started + (math.inf if args.timeout is None else args.timeout)
    if not args.is_program or math.isinf(deadline) or math.isnan(deadline) or not hasattr(os, "fork"):
        return _run(args, deadline, lambda: None)
    return run_supervised(
        lambda before_output: _run(args, deadline, before_output),
        deadline + _GRACE,
        lambda: _print(args, Finding("timeout")),
    )


def _run(args: argparse.Namespace, deadline: float, before_output: Callable[[], None]) -> int:
    """Decide the property and print the result. `before_output` is called before it is printed."""
    try:
        try:
            trace = Trace()
            result = _decide(args, deadline, trace)
        finally:
            before_output()
        return _print(args, result, trace)
    except UserError as error:
        return _print_error(str(error))
    except OSError as error:
        return _print_error(f"{error.filename or 'a file'}: {error.strerror or error}; choose another place.")
    except Exception:
        traceback.print_exc()
        return _print_error("this is a bug in advibp; please report the lines above.")


def _print(args: argparse.Namespace, result: Finding, trace: Trace | None = None) -> int:
    if args.result:
        checkpoint.write_atomically(Path(args.result), f"{result.verdict}\n{_counterexample(result)}")
    if isinstance(args.trace, str) and trace is not None:
        _write_page(args, result, trace)
    if args.json:
        x, y = (None if part is None else part.flatten().tolist() for part in (result.x, result.y))
        traced = {"trace": trace.summary()} if args.trace and trace is not None else {}
        print_json({"verdict": result.verdict, "x": x, "y": y, **traced})
    else:
        if args.trace and trace is not None:
            print("\n".join(trace.lines()))
        print(f"{_counterexample(result)}{result.verdict}")
    return _EXIT_CODES[result.verdict]


def _write_page(args: argparse.Namespace, result: Finding, trace: Trace) -> None:
    from advibp.cli.trace_sections import trace_sections  # imports plotly
    from advibp.report import write_page

    title = f"{Path(args.onnx).name}, {Path(args.vnnlib).name}: {result.verdict}"
    write_page(args.trace, [], sections=trace_sections(trace, shlex.join(["advibp", *sys.argv[1:]])), title=title)


def _decide(args: argparse.Namespace, deadline: float, trace: Trace) -> Finding:
    if args.run or not (args.onnx and args.vnnlib):
        raise UserError("Give --onnx NET and --vnnlib PROPERTY together, and no run.")
    refuse_ignored(args, _IGNORED, "with --onnx and --vnnlib")
    if args.timeout is not None and not args.timeout > 0:
        raise UserError(f"timeout is {args.timeout}, but must be a number of seconds above 0.")
    if args.result and not Path(args.result).parent.is_dir():
        raise UserError(f"the folder {Path(args.result).parent} does not exist; create it first.")
    if isinstance(args.trace, str) and not (args.trace.endswith(".html") and Path(args.trace).parent.is_dir()):
        raise UserError(f"trace is {args.trace}, but must be the name of an .html file in a folder that exists.")
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        with _time_limit(deadline + _GRACE):
            net = load_onnx(args.onnx)
            prop = read_vnnlib(args.vnnlib)
            if not prop.cases:
                print("note: the constraints contradict each other, so the property is unsat.", file=sys.stderr)
            net = net.to(resolve_device(args.device))
            real = arithmetic_of(net, args.arithmetic) == "real"
            seconds = deadline - time.monotonic()
            return decide(net, net.input_shape, prop, seconds=seconds, real=real, trace=trace)
    except _TimeOver:
        return Finding("timeout")


class _TimeOver(BaseException):
    """The deadline has passed. A BaseException, because other code catches Exception."""


@contextmanager
def _time_limit(deadline: float) -> Iterator[None]:
    """Raise _TimeOver at the deadline, also in code that does not check the time, such as reading a large file.

    This works only in the main thread, which receives signals, and not on Windows, which has no SIGALRM.
    """
    if math.isinf(deadline) or threading.current_thread() is not threading.main_thread() or sys.platform == "win32":
        yield
        return

    def raise_time_over(*_: object) -> None:
        raise _TimeOver

    handler = signal.signal(signal.SIGALRM, raise_time_over)
    signal.setitimer(signal.ITIMER_REAL, min(max(deadline - time.monotonic(), 0.01), 1e9))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


def _print_error(message: str) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    print("error")
    return 2


def _counterexample(result: Finding) -> str:
    if result.x is None or result.y is None:
        return ""
    return counterexample_text(result.x, result.y).rstrip("\n") + "\n"
