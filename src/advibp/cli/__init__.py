"""The command line. Each command has a module in this package."""

from __future__ import annotations

import importlib
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from typing import Any

from advibp.cli.parser import Parser, examples, one_line
from advibp.errors import UserError
from advibp.execution.allocator import keep_freed_memory
from advibp.execution.process_clock import process_start
from advibp.version import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return the exit code.

    0: success. 1: `certify --onnx` timed out. 2: the user's input was wrong. 130: Ctrl-C. 143: SIGTERM.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    args = parser(words[:1]).parse_args(words)
    keep_freed_memory()
    args.typed, args.is_program = shlex.join(["advibp", *words]), argv is None
    args.started = process_start() if argv is None else time.monotonic()
    # Imported now, because these modules import torch, which takes more than a second.
    from advibp.cli.console import output_of
    from advibp.cli.log_output import log_to_stderr
    from advibp.runs.stopping import Stopped
    from advibp.verify import CollapseWarning

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


#: Name, help in the list of commands, and the function that adds the options, as module:function.
COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("train a network and save it in a folder", "train_command:train_options"),
    "sweep": ("train and certify several runs, and print one table", "sweep_command:sweep_options"),
    "tune": ("search recipe keys on validation images", "tune_command:tune_options"),
    "certify": ("verify test images, or a VNN-LIB property", "certify_command:certify_options"),
    "attack": ("attack test images", "certify_command:attack_options"),
    "predict": ("classify images and prove their classes", "predict_command:predict_options"),
    "report": ("write a web page about runs", "report_command:report_options"),
    "reproduce": ("reproduce a table or figure of the paper", "reproduce_command:reproduce_options"),
    "export": ("export a trained network as an ONNX file", "export_command:export_options"),
    "compare": ("compare runs", "compare_command:compare_options"),
    "watch": ("show the progress of runs", "watch_command:watch_options"),
    "data": ("list, download, check or describe data sets", "data_command:data_options"),
    "nets": ("list networks, or show the layers of one", "list_commands:nets_options"),
    "methods": ("list training methods, or describe one", "list_commands:methods_options"),
    "recipes": ("list recipes, or print one", "list_commands:recipes_options"),
    "completion": ("print a script for the completion of commands", "completion_command:completion_options"),
}
#: A command that needs the options of all commands.
_NEEDS_ALL = "completion"


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the parser of all commands.

    Args:
        words: the first words of the command line. Only the options of the command that they name are added, because
            the others need imports that take seconds. Default: the options of all commands.
    """
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
    every = words is None or _NEEDS_ALL in words
    for name, (description, place) in COMMANDS.items():
        command = commands.add_parser(name, help=description)
        if every or name in (words or ()):
            module, _, function = place.partition(":")
            getattr(importlib.import_module(f"advibp.cli.{module}"), function)(command)
    top.set_defaults(top=top)
    return top
