"""Carry out a plan: provide its runs, compute its sections, write its files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from advibp.execution.hardware import hardware
from advibp.report.html import write_page
from advibp.report.sections import ChartSection, Section, TableSection
from advibp.report.table_formats import as_csv, latex, markdown
from advibp.reproduce import figure
from advibp.reproduce.carry_out import Measured, Work, check_kept, keep
from advibp.reproduce.cells import runs_table
from advibp.reproduce.plans import plan_of
from advibp.runs.run_files import RunFiles
from advibp.storage import checkpoint


@dataclass(frozen=True)
class Made:
    """Result of `reproduce`.

    Attributes:
        sections: tables and charts.
        files: the files that were written.
        lacks: a message about what could not be written; "" if nothing is missing.

    Examples:
        >>> from advibp.reproduce import reproduce
        >>> made = reproduce("gradient-cases", out="runs/reproduce")
        >>> [file.name for file in made.files]
        ['table.md', 'table.tex', 'table.csv', 'figure.svg', 'report.html']
    """

    sections: list[Section]
    files: list[Path]
    lacks: str = ""


def make(name: str, work: Work, *, kept: Path | None = None) -> Made:
    """Carry out a plan and write the folder DIR/NAME.

    Args:
        name: a key of `PLANS`.
        work: provides the runs.
        kept: folder to which recipe, metrics and summaries of the runs are copied.
    """
    plan, ask = plan_of(name), work.ask
    plan.check(name, ask)
    specs = plan.specs(ask)
    if kept is not None:
        check_kept(specs, kept)
    known: dict[object, Measured] = {}
    for number, one in enumerate(specs, 1):
        key = (one.name, one.tasks)
        if key not in known:
            found = work.find(one)
            work.tell(f"{number} of {len(specs)}: {one.name} ({found.description})")
            known[key] = work.measure(one, found)
    measured = [known[one.name, one.tasks] for one in specs]
    if not specs:
        work.tell(f"{name} needs no training; computing")
    sections = [dataclasses.replace(s, command=ask.command) for s in plan.sections(ask, measured)]
    if kept is not None:
        keep(list(known.values()), kept)
    runs = {one.path: one.run for one in measured}
    return _write(ask.out / name, name, sections, measured, list(runs.values()))


def _write(
    folder: Path, name: str, sections: list[Section], measured: Sequence[Measured], runs: list[RunFiles]
) -> Made:
    folder.mkdir(parents=True, exist_ok=True)
    command = sections[0].command
    tables = [s for s in sections if isinstance(s, TableSection)]
    charts = [s for s in sections if isinstance(s, ChartSection)]
    sources = dataclasses.replace(runs_table(measured), command=command)
    machine = _machine()
    all_tables = [*tables, sources] if measured else tables
    made_on = f"Computed on: {machine}."
    files = {
        "table.md": "\n".join(map(markdown, all_tables)) + f"\n{made_on}\n",
        "table.tex": "\n".join([f"% {made_on}", *map(latex, all_tables)]),
    }
    files |= {_numbered(k): as_csv(t, {"command": command, "machine": machine}) for k, t in enumerate(tables)}
    if measured:
        files["runs.csv"] = as_csv(sources, {"command": command})
    for file, text in files.items():
        checkpoint.write_atomically(folder / file, text)
    lacks = ""
    if charts and figure.installed():
        figure.write_svg(folder / "figure.svg", charts, f"{command}\n{made_on}")
        files["figure.svg"] = ""
    elif charts:
        lacks = "figure.svg was not written, because matplotlib is not installed; run pip install matplotlib."
    write_page(folder / "report.html", runs, sections=[*sections, *([sources] if measured else [])], title=name)
    return Made(
        [*sections, sources] if measured else sections, [folder / file for file in (*files, "report.html")], lacks
    )


def _numbered(k: int) -> str:
    return "table.csv" if k == 0 else f"table-{k + 1}.csv"


def _machine() -> str:
    info = hardware()
    return f"{info['processor']}, {info['cores']} cores, {info['threads']} threads, torch {info['torch']}"
