"""What a plan will do, and how long it will take here: seconds from a few real steps of each kind of run."""

from __future__ import annotations

from dataclasses import dataclass

from advibp.display import clock
from advibp.estimate import estimated_seconds
from advibp.recipe import Recipe
from advibp.report.sections import TableSection
from advibp.reproduce.carry_out import Found, Work
from advibp.reproduce.plans import plan_of
from advibp.reproduce.wanted import Wanted, told
from advibp.runs import first_net


@dataclass(frozen=True)
class Foreseen:
    wanted: Wanted
    found: Found
    seconds: float  # of training that is left


def foresee(name: str, work: Work) -> list[Foreseen]:
    """The runs of a plan. Nothing is written."""
    plan = plan_of(name)
    plan.check(name, work.ask)
    costs: dict[object, float] = {}
    found = []
    for one in {(one.name, one.looks): one for one in plan.wanted(work.ask)}.values():
        state, seconds = work.find(one), 0.0
        if state.how in ("train", "continue"):
            kind = _kind(one.recipe)
            if kind not in costs:
                work.tell(f"a few steps of {one.name}")
                data = work.load(one.recipe)
                costs[kind] = estimated_seconds(first_net(one.recipe, data), data, one.recipe)
            seconds = costs[kind] * max(0.0, 1 - state.epochs / one.recipe.epochs)
        found.append(Foreseen(one, state, seconds))
    return found


def _kind(recipe: Recipe) -> object:
    """Runs that cost the same: a step does not depend on these."""
    same = ("seed", "eps", "c_max", "beta1", "beta2", "published")
    return tuple((key, str(value)) for key, value in recipe.as_dict().items() if key not in same)


def as_table(name: str, foreseen: list[Foreseen]) -> TableSection:
    rows = []
    for one in foreseen:
        eps = dict.fromkeys(told(e) for look in one.wanted.looks for e in look.examination.eps)
        by = dict.fromkeys(b for look in one.wanted.looks for b in look.examination.by)
        differs = one.wanted.recipe.command().removeprefix("advibp train ")
        took = clock(one.seconds) if one.seconds else ""
        rows.append([one.wanted.name, differs, " ".join(eps), " ".join(by), one.found.says, took])
    total = sum(one.seconds for one in foreseen)
    return TableSection(
        title=f"{name}: {len(rows)} runs",
        head=["run", "advibp train ...", "test eps", "verified by", "will be", "training"],
        rows=rows,
        notes=[
            f"Training: about {clock(total)} in all, from a few real steps on this machine, as busy as it is now; "
            "certifying comes on top.",
        ],
    )
