"""A table in each of its four forms says the same, whatever its cells hold."""

from __future__ import annotations

import csv
import io
import re

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from advibp.report.sections import TableSection
from advibp.report.table_formats import as_csv, latex, markdown, terminal

text = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=12)
grids = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.lists(text, min_size=n, max_size=n), st.lists(st.lists(text, min_size=n, max_size=n), max_size=4)
    )
)


def section(head: list[str], rows: list[list[str]]) -> TableSection:
    return TableSection(title="a table", head=head, rows=rows, notes=["a note"], command="advibp reproduce x")


@given(grids)
def test_csv_reads_back(grid: tuple[list[str], list[list[str]]]) -> None:
    head, rows = grid
    read = list(csv.reader(io.StringIO(as_csv(section(head, rows), {"command": "c"}), newline="")))
    assert read == [[*head, "command"], *([*row, "c"] for row in rows)]


@given(grids)
def test_markdown_and_latex_have_every_cell_in_its_place(grid: tuple[list[str], list[list[str]]]) -> None:
    head, rows = grid
    lines = [line for line in markdown(section(head, rows)).splitlines() if line.startswith("|")]
    assert len(lines) == 2 + len(rows)
    assert {len(re.split(r"(?<!\\)(?:\\\\)*\|", line)) - 2 for line in lines} == {len(head)}
    body = [line for line in latex(section(head, rows)).splitlines() if line.endswith(r" \\")]
    assert len(body) == 1 + len(rows)
    assert {len(re.split(r"(?<!\\)&", line)) for line in body} == {len(head)}


def test_latex_contains_no_commands_of_cells() -> None:
    found = latex(section(["a_b"], [["50 % & $x^2$ \\input{x} #1 {y} ~"]]))
    assert r"a\_b" in found
    assert r"50 \% \& \$x\textasciicircum{}2\$ \textbackslash{}input\{x\} \#1 \{y\} \textasciitilde{}" in found
    assert found.startswith("% advibp reproduce x\n")


def test_the_terminal_shows_markup_as_it_is_written() -> None:
    out = io.StringIO()
    table = section(["name", "n"], [["[bold]x[/]", "12.50"], ["a-run-with-a-very-long-name" * 3, "-3.00"]])
    Console(file=out, width=60).print(terminal(table))
    shown = out.getvalue()
    assert "[bold]x[/]" in shown
    assert "12.50" in shown
    assert "".join(shown.split()).count("a-run") == 3  # folded, not cut
    assert "…" not in shown
