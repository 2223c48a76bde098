"""Makes text from files safe to print: it can't contain control sequences of the terminal."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment


def printable(text: str) -> str:
    """The text in one line, with ? for escapes, control characters and marks of text direction."""
    return "".join(c if _is_visible(c) else "?" for c in text)


def _is_visible(character: str) -> bool:
    return character.isprintable() or unicodedata.category(character) == "Zs"


class Terminal(Console):
    """A rich console that prints text as `printable` returns it. Line ends and the styles of rich are kept."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or segment.text == "\n":
                yield segment
            else:
                lines = segment.text.split("\n")
                yield Segment("\n".join(map(printable, lines)), segment.style)
