"""JSON lines files in which each line has a checksum.

The checksum detects damage and manual edits. It is not a signature and does not protect against forgery.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeVar

from advibp.errors import UserError

T = TypeVar("T")

_CHECKSUM = "checksum"


def to_line(content: dict[str, Any]) -> str:
    """Return one line of JSON with the checksum as its last key."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}) + "\n"


def parse_line(line: str | bytes, parse: Callable[[dict[str, Any]], T], where: str) -> T:
    """Check and remove the checksum of a line of JSON, and parse its fields.

    Args:
        line: one line that `to_line` wrote. Lines of earlier versions have no checksum and are accepted.
        parse: converts the fields to an object; raises a ValueError that describes the problem.
        where: file and number of the line, for the error message.

    Returns:
        The result of `parse`.

    Raises:
        UserError: the line is damaged.
    """
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        if content.pop(_CHECKSUM, None) not in (None, _checksum(content)):
            raise ValueError("it was changed after it was written")
        return parse(content)
    except json.JSONDecodeError:
        problem = "it is not valid JSON"
    except RecursionError:
        problem = "it is nested too deeply"
    except UnicodeDecodeError:
        problem = "it is not UTF-8 text"
    except ValueError as error:
        problem = str(error)
    raise UserError(f"{where}: {problem}; delete that line, so that its image is certified again.")


def read_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """Parse all complete lines of a file.

    An incomplete last line, which remains if the process is killed, is skipped. A missing file has no lines.
    """
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [parse_line(line, parse, f"{path} is damaged in line {n}") for n, line in enumerate(lines, 1)]


def _checksum(content: dict[str, Any]) -> str:
    """Return eight hex digits that do not depend on spaces and the order of keys."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class Fields:
    """Checks the fields of one line. Each method raises a ValueError that names the field.

    Args:
        content: the fields.
        known: names of all fields that may occur.
        required: names of the fields that must occur.
    """

    def __init__(self, content: dict[str, Any], known: Collection[str], required: Collection[str]) -> None:
        if missing := sorted(set(required) - content.keys()):
            raise ValueError(f"{missing[0]} is missing")
        if unknown := sorted(content.keys() - set(known)):
            raise ValueError(f"{unknown[0]!r} is not a known field")
        self.content = content

    def integer(self, name: str, least: int) -> None:
        """Check that a field is an integer of at least `least`."""
        value = self.content[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {_shortened(value)}, but must be an integer of at least {least}")

    def number(self, name: str, low: float, high: float = math.inf, *, above: bool = False) -> None:
        """Check that a field is a finite number in [low, high], or in (low, high] with `above`."""
        value = self.content[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        inside = number and (low < value if above else low <= value) and value <= high and value < math.inf  # no NaN
        if not inside:
            interval = f"{'(' if above else '['}{low:g}, {high:g}{']' if high < math.inf else ')'}"
            raise ValueError(f"{name} is {_shortened(value)}, but must be a number in {interval}")

    def number_or_none(self, name: str, low: float = -math.inf, high: float = math.inf) -> None:
        """Check that a field is null or a finite number in [low, high]."""
        if self.content[name] is not None:
            self.number(name, low, high, above=low == -math.inf)

    def text(self, *names: str) -> None:
        """Check that fields, where they are present, are strings."""
        for name in names:
            if not isinstance(self.content.get(name, ""), str):
                raise ValueError(f"{name} is {_shortened(self.content[name])}, but must be a string")

    def choice(self, name: str, among: Collection[str | None], why: str = "") -> None:
        """Check that a field has one of several values; `why` ends the error message."""
        value = self.content[name]
        if not isinstance(value, str | None) or value not in among:
            names = ", ".join("null" if known is None else known for known in among)
            raise ValueError(f"{name} is {_shortened(value)}, but must be {'one of ' * (len(among) > 1)}{names}{why}")


def _shortened(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
