"""Dry run of a plan: list its runs and predict their time. Nothing is loaded, trained or written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from advibp.data.fetch.catalogue import ROWS
from advibp.display.eps import format_eps
from advibp.recipe import Recipe
from advibp.report.sections import TableSection
from advibp.reproduce.carry_out import Found, Work
from advibp.reproduce.plans import plan_of
from advibp.reproduce.run_specs import RunSpec
from advibp.runs import first_net
from advibp.runs.estimate import pass_seconds, placeholder_data, predict_seconds
from advibp.runs.training_display import clock
from advibp.training import Training


@dataclass(frozen=True)
class PlannedRun:
    """One run of a dry run."""

    spec: RunSpec
    found: Found
    seconds: float | None  # remaining training; None if the size of the data is unknown


def planned_runs(name: str, work: Work) -> list[PlannedRun]:
    """Return the runs of a plan."""
    plan = plan_of(name)
    plan.check(name, work.ask)
    work, times = dataclasses.replace(work, loads_data=False), _Times()
    runs = []
    for one in {(one.name, one.tasks): one for one in plan.specs(work.ask)}.values():
        state = work.find(one)
        trains = state.how in ("train", "continue")
        runs.append(PlannedRun(one, state, times.of(one.recipe, state.epochs) if trains else 0.0))
    return runs


class _Times:
    """Predicts the seconds of runs. Each network is timed once, and runs of equal cost are predicted once."""

    def __init__(self) -> None:
        self._passes: dict[tuple[str, str], float] = {}
        self._known: dict[object, float] = {}

    def of(self, recipe: Recipe, epochs: int) -> float | None:
        row = next((row for row in ROWS if row.name == recipe.data), None)
        if row is None:
            return None
        kind = (_kind(recipe), epochs)
        if kind not in self._known:
            data = placeholder_data(recipe, row)
            plain = dataclasses.replace(recipe, normalize=False)  # mean and std are unknown and cost no time
            training = Training(first_net(plain, data), data, recipe)
            net = (recipe.net, recipe.data)
            if net not in self._passes:
                self._passes[net] = pass_seconds(training)
            self._known[kind] = predict_seconds(training, self._passes[net], epochs)
        return self._known[kind]


def _kind(recipe: Recipe) -> object:
    """Return the recipe keys that the cost of a step depends on."""
    ignored = ("seed", "eps", "c_max", "beta1", "beta2", "published")
    return tuple((key, str(value)) for key, value in recipe.as_dict().items() if key not in ignored)


def as_table(name: str, planned: list[PlannedRun]) -> TableSection:
    """Return the table of a dry run."""
    rows = []
    for one in planned:
        eps = dict.fromkeys(format_eps(e) for task in one.spec.tasks for e in task.evaluation.eps)
        by = dict.fromkeys(b for task in one.spec.tasks for b in task.evaluation.by)
        options = one.spec.recipe.command().removeprefix("advibp train ")
        time = "unknown" if one.seconds is None else clock(one.seconds) if one.seconds else ""
        rows.append([one.spec.name, options, " ".join(eps), " ".join(by), one.found.description, time])
    total = sum(one.seconds or 0.0 for one in planned)
    notes = [f"Training: about {clock(total)} in total; certification takes additional time."]
    if total:
        notes.append(
            "This prediction is the time of a pass through each network, on this machine at its current load, times "
            "the number of passes of the run. It can be wrong by a factor of two."
        )
    if unknown := sum(one.seconds is None for one in planned):
        notes.append(
            f"The total excludes {unknown} runs: a dry run loads no data, and only the sizes of the data sets of "
            "`advibp data` are known without loading."
        )
    return TableSection(
        title=f"{name}: {len(rows)} runs",
        head=["run", "advibp train ...", "test eps", "verified by", "will be", "training"],
        rows=rows,
        notes=notes,
    )
