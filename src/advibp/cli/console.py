"""What the commands share: where they print, how options are read."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from advibp.display.terminal import Terminal, printable
from advibp.errors import UserError
from advibp.parsers import integer, number

OUT = Terminal(highlight=False, width=None if sys.stdout.isatty() else 120)


def one_line(sentence: str) -> str:
    """For stderr: one line, whatever the sentence quotes."""
    return printable(" ".join(sentence.split()))


def fraction(text: str) -> float:
    try:
        return float(number(-1e9)(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number; write 0.3 or 8/255") from None


def count(text: str, least: int = 1) -> int:
    try:
        return int(integer(least)(text))
    except ValueError as wanted:
        raise argparse.ArgumentTypeError(f"{text!r} is given, but it must be {wanted}") from None


def stage_of(text: str) -> int:
    return count(text, least=0)


def shape_of(text: str) -> tuple[int, ...]:
    parts = text.split("x")
    if len(parts) != 3 or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is no shape; write channels x height x width, such as 1x28x28")
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
    """Mistakes are told in one line, here as everywhere; an option is what it is called, not a part of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{one_line(f'error: {message}; see {self.prog} --help')}\n")


class Help(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Defaults behind every option, examples as they were written."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default in (None, False) else super()._get_help_string(action)
