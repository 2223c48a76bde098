"""What the tables share: cells, and the notes that belong beside every comparison."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from advibp.recipe import read
from advibp.report.sections import TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.published import CHOSEN_ON_TEST, DATA, find
from advibp.reproduce.wanted import Ask, Setting

#: What a column of errors is called, and what it is called in a row of the paper's.
ERRORS = (("std", "standard"), ("IBP", "verified"), ("PGD", "attack"))
#: What these say.
HEADS = (
    "std: standard error; IBP: verified error by IBP, or by the verifier named beside it, in real arithmetic as the "
    "paper's; PGD: error under attack."
)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """A mean, and where there are several seeds the least and the largest."""
    if not values:
        return ""
    middle = f"{mean(values):.{digits}f}"
    return middle if len(values) == 1 else f"{middle} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def beside(
    values: Sequence[float], paper: float | None, *, compare: bool = True, by: str = "", paper_by: str = ""
) -> list[str]:
    """Measured, published and the difference, which is given only between numbers of the same verifier.

    Args:
        values: measured, one for each seed, in percent.
        paper: published, in percent.
        compare: whether a difference means something.
        by: the verifier of `values`, if it is to be named.
        paper_by: the verifier of `paper`, likewise.
    """
    difference = ""
    if compare and values and paper is not None and by == paper_by:
        difference = f"{round(mean(values) - paper, 2) + 0.0:+.2f}"  # + 0.0: no -0.00
    return [_by(spread(values), by), "" if paper is None else _by(f"{paper:.2f}", paper_by), difference]


def _by(number: str, verifier: str) -> str:
    return f"{number} ({verifier})" if number and verifier else number


def three_columns(name: str) -> list[str]:
    return [name, f"{name} paper", f"{name} diff."]


def error_cells(
    runs: Sequence[Measured], eps: float, ask: Ask, setting: Setting, table: str, models: Sequence[str]
) -> list[str]:
    """Standard, verified and attack errors of the seeds of one method and net, beside the paper's."""
    recipe = runs[0].wanted.recipe
    row = find(table, setting.data, recipe.method, models[0] if ask.stands_in else recipe.net, eps)
    cells: list[str] = []
    for _, key in ERRORS:
        paper_by = row.verifier if row and key == "verified" and row.verifier != "IBP" else ""
        by = paper_by if paper_by.lower() in runs[0].errors(eps).verified else ""  # IBP's where we have not asked it
        values = [_error(one, eps, key, by.lower() or "ibp") for one in runs]
        paper = getattr(row, key) if row else None
        cells += beside(values, paper, compare=comparable(ask, setting), by=by, paper_by=paper_by)
    return cells


def _error(one: Measured, eps: float, key: str, verifier: str) -> float:
    errors = one.errors(eps)
    return errors.verified[verifier] if key == "verified" else float(getattr(errors, key))


def comparable(ask: Ask, setting: Setting) -> bool:
    """Whether a difference to the paper means something: the same data and net, and more than a second of training."""
    return ask.scale != "tiny" and ask.data in (None, setting.data)


def epochs(runs: Sequence[Measured]) -> str:
    return str(max(one.epochs for one in runs))


def notes(ask: Ask, measured: Sequence[Measured], setting: Setting, models: Sequence[str]) -> list[str]:
    """What has to be known to read a comparison."""
    said = ["Errors in percent of the test images.", CHOSEN_ON_TEST]
    seeds = sorted({one.wanted.seed for one in measured})
    if len(seeds) > 1:
        said.append(f"Mean of the seeds {', '.join(map(str, seeds))} (least–largest).")
    looks = [look for one in measured for look in one.looks.values()]
    said += [f"{images} test images, {attack}." for images, attack in sorted({_judged(look.summary) for look in looks})]
    said += shorter(measured, setting)
    if ask.data not in (None, setting.data):
        said.append(
            f"Measured on {ask.data}, not on the paper's {DATA[setting.data]}: the numbers are not comparable, "
            "and no difference is given."
        )
    if ask.scale == "tiny":
        trained = f"Measured on net a, a stand-in for {models[0]}, trained" if ask.stands_in else "Trained"
        said.append(f"{trained} for a second: this shows that everything works, and no difference is given.")
    return said


def _judged(summary: dict[str, Any]) -> tuple[int, str]:
    return int(summary["images"]), str(summary["attack"])


def shorter(measured: Sequence[Measured], setting: Setting) -> list[str]:
    """Whether the paper trained longer."""
    paper = read(next(iter(setting.recipes.values())))
    ours = sorted({one.epochs for one in measured})
    if not ours or min(ours) >= paper["epochs"]:
        return []
    return [
        f"Our trainings have {' or '.join(map(str, ours))} epochs in all, the paper's {paper['epochs']:g} and then "
        f"{paper['stage_epochs']:g} more for each layer ({DATA[setting.data]})."
    ]


def runs_table(measured: Sequence[Measured]) -> TableSection:
    """Where the numbers come from."""
    rows = []
    for one in {one.wanted.name: one for one in measured}.values():
        summary = one.run.summary or {}
        machine = summary.get("hardware", {})
        rows.append(
            [
                one.path.name if one.how == "partial" else one.wanted.name,
                str(one.epochs),
                f"{one.seconds:.0f}",
                f"{one.seconds / max(one.epochs, 1):.2f}",
                str(machine.get("processor", "")),
                str(machine.get("threads", "")),
                str(machine.get("torch", "")),
            ]
        )
    return TableSection(
        title="The runs behind it",
        head=["run", "epochs", "seconds", "s/epoch", "processor", "threads", "torch"],
        rows=rows,
        notes=["Seconds of training, validation included, beside whatever else the machine did."] if rows else [],
    )
