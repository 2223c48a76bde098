"""advibp compare"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from rich.markup import escape
from rich.table import Table

from advibp.cli.console import OUT
from advibp.report.comparing import Comparison
from advibp.report.sections import TableSection
from advibp.runs.run_files import read_run

WIDEST = 20  # characters of a cell before it is folded rather than make a table too wide


def compare_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Runs beside each other: what differs in their recipes, what training took, errors on test images. Where two\n"
        "were certified on the same images: how many only one of them proves, and whether that may be chance.\n\n"
        "  advibp compare runs/first runs/second\n"
        "  advibp compare runs/methods/* --markdown"
    )
    parser.add_argument("run", metavar="RUN", help="folder of a run; the others are compared with this one")
    parser.add_argument("others", nargs="+", metavar="RUN", help="more of them")
    parser.add_argument("--markdown", action="store_true", help="print Markdown, to be pasted")
    parser.set_defaults(command=run_compare)


def run_compare(args: argparse.Namespace) -> None:
    for section in Comparison([read_run(path) for path in (args.run, *args.others)]).sections():
        if args.markdown:
            OUT.print(markdown(section), markup=False, emoji=False, soft_wrap=True)
        else:
            _print(section)


def _print(section: TableSection) -> None:
    if not section.rows:
        OUT.print(f"[italic]{escape(section.title)}[/]")
    for number, columns in enumerate(fitting(section, OUT.width)):
        table = Table(*(escape(section.head[i]) for i in columns), title=None if number else escape(section.title))
        for row in section.rows:
            if row[0].startswith("eps "):  # the first of several
                table.add_section()
            table.add_row(*(escape(row[i]) for i in columns))
        OUT.print(table)
    for note in section.notes:
        style = "yellow" if note.startswith("Not comparable") else None
        OUT.print(f"  {note}", markup=False, emoji=False, style=style)
    OUT.print()


def fitting(section: TableSection, width: int) -> Iterator[list[int]]:
    """Columns of the tables that are printed below each other, each with the first column."""
    widths = [min(WIDEST, max(map(len, column))) + 3 for column in zip(section.head, *section.rows, strict=True)]
    taken: list[int] = []
    for i in range(1, len(widths)):
        if taken and 1 + widths[0] + sum(widths[j] for j in taken) + widths[i] > width:
            yield [0, *taken]
            taken = []
        taken.append(i)
    if taken:
        yield [0, *taken]


def markdown(section: TableSection) -> str:
    lines = [f"### {_marked(section.title)}", ""]
    if section.rows:
        table = [section.head, ["---"] * len(section.head), *section.rows]
        lines += ["| " + " | ".join(_marked(cell.strip()) for cell in row) + " |" for row in table] + [""]
    lines += [f"- {_marked(note)}" for note in section.notes] + [""] * bool(section.notes)
    return "\n".join(lines)


def _marked(text: str) -> str:
    """Text that Markdown shows as it is."""
    for sign in "\\`*_|[]":
        text = text.replace(sign, f"\\{sign}")
    return text.replace("&", "&amp;").replace("<", "&lt;")
