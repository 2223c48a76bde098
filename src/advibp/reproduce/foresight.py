"""What a plan will do, and about how long it will take here. Nothing is loaded, trained or written."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from advibp.data.fetch.catalogue import ROWS
from advibp.recipe import Recipe
from advibp.report.sections import TableSection
from advibp.reproduce.carry_out import Found, Work
from advibp.reproduce.plans import plan_of
from advibp.reproduce.wanted import Wanted, told
from advibp.runs import first_net
from advibp.runs.estimate import pass_seconds, placeholder_data, predict_seconds
from advibp.runs.training_display import clock
from advibp.training import Training


@dataclass(frozen=True)
class Foreseen:
    wanted: Wanted
    found: Found
    seconds: float | None  # of training that is left; None: its data are unknown until they are loaded


def foresee(name: str, work: Work) -> list[Foreseen]:
    """The runs of a plan."""
    plan = plan_of(name)
    plan.check(name, work.ask)
    work, times = dataclasses.replace(work, loads_data=False), _Times()
    found = []
    for one in {(one.name, one.looks): one for one in plan.wanted(work.ask)}.values():
        state = work.find(one)
        trains = state.how in ("train", "continue")
        found.append(Foreseen(one, state, times.of(one.recipe, state.epochs) if trains else 0.0))
    return found


class _Times:
    """Predicted seconds of runs; each network is timed once, and each kind of run is predicted once."""

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
            plain = dataclasses.replace(recipe, normalize=False)  # mean and std are unknown, and cost nothing
            training = Training(first_net(plain, data), data, recipe)
            net = (recipe.net, recipe.data)
            if net not in self._passes:
                self._passes[net] = pass_seconds(training)
            self._known[kind] = predict_seconds(training, self._passes[net], epochs)
        return self._known[kind]


def _kind(recipe: Recipe) -> object:
    """Runs that cost the same: a step does not depend on these."""
    same = ("seed", "eps", "c_max", "beta1", "beta2", "published")
    return tuple((key, str(value)) for key, value in recipe.as_dict().items() if key not in same)


def as_table(name: str, foreseen: list[Foreseen]) -> TableSection:
    rows = []
    for one in foreseen:
        eps = dict.fromkeys(told(e) for look in one.wanted.looks for e in look.evaluation.eps)
        by = dict.fromkeys(b for look in one.wanted.looks for b in look.evaluation.by)
        differs = one.wanted.recipe.command().removeprefix("advibp train ")
        took = "unknown" if one.seconds is None else clock(one.seconds) if one.seconds else ""
        rows.append([one.wanted.name, differs, " ".join(eps), " ".join(by), one.found.says, took])
    total = sum(one.seconds or 0.0 for one in foreseen)
    notes = [f"Training: about {clock(total)} in all; certifying comes on top."]
    if total:
        notes.append(
            "This is a prediction, not a measurement of training steps: the time of a pass through each network, on "
            "this machine as busy as it is now, times the passes of its run. It can be wrong by a factor of two."
        )
    if unknown := sum(one.seconds is None for one in foreseen):
        notes.append(
            f"{unknown} of the runs are not in this sum: a dry run loads no data, and only the sizes of the data sets "
            "listed by `advibp data` are known without loading."
        )
    return TableSection(
        title=f"{name}: {len(rows)} runs",
        head=["run", "advibp train ...", "test eps", "verified by", "will be", "training"],
        rows=rows,
        notes=notes,
    )
