"""The command line. Each command has a module in this package."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from advibp.cli.certify_command import attack_options, certify_options
from advibp.cli.compare_command import compare_options
from advibp.cli.completion_command import completion_options
from advibp.cli.console import output_of
from advibp.cli.data_command import data_options
from advibp.cli.export_command import export_options
from advibp.cli.list_commands import methods_options, nets_options, recipes_options
from advibp.cli.log_output import log_to_stderr
from advibp.cli.parser import Parser, examples, one_line
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
        with warnings.catch_warnings(), log_to_stderr(), output_of(args):
            warnings.simplefilter("ignore", CollapseWarning)  # the commands print these messages themselves
            warnings.showwarning = _print_warning
            code: int | None = args.command(args)
            sys.stdout.flush()
    except UserError as error:
        return _print_error(str(error))
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
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


def _print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    print(f"warning: {one_line(str(message))}", file=sys.stderr)


def _print_error(message: str) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return 2


#: Name, help in the list of commands, and the function that adds the options.
COMMANDS: dict[str, tuple[str, Callable[[Parser], None]]] = {
    "train": ("train a network and save it in a folder", train_options),
    "sweep": ("train and certify several runs, and print one table", sweep_options),
    "certify": ("verify test images, or a VNN-LIB property", certify_options),
    "attack": ("attack test images", attack_options),
    "predict": ("classify images and prove their classes", predict_options),
    "report": ("write a web page about runs", report_options),
    "reproduce": ("reproduce a table or figure of the paper", reproduce_options),
    "export": ("export a trained network as an ONNX file", export_options),
    "compare": ("compare runs", compare_options),
    "watch": ("show the progress of runs", watch_options),
    "data": ("list, download, check or describe data sets", data_options),
    "nets": ("list networks, or show the layers of one", nets_options),
    "methods": ("list training methods, or describe one", methods_options),
    "recipes": ("list recipes, or print one", recipes_options),
    "completion": ("print a script for the completion of commands", completion_options),
}


def parser() -> Parser:
    """Return the parser of all commands."""
    top = Parser(
        prog="advibp",
        description="Train neural networks with certified robustness, attack them, and verify them image by image.",
        epilog=examples(
            ("train mnist dm-small --recipe demo --out runs/first", ""),
            ("certify runs/first --eps 0.1", ""),
            ("train --help", "help for a command"),
        ),
    )
    top.add_argument("--version", action="version", version=f"advibp {__version__}")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    for name, (description, add_options) in COMMANDS.items():
        add_options(commands.add_parser(name, help=description))
    top.set_defaults(top=top)
    return top
