"""A recipe key as a field of a dataclass: its default, its parser and its help text."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from advibp.parsers import Parser


def option(default: Any, parse: Parser, description: str) -> Any:
    """Return the field of a recipe key.

    Args:
        default: the default.
        parse: checks and converts a value; see `advibp.parsers`.
        description: a short description for help and documentation.
    """
    return field(default=default, metadata={"parse": parse, "description": description})
