"""Shared code of the commands: what they print, and the parsers of option values."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from advibp.display.progress import hidden_progress
from advibp.display.terminal import Terminal, printable
from advibp.errors import UserError
from advibp.parsers import integer, number
from advibp.recipe.input_set import by_name

#: Prints the result of a command on stdout. With --json it prints nothing; see `print_json`.
OUT = Terminal(highlight=False, width=None if sys.stdout.isatty() else 120)
#: Prints on stdout what is not the result: headings, hints, places of files. With --quiet it prints nothing.
NOTES = Terminal(highlight=False, width=None if sys.stdout.isatty() else 120)

#: Help texts of options that several commands have.
DATA_ROOT = "folder of data sets; default: $ADVIBP_DATA or ~/.cache/advibp"
USER_NET = "file.py:function or package.module:function, if the run has a user-defined network"
STAGE = "use the weights after layer-wise stage K; 0: before the first stage"


@contextmanager
def output_of(args: argparse.Namespace) -> Iterator[None]:
    """Follow --json, --quiet and --no-progress of a command."""
    as_json, quiet = getattr(args, "json", False), getattr(args, "quiet", False)
    before = OUT.quiet, NOTES.quiet
    with ExitStack() as stack:
        if quiet or getattr(args, "no_progress", False):
            stack.enter_context(hidden_progress())
        OUT.quiet, NOTES.quiet = as_json, as_json or quiet
        try:
            yield
        finally:
            OUT.quiet, NOTES.quiet = before


def progress_console() -> Console:
    """Return the console for progress: that of the notes, or stderr if stdout gets JSON."""
    return Terminal(stderr=True, highlight=False) if OUT.quiet else NOTES


def print_json(result: Any) -> None:
    """Print the result of a command with --json. Numbers that JSON does not have become null, paths become texts."""
    print(json.dumps(_plain(result), indent=2))


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def fraction(text: str) -> float:
    """Parse a number such as 0.3 or 8/255."""
    try:
        return float(number(-1e9)(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number; write 0.3 or 8/255") from None


def radius_or_radii(text: str) -> float | dict[str, str]:
    """Parse a number such as 0.3 or 8/255, or radii by name of the feature such as age=0.1,income=500."""
    if "=" not in text:
        return fraction(text)
    try:
        return by_name(text, "eps")
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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


def print_warnings(messages: Sequence[str], console: Terminal = OUT) -> None:
    """Print warnings, such as those about a collapsed network, which are part of the result."""
    for message in messages:
        console.print(f"[bold yellow]warning:[/] {escape(printable(message))}", soft_wrap=True)
