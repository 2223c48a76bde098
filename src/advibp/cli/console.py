"""Shared code of the commands: the output console and the parsers of options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from rich.markup import escape

from advibp.display.terminal import Terminal, printable
from advibp.errors import UserError
from advibp.parsers import integer, number
from advibp.recipe import OLD_KEYS

OUT = Terminal(highlight=False, width=None if sys.stdout.isatty() else 120)

#: Help texts of options that several commands have.
DATA_ROOT = "folder of data sets; default: $ADVIBP_DATA or ~/.cache/advibp"
USER_NET = "file.py:function or package.module:function, if the run has a user-defined network"
STAGE = "use the weights after layer-wise stage K; 0: before the first stage"


def one_line(message: str) -> str:
    """Return a message as one printable line."""
    return printable(" ".join(message.split()))


def fraction(text: str) -> float:
    """Parse a number such as 0.3 or 8/255."""
    try:
        return float(number(-1e9)(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write 0.3 or 8/255") from None


def count(text: str, least: int = 1) -> int:
    """Parse an integer of at least `least`."""
    try:
        return int(integer(least)(text))
    except ValueError as expected:
        raise argparse.ArgumentTypeError(f"{text!r} must be {expected}") from None


def stage_of(text: str) -> int:
    """Parse the number of a layer-wise stage."""
    return count(text, least=0)


def shape_of(text: str) -> tuple[int, ...]:
    """Parse an input shape such as 1x28x28."""
    parts = text.split("x")
    if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write CHANNELSxHEIGHTxWIDTH, such as 1x28x28")
    return tuple(int(p) for p in parts)


def refuse_ignored(args: argparse.Namespace, names: Sequence[str], reason: str) -> None:
    """Raise a UserError if an option has another value than its default although the command would ignore it.

    Args:
        args: The parsed options; `args.parser` is their parser.
        names: Options that the command ignores, as attributes of `args`.
        reason: Why, after "would be ignored".
    """
    ignored = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) != args.parser.get_default(name)]
    if ignored:
        raise UserError(f"{', '.join(ignored)} would be ignored {reason}; leave {_them(ignored)} out.")


def _them(options: Sequence[str]) -> str:
    return "it" if len(options) == 1 else "them"


class Parser(argparse.ArgumentParser):
    """Prints errors on one line, and does not accept abbreviated options."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{one_line(f'error: {message}; see {self.prog} --help')}\n")


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Adds the default to the help of each option, and keeps the line breaks of descriptions."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False or action.default == []:
            return action.help
        if isinstance(action.default, list):
            return f"{action.help} (default: {' '.join(map(str, action.default))})"
        return super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """Show --batch-size, but not its alias --batch_size, and no old names."""
        names = list(action.option_strings)
        action.option_strings = [name for name in names if "_" not in name and name[2:] not in OLD_KEYS]
        try:
            return super()._format_action_invocation(action)
        finally:
            action.option_strings = names


def print_warnings(messages: Sequence[str], console: Terminal = OUT) -> None:
    """Print warnings, such as those about a collapsed network."""
    for message in messages:
        console.print(f"[bold yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)
