"""advibp certify --onnx NET --vnnlib PROPERTY: a network and a question from elsewhere, answered as in the VNN-COMP."""

from __future__ import annotations

import argparse
import math
import sys
import time
from pathlib import Path

import torch

from advibp import checkpoint, onnx
from advibp.errors import UserError
from advibp.training import resolve_device
from advibp.verify import vnnlib
from advibp.verify.property import Finding, decide

#: An answer, or none though it was looked for to the end, is success; running out of time is told apart.
_EXIT = {"sat": 0, "unsat": 0, "unknown": 0, "timeout": 1}


def property_options(certify: argparse.ArgumentParser) -> None:
    files = certify.add_argument_group("files from elsewhere, instead of a run")
    files.add_argument("--onnx", metavar="NET", help="a network: .onnx")
    files.add_argument("--vnnlib", metavar="PROPERTY", help="what it must not do: .vnnlib or .vnnlib.gz")
    files.add_argument("--timeout", type=float, metavar="SECONDS", help="in all; default: none")
    files.add_argument("--result", metavar="FILE", help="the answer, and the counterexample below it, as a file too")


def run_property(args: argparse.Namespace) -> int:
    """The last line is sat, unsat, unknown, timeout or error; before it, on sat, the counterexample."""
    began = time.monotonic()
    try:
        if args.run or not (args.onnx and args.vnnlib):
            raise UserError("A property needs --onnx NET and --vnnlib PROPERTY, and no run; give both.")
        if args.timeout is not None and not args.timeout > 0:
            raise UserError(f"timeout is {args.timeout}, but must be seconds above 0.")
        if args.threads:
            torch.set_num_threads(args.threads)
        net, asked = onnx.load(args.onnx), vnnlib.read(args.vnnlib)
        seconds = math.inf if args.timeout is None else args.timeout - (time.monotonic() - began)
        found = decide(net.to(resolve_device(args.device)), net.input_shape, asked, seconds=seconds)
        if args.result:
            checkpoint.write_atomically(Path(args.result), f"{found.verdict}\n{_counterexample(found)}")
    except UserError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        print("error")
        return 2
    print(f"{_counterexample(found)}{found.verdict}")
    return _EXIT[found.verdict]


def _counterexample(found: Finding) -> str:
    if found.x is None or found.y is None:
        return ""
    return vnnlib.counterexample_text(found.x, found.y).rstrip("\n") + "\n"
