"""Short descriptions of objects, as text for `repr` and as HTML for notebooks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

_LONGEST = 80  # characters of one value
_CELL = "text-align:left;padding:1px 12px 1px 0;vertical-align:top"


class Summarized:
    """Base class of objects with a short `repr` and a table in notebooks. Subclasses define `_summary`."""

    __slots__ = ()

    def _summary(self) -> dict[str, object]:
        """Return the facts to show, by name. Values are numbers, texts or short tuples, never whole tensors."""
        raise NotImplementedError

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={shorten(repr(value))}" for name, value in self._summary().items())
        return f"{type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        return html_facts(type(self).__name__, self._summary())


def shorten(text: str, longest: int = _LONGEST) -> str:
    """Return a text in one line, cut to `longest` characters."""
    line = " ".join(text.split())
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Return a title and a table of names and values as HTML. All texts are escaped.

    Args:
        title: the title.
        facts: name -> value.
    """
    rows = "".join(
        f'<tr><td style="{_CELL}">{escape(name.replace("_", " "))}</td>'
        f'<td style="{_CELL}">{escape(shorten(str(value)))}</td></tr>'
        for name, value in facts.items()
    )
    return f"<div><strong>{escape(title)}</strong><table><tbody>{rows}</tbody></table></div>"


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML; the first row is the header. All texts are escaped."""
    head, *body = rows
    cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    return f"<table><thead><tr>{cells}</tr></thead><tbody>{lines}</tbody></table>"
