"""A plan from beginning to end: its runs, its sections, its files."""

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
    """What came of it."""

    sections: list[Section]
    files: list[Path]
    lacks: str = ""  # what could not be made, and why


def make(name: str, work: Work, *, kept: Path | None = None) -> Made:
    """Carry out what is missing, and write DIR/NAME/; `kept`: where the small files of the runs are copied to."""
    plan, ask = plan_of(name), work.ask
    plan.check(name, ask)
    wanted = plan.wanted(ask)
    if kept is not None:
        check_kept(wanted, kept)
    known: dict[object, Measured] = {}
    for number, one in enumerate(wanted, 1):
        key = (one.name, one.looks)
        if key not in known:
            found = work.find(one)
            work.tell(f"{number} of {len(wanted)}: {one.name} ({found.says})")
            known[key] = work.measure(one, found)
    measured = [known[one.name, one.looks] for one in wanted]
    if not wanted:
        work.tell(f"{name} trains nothing; computing")
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
    behind = dataclasses.replace(runs_table(measured), command=command)
    machine = _machine()
    said = [*tables, behind] if measured else tables
    made_on = f"Made on: {machine}."
    files = {
        "table.md": "\n".join(map(markdown, said)) + f"\n{made_on}\n",
        "table.tex": "\n".join([f"% {made_on}", *map(latex, said)]),
    }
    files |= {_numbered(k): as_csv(t, {"command": command, "machine": machine}) for k, t in enumerate(tables)}
    if measured:
        files["runs.csv"] = as_csv(behind, {"command": command})
    for file, text in files.items():
        checkpoint.write_atomically(folder / file, text)
    lacks = ""
    if charts and figure.installed():
        figure.write_svg(folder / "figure.svg", charts, f"{command}\n{made_on}")
        files["figure.svg"] = ""
    elif charts:
        lacks = "figure.svg is not drawn: it needs matplotlib, which is not installed (pip install matplotlib)."
    write_page(folder / "report.html", runs, sections=[*sections, *([behind] if measured else [])], title=name)
    return Made(
        [*sections, behind] if measured else sections, [folder / file for file in (*files, "report.html")], lacks
    )


def _numbered(k: int) -> str:
    return "table.csv" if k == 0 else f"table-{k + 1}.csv"


def _machine() -> str:
    told = hardware()
    return f"{told['processor']}, {told['cores']} cores, {told['threads']} threads, torch {told['torch']}"
