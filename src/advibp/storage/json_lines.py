"""Files of one JSON object per line, each with a checksum of its own content.

The checksum detects damage and edits by hand. It is no signature: whoever wants to forge a line can compute it.
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
    """One line of JSON, with the checksum as its last key."""
    return json.dumps({**content, _CHECKSUM: _checksum(content)}) + "\n"


def parse_line(line: str | bytes, parse: Callable[[dict[str, Any]], T], where: str) -> T:
    """What `parse` makes of a line of JSON, after its checksum was compared and removed.

    Args:
        line: one line as `to_line` wrote it, or one of an earlier version, without a checksum.
        parse: makes an object of the fields; raises a ValueError that says what is wrong.
        where: file and number of the line, for the error message.
    """
    try:
        content = json.loads(line)
        if not isinstance(content, dict):
            raise ValueError("it is no JSON object")
        if content.pop(_CHECKSUM, None) not in (None, _checksum(content)):
            raise ValueError("it was changed after it was written")
        return parse(content)
    except json.JSONDecodeError:
        problem = "it is no JSON"
    except RecursionError:
        problem = "it is nested too deeply"
    except UnicodeDecodeError:
        problem = "it is no UTF-8 text"
    except ValueError as error:
        problem = str(error)
    raise UserError(f"{where}: {problem}; delete that line, and its image is certified again.")


def read_lines(path: Path, parse: Callable[[dict[str, Any]], T]) -> list[T]:
    """All whole lines of a file; a last line without its end, which a kill may leave, is not read."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return [parse_line(line, parse, f"{path} is damaged in line {n}") for n, line in enumerate(lines, 1)]


def _checksum(content: dict[str, Any]) -> str:
    """Eight hex digits; spaces and the order of the keys do not matter."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


class Fields:
    """The fields of one line, each taken once and checked; every mistake is a ValueError that names the field."""

    def __init__(self, content: dict[str, Any], known: Collection[str], required: Collection[str]) -> None:
        if missing := sorted(set(required) - content.keys()):
            raise ValueError(f"{missing[0]} is missing")
        if strange := sorted(content.keys() - set(known)):
            raise ValueError(f"{strange[0]!r} is no field of it")
        self.content = content

    def integer(self, name: str, least: int) -> None:
        value = self.content[name]
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} is {_shown(value)}, but must be a whole number from {least}")

    def number(self, name: str, low: float, high: float = math.inf, *, above: bool = False) -> None:
        """A finite number in [low, high], or in (low, high] with `above`."""
        value = self.content[name]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        inside = number and (low < value if above else low <= value) and value <= high and value < math.inf  # no NaN
        if not inside:
            interval = f"{'(' if above else '['}{low:g}, {high:g}{']' if high < math.inf else ')'}"
            raise ValueError(f"{name} is {_shown(value)}, but must be a number in {interval}")

    def number_or_none(self, name: str, low: float = -math.inf, high: float = math.inf) -> None:
        if self.content[name] is not None:
            self.number(name, low, high, above=low == -math.inf)

    def text(self, *names: str) -> None:
        for name in names:
            if not isinstance(self.content.get(name, ""), str):
                raise ValueError(f"{name} is {_shown(self.content[name])}, but must be a text")

    def choice(self, name: str, among: Collection[str | None], why: str = "") -> None:
        value = self.content[name]
        if not isinstance(value, str | None) or value not in among:
            names = ", ".join("null" if known is None else known for known in among)
            raise ValueError(f"{name} is {_shown(value)}, but must be {'one of ' * (len(among) > 1)}{names}{why}")


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
