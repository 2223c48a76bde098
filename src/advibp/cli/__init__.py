"""The command line. Each command has a module in this package."""

from __future__ import annotations

import argparse
import shlex
import sys
import warnings
from collections.abc import Sequence

from advibp.cli.certify_command import run_attack, run_certify, run_options
from advibp.cli.compare_command import compare_options
from advibp.cli.console import Help, Parser, one_line
from advibp.cli.data_command import data_options
from advibp.cli.export_command import export_options
from advibp.cli.list_commands import methods_options, nets_options, recipes_options
from advibp.cli.predict_command import predict_options
from advibp.cli.report_command import report_options
from advibp.cli.reproduce_command import reproduce_options
from advibp.cli.sweep_command import sweep_options
from advibp.cli.train_command import train_options
from advibp.cli.watch_command import watch_options
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.runs.stopping import Stopped
from advibp.verify import CollapseWarning
from advibp.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    0: success. 1: `certify --onnx` timed out. 2: the user's input was wrong. 130: Ctrl-C. 143: SIGTERM.
    """
    args = parser().parse_args(argv)
    keep_freed_memory()
    args.typed = shlex.join(["advibp", *(sys.argv[1:] if argv is None else argv)])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CollapseWarning)  # the commands print these messages themselves
            code: int | None = args.command(args)
    except UserError as error:
        return _print_error(str(error))
    except OSError as error:
        return _print_error(f"{error.filename or 'a file'}: {error.strerror or error}; finished work is saved.")
    except Stopped as stopped:
        print(f"\n{one_line(str(stopped))}", file=sys.stderr)
        return 128 + stopped.signal
    except KeyboardInterrupt:
        print(
            "\nstopped; finished work is saved: run the same command to continue (train: add --resume).",
            file=sys.stderr,
        )
        return 130
    return code or 0


def _print_error(message: str) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return 2


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands."""
    top = Parser(
        prog="advibp",
        description="Train neural networks with certified robustness, attack them, and verify them image by image.",
        epilog="first steps:\n  advibp train mnist dm-small --recipe demo --out runs/first\n"
        "  advibp certify runs/first --eps 0.1\n\nhelp for a command: advibp COMMAND --help",
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=16),
    )
    top.add_argument("--version", action="version", version=f"advibp {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    add = commands.add_parser
    train_options(add("train", help="train a network and save it in a folder", formatter_class=Help))
    sweep_options(add("sweep", help="train and certify several runs, and print one table", formatter_class=Help))
    run_options(add("certify", help="verify test images, or a VNN-LIB property", formatter_class=Help), run_certify)
    run_options(add("attack", help="attack test images", formatter_class=Help), run_attack)
    predict_options(add("predict", help="classify images and prove their classes", formatter_class=Help))
    report_options(add("report", help="write a web page about runs", formatter_class=Help))
    reproduce_options(add("reproduce", help="reproduce a table or figure of the paper", formatter_class=Help))
    export_options(add("export", help="export a trained network as an ONNX file", formatter_class=Help))
    compare_options(add("compare", help="compare runs", formatter_class=Help))
    watch_options(add("watch", help="show the progress of runs", formatter_class=Help))
    data_options(add("data", help="list, download, check or describe data sets", formatter_class=Help))
    nets_options(add("nets", help="list networks, or show the layers of one"))
    methods_options(add("methods", help="list training methods, or describe one"))
    recipes_options(add("recipes", help="list recipes, or print one"))
    return top
