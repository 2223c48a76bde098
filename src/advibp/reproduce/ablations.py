"""One key of AdvIBP's recipe changed at a time."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.plan import Plan
from advibp.reproduce.wanted import MNIST, Ask, Wanted, look, want
from advibp.runs.sweep import Changes, combinations, table

_EPS = 0.3


def _vary(ask: Ask) -> dict[str, list[Any]]:
    rules = ["fixed", "scheduled", "pcgrad", *(["mgda"] if find_spec("torchjd") else [])]
    if ask.scale == "tiny":
        seeds = list(ask.seeds or (1,))
        return {"seed": seeds, "c_max": [0.01], "beta1": [0.0], "scope": ["first"], "weighting": rules[:1]}
    return {
        "seed": list(ask.seeds or (0, 1, 2)),
        "c_max": [0.0, 0.01, "auto"],
        "beta1": [0.0, 0.9, 0.99],
        "beta2": [0.9, 0.99, 0.999],
        "scope": ["first", "last"],
        "weighting": rules,
    }


def _rows(ask: Ask) -> list[tuple[Changes, Wanted]]:
    """What is changed, and the run; the first change of a net is none, and what changes nothing is left out."""
    shape: dict[str, Any] = ask.at_scale(tiny={}, fast={"limit": 10_000, "epochs": 20}, paper={})
    # The paper has recipes for the radii of its tables alone.
    eps = 0.4 if ask.scale == "paper" else _EPS
    looks = [look(ask, [_EPS], steps=40, sample=None if ask.scale == "paper" else 2000)]
    rows: list[tuple[Changes, Wanted]] = []
    for net in ask.models or ("a",):
        for change in combinations(_vary(ask), one_by_one=True):
            keys = {"seed": 0, **shape, **change}
            wanted = want(ask, MNIST, net=net, method="advibp", eps=eps, looks=looks, **keys)
            if all(wanted.name != other.name for _, other in rows):
                rows.append(({"net": net, **change} if len(ask.models) > 1 else change, wanted))
    return rows


def _wanted(ask: Ask) -> list[Wanted]:
    return [wanted for _, wanted in _rows(ask)]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows: list[dict[str, Any]] = []
    seeds: dict[str, list[float]] = {}  # by net
    for (change, _), one in zip(_rows(ask), measured, strict=True):
        errors = one.errors(_EPS)
        percent = {"standard": errors.standard, "PGD": errors.attack}
        percent |= {"verified (IBP)": errors.verified["ibp"], "verified (best)": errors.best}
        if set(change) <= {"net", "seed"}:
            seeds.setdefault(one.wanted.recipe.net, []).append(errors.verified["ibp"])
        rows.append(
            {
                "changes": change,
                "percent": {f"{_EPS:g}": percent},
                "epochs": one.epochs,
                "s/epoch": one.seconds / max(one.epochs, 1),
                "minutes": one.seconds / 60,
            }
        )
    head, *body = table(rows)
    said = measured[0].looks["certify"].summary
    return [
        TableSection(
            title=f"AdvIBP with one key changed at a time, eps {_EPS:g}",
            head=head,
            rows=body,
            notes=[
                "A blank is the default; the first row is all defaults.",
                f"Errors in percent of the same {said['images']} test images, {said['attack']}.",
                *(
                    f"Seeds alone move the verified error of {net} from {min(found):.2f} to {max(found):.2f}: what "
                    "lies within that says nothing about a key."
                    for net, found in seeds.items()
                    if len(found) > 1
                ),
                *([] if find_spec("torchjd") else ["mgda is left out: it needs the package torchjd."]),
                "The paper has no such table; c_max, beta_1 and beta_2 are its open questions.",
            ],
        )
    ]


ABLATIONS = Plan(
    says="c_max, decays, scope, weightings and seeds, one at a time",
    wanted=_wanted,
    sections=_sections,
    narrowed_by=("models", "seeds", "data"),
)
