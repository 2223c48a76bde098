"""What is printed on a terminal: text from files cannot move its cursor, colour it, or do anything else to it."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


def printable(text: str) -> str:
    """The text in one line, with ? for everything that is no sign: escapes, controls, marks that turn its direction."""
    return "".join(c if _is_sign(c) else "?" for c in text)


def _is_sign(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


class Terminal(Console):
    """A rich console on which only its own styles colour what is printed: see `printable`. Lines end as they did."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(map(printable, lines)), segment.style)
