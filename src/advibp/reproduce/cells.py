"""Cells and notes that the tables share."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean

from advibp.recipe import read
from advibp.report.sections import TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.published import CHOSEN_ON_TEST, DATA, find
from advibp.reproduce.run_specs import Ask, Setting

#: Columns of errors, and their attributes in `Published`.
ERRORS = (("std", "standard"), ("IBP", "verified"), ("PGD", "attack"))
#: The note that explains these columns.
HEADS = (
    "std: standard error; IBP: verified error by IBP, or by the verifier in parentheses, in real arithmetic like the "
    "paper's; PGD: error under attack."
)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Format the mean, and for several seeds the minimum and maximum."""
    if not values:
        return ""
    average = f"{mean(values):.{digits}f}"
    return average if len(values) == 1 else f"{average} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def beside(
    values: Sequence[float], paper: float | None, *, compare: bool = True, by: str = "", paper_by: str = ""
) -> list[str]:
    """Return three cells: measured, published, and their difference if both are by the same verifier.

    Args:
        values: measured, one per seed, in percent.
        paper: published, in percent.
        compare: whether the difference is meaningful.
        by: verifier of `values`, if the cell should name it.
        paper_by: verifier of `paper`, if the cell should name it.
    """
    difference = ""
    if compare and values and paper is not None and by == paper_by:
        difference = f"{round(mean(values) - paper, 2) + 0.0:+.2f}"  # + 0.0 turns -0.00 into 0.00
    return [_by(spread(values), by), "" if paper is None else _by(f"{paper:.2f}", paper_by), difference]


def _by(number: str, verifier: str) -> str:
    return f"{number} ({verifier})" if number and verifier else number


def three_columns(name: str) -> list[str]:
    return [name, f"{name} paper", f"{name} diff."]


def error_cells(
    runs: Sequence[Measured], eps: float, ask: Ask, setting: Setting, table: str, models: Sequence[str]
) -> list[str]:
    """Return the cells of standard, verified and attack errors of one method and net, over its seeds."""
    recipe = runs[0].spec.recipe
    row = find(table, setting.data, recipe.method, models[0] if ask.stands_in else recipe.net, eps)
    cells: list[str] = []
    for _, key in ERRORS:
        paper_by = row.verifier if row and key == "verified" and row.verifier != "IBP" else ""
        by = paper_by if paper_by.lower() in runs[0].errors(eps).verified else ""  # "": IBP
        values = [_error(one, eps, key, by.lower() or "ibp") for one in runs]
        paper = getattr(row, key) if row else None
        cells += beside(values, paper, compare=comparable(ask, setting), by=by, paper_by=paper_by)
    return cells


def _error(one: Measured, eps: float, key: str, verifier: str) -> float:
    errors = one.errors(eps)
    return errors.verified[verifier] if key == "verified" else float(getattr(errors, key))


def comparable(ask: Ask, setting: Setting) -> bool:
    """Return whether a difference from the paper is meaningful: the same data, and not the scale tiny."""
    return ask.scale != "tiny" and ask.data in (None, setting.data)


def epochs(runs: Sequence[Measured]) -> str:
    return str(max(one.epochs for one in runs))


def notes(ask: Ask, measured: Sequence[Measured], setting: Setting, models: Sequence[str]) -> list[str]:
    """Return the notes of a comparison with the paper."""
    lines = ["Errors in percent of the test images.", CHOSEN_ON_TEST]
    seeds = sorted({one.spec.seed for one in measured})
    if len(seeds) > 1:
        lines.append(f"Mean of the seeds {', '.join(map(str, seeds))} (minimum–maximum).")
    summaries = [certification.summary for one in measured for certification in one.tasks.values()]
    attacks = sorted({(int(summary["images"]), str(summary["attack"])) for summary in summaries})
    lines += [f"{images} test images, {attack}." for images, attack in attacks]
    lines += shorter(measured, setting)
    if ask.data not in (None, setting.data):
        lines.append(
            f"Measured on {ask.data}, not on the paper's {DATA[setting.data]}: the numbers are not comparable, "
            "and no difference is given."
        )
    if ask.scale == "tiny":
        trained = f"Measured on net a, a stand-in for {models[0]}, trained" if ask.stands_in else "Trained"
        lines.append(f"{trained} for a second: this only tests that everything works. No difference is given.")
    return lines


def shorter(measured: Sequence[Measured], setting: Setting) -> list[str]:
    """Return a note if the paper trained longer."""
    paper = read(next(iter(setting.recipes.values())))
    ours = sorted({one.epochs for one in measured})
    if not ours or min(ours) >= paper["epochs"]:
        return []
    return [
        f"Our trainings have {' or '.join(map(str, ours))} epochs in total, the paper's {paper['epochs']:g} and then "
        f"{paper['stage_epochs']:g} more for each layer ({DATA[setting.data]})."
    ]


def runs_table(measured: Sequence[Measured]) -> TableSection:
    """Return the table of the runs: epochs, seconds and hardware."""
    rows = []
    for one in {one.spec.name: one for one in measured}.values():
        summary = one.run.summary or {}
        machine = summary.get("hardware", {})
        rows.append(
            [
                one.path.name if one.how == "partial" else one.spec.name,
                str(one.epochs),
                f"{one.seconds:.0f}",
                f"{one.seconds / max(one.epochs, 1):.2f}",
                str(machine.get("processor", "")),
                str(machine.get("threads", "")),
                str(machine.get("torch", "")),
            ]
        )
    return TableSection(
        title="Runs",
        head=["run", "epochs", "seconds", "s/epoch", "processor", "threads", "torch"],
        rows=rows,
        notes=["Seconds of training and validation. Other processes may have used the machine."] if rows else [],
    )
