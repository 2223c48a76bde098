"""Formats a table for the terminal, and as Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence

from rich import box
from rich.markup import escape
from rich.table import Table

from advibp.report.sections import TableSection

#: Replacements for special characters of LaTeX, and for characters that its fonts may lack.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "{": r"\{",
        "}": r"\}",
        "$": r"\$",
        "&": r"\&",
        "%": r"\%",
        "#": r"\#",
        "_": r"\_",
        "^": r"\textasciicircum{}",
        "~": r"\textasciitilde{}",
        "<": r"$<$",
        ">": r"$>$",
        "|": r"$|$",
        "–": "--",
        "±": r"$\pm$",
        "≤": r"$\le$",
        "≥": r"$\ge$",
        "×": r"$\times$",
        "²": r"$^2$",
        "\n": " ",
    }
)

#: Words of up to this length are never broken.
_WORD = 14


def terminal(table: TableSection) -> Table:
    """A rich table. Numbers are right-aligned, and cells wrap between words."""
    drawn = Table(title=escape(table.title), box=box.SIMPLE_HEAVY, collapse_padding=True, pad_edge=False)
    for k, name in enumerate(table.head):
        cells = [row[k] for row in table.rows]
        right = bool(k) and all(map(_is_number, cells))
        word = max((len(word) for text in (name, *cells) for word in text.split()), default=0)
        least = word if word <= _WORD else None
        width = max([word, *map(len, cells)])
        folded = "\n".join(textwrap.wrap(name, width)) if width else name  # the head does not widen its column
        drawn.add_column(escape(folded), justify="right" if right else "left", overflow="fold", min_width=least)
    for row in table.rows:
        drawn.add_row(*map(escape, row))
    return drawn


def _is_number(cell: str) -> bool:
    return not cell or cell[0].isdigit() or (cell[0] in "+-" and cell[1:2].isdigit())


def markdown(table: TableSection) -> str:
    """The title, the command that produces the table, the table and its notes."""
    lines = [f"# {table.title}", ""]
    if table.command:
        lines += ["```sh", table.command, "```", ""]
    for row in (table.head, ["---"] * len(table.head), *table.rows):
        lines.append("| " + " | ".join(_in_a_cell(cell) for cell in row) + " |")
    lines += ["", *(f"- {note}" for note in table.notes)]
    return "\n".join(lines).rstrip() + "\n"


def _in_a_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ")


def as_csv(table: TableSection, constant: Mapping[str, str] | None = None) -> str:
    """CSV. `constant`: extra columns with the same value in every row, for example the origin of the file."""
    more = dict(constant or {})
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*table.head, *more])
    writer.writerows([*row, *more.values()] for row in table.rows)
    return out.getvalue()


def latex(table: TableSection) -> str:
    """A LaTeX table for the booktabs package, with the command as a comment at the top."""
    return "\n".join(
        [
            *(f"% {line}" for line in table.command.splitlines()),
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_tex(table.title)}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.head)}}}",
            r"\toprule",
            _tex_row(table.head),
            r"\midrule",
            *map(_tex_row, table.rows),
            r"\bottomrule",
            r"\end{tabular}",
            *(rf"\par\footnotesize {_tex(note)}" for note in table.notes),
            r"\end{table}",
            "",
        ]
    )


def _tex_row(cells: Sequence[str]) -> str:
    return " & ".join(map(_tex, cells)) + r" \\"


def _tex(text: str) -> str:
    return text.translate(_LATEX)
