"""The command `advibp compare`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from rich.markup import escape
from rich.table import Table

from advibp.cli.console import OUT, print_json
from advibp.cli.parser import examples, output_options
from advibp.report.comparing import Comparison
from advibp.report.sections import TableSection
from advibp.runs.run_files import read_run

WIDEST = 20  # characters of a cell; longer cells wrap if the table is too wide


def compare_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Compare runs: keys of their recipes that differ, cost of training, errors on test images. If two runs were "
        "certified on the same images: how many images only one of them proves, and McNemar's test."
    )
    parser.epilog = examples(
        ("compare runs/first runs/second", ""), ("compare runs/a runs/b runs/c --markdown", "tables for a document")
    )
    output_options(parser, progress=False)
    parser.add_argument("run", metavar="RUN", help="folder of a run; the others are compared with this one")
    parser.add_argument("others", nargs="+", metavar="RUN", help="folders of more runs")
    parser.add_argument("--markdown", action="store_true", help="print Markdown")
    parser.set_defaults(command=run_compare)


def run_compare(args: argparse.Namespace) -> None:
    sections = Comparison([read_run(path) for path in (args.run, *args.others)]).sections()
    if args.json:
        print_json([section_facts(section) for section in sections])
        return
    for section in sections:
        if args.markdown:
            OUT.print(markdown(section), markup=False, emoji=False, soft_wrap=True)
        else:
            _print(section)


def section_facts(section: TableSection) -> dict[str, Any]:
    """Return a table as plain data: each row as a mapping from the names of the columns."""
    rows = [dict(zip(section.head, map(str.strip, row), strict=True)) for row in section.rows]
    return {"title": section.title, "rows": rows, "notes": list(section.notes)}


def _print(section: TableSection) -> None:
    if not section.rows:
        OUT.print(f"[italic]{escape(section.title)}[/]")
    for number, columns in enumerate(fitting(section, OUT.width)):
        table = Table(*(escape(section.head[i]) for i in columns), title=None if number else escape(section.title))
        for row in section.rows:
            if row[0].startswith("eps "):  # the first row of an eps
                table.add_section()
            table.add_row(*(escape(row[i]) for i in columns))
        OUT.print(table)
    for note in section.notes:
        style = "yellow" if note.startswith("Not comparable") else None
        OUT.print(f"  {note}", markup=False, emoji=False, style=style)
    OUT.print()


def fitting(section: TableSection, width: int, leading: int = 1) -> Iterator[list[int]]:
    """Divide the columns among tables that fit the width, each with the `leading` first columns."""
    widths = [min(WIDEST, max(map(len, column))) + 3 for column in zip(section.head, *section.rows, strict=True)]
    first = list(range(leading))
    taken: list[int] = []
    for i in range(leading, len(widths)):
        if taken and 1 + sum(widths[j] for j in (*first, *taken)) + widths[i] > width:
            yield [*first, *taken]
            taken = []
        taken.append(i)
    if taken:
        yield [*first, *taken]


def markdown(section: TableSection) -> str:
    lines = [f"### {_marked(section.title)}", ""]
    if section.rows:
        table = [section.head, ["---"] * len(section.head), *section.rows]
        lines += ["| " + " | ".join(_marked(cell.strip()) for cell in row) + " |" for row in table] + [""]
    lines += [f"- {_marked(note)}" for note in section.notes] + [""] * bool(section.notes)
    return "\n".join(lines)


def _marked(text: str) -> str:
    """Escape special characters of Markdown."""
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
