"""The command line; what each command takes and does is in a module beside this one."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from advibp.cli.certify_command import predict_options, run_attack, run_certify, run_options
from advibp.cli.compare_command import compare_options
from advibp.cli.console import Help, Parser, one_line
from advibp.cli.data_command import data_options
from advibp.cli.export_command import export_options
from advibp.cli.list_commands import methods_options, nets_options, recipes_options
from advibp.cli.report_command import report_options
from advibp.cli.reproduce_command import reproduce_options
from advibp.cli.sweep_command import sweep_options
from advibp.cli.train_command import train_options
from advibp.cli.watch_command import watch_options
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.runs.stopping import Stopped
from advibp.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 if a property found no answer in time; 2 for a user's mistake; 130 for Ctrl-C, 143 for SIGTERM."""
    args = parser().parse_args(argv)
    keep_freed_memory()
    args.typed = shlex.join(["advibp", *(sys.argv[1:] if argv is None else argv)])
    try:
        code: int | None = args.command(args)
    except UserError as error:
        return _complain(str(error))
    except OSError as error:
        return _complain(f"{error.filename or 'a file'}: {error.strerror or error}; nothing written before is lost.")
    except Stopped as stopped:
        print(f"\n{one_line(str(stopped))}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print("\nstopped; what is finished is kept: the same command goes on (train: with --resume).", file=sys.stderr)
        return 130
    return code or 0


def _complain(sentence: str) -> int:
    print(f"error: {one_line(sentence)}", file=sys.stderr)
    return 2


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="advibp",
        description="Train neural networks whose robustness can be proved, attack them, and prove it image by image.",
        epilog="first steps: advibp train mnist dm-small --recipe demo --out runs/first, "
        "then advibp certify runs/first --eps 0.1",
    )
    top.add_argument("--version", action="version", version=f"advibp {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser
    train_options(add("train", help="train a network into a folder", formatter_class=Help))
    sweep_options(add("sweep", help="train and certify several runs, one table", formatter_class=Help))
    run_options(add("certify", help="verdict for every test image", formatter_class=Help), run_certify)
    run_options(add("attack", help="attack every test image", formatter_class=Help), run_attack)
    predict_options(add("predict", help="class of an image, and the largest eps at which it is proved"))
    report_options(add("report", help="one page of what runs learned and what is proved", formatter_class=Help))
    reproduce_options(add("reproduce", help="the paper's tables and figures, measured", formatter_class=Help))
    export_options(add("export", help="a trained network as an ONNX file", formatter_class=Help))
    compare_options(add("compare", help="runs beside each other", formatter_class=Help))
    watch_options(add("watch", help="follow runs while they train", formatter_class=Help))
    data_options(add("data", help="data sets: list, fetch, check, look at", formatter_class=Help))
    nets_options(add("nets", help="network structures with shapes and parameter counts"))
    methods_options(add("methods", help="training methods"))
    recipes_options(add("recipes", help="shipped recipes; with a name, all its keys"))
    return top
