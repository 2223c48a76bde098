"""Ablations: AdvIBP with one recipe key changed at a time."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from advibp.display.eps import format_eps
from advibp.report.sections import Section, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.plan import Plan
from advibp.reproduce.run_specs import MNIST, Ask, RunSpec, make_task, run_spec
from advibp.runs.sweep import Changes, combinations
from advibp.runs.sweep_table import table

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


def _rows(ask: Ask) -> list[tuple[Changes, RunSpec]]:
    """Return pairs of changed keys and run. The first run of a network has no changes; duplicates are omitted."""
    shape: dict[str, Any] = ask.at_scale(tiny={}, fast={"limit": 10_000, "epochs": 20}, paper={})
    # The paper has recipes only for the radii of its tables.
    eps = 0.4 if ask.scale == "paper" else _EPS
    tasks = [make_task(ask, [_EPS], steps=40, sample=None if ask.scale == "paper" else 2000)]
    rows: list[tuple[Changes, RunSpec]] = []
    for net in ask.models or ("a",):
        for change in combinations(_vary(ask), one_by_one=True):
            keys = {"seed": 0, **shape, **change}
            spec = run_spec(ask, MNIST, net=net, method="advibp", eps=eps, tasks=tasks, **keys)
            if all(spec.name != other.name for _, other in rows):
                rows.append(({"net": net, **change} if len(ask.models) > 1 else change, spec))
    return rows


def _specs(ask: Ask) -> list[RunSpec]:
    return [spec for _, spec in _rows(ask)]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows: list[dict[str, Any]] = []
    seeds: dict[str, list[float]] = {}  # by net
    for (change, _), one in zip(_rows(ask), measured, strict=True):
        errors = one.errors(_EPS)
        percent = {"standard": errors.standard, "PGD": errors.attack}
        percent |= {"verified (IBP)": errors.verified["ibp"], "verified (best)": errors.best}
        if set(change) <= {"net", "seed"}:
            seeds.setdefault(one.spec.recipe.net, []).append(errors.verified["ibp"])
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
    summary = measured[0].tasks["certify"].summary
    return [
        TableSection(
            title=f"AdvIBP with one key changed at a time, eps {format_eps(_EPS)}",
            head=head,
            rows=body,
            notes=[
                "An empty cell is the default. The first row has only defaults.",
                f"Errors in percent of the same {summary['images']} test images, {summary['attack']}.",
                *(
                    f"Over seeds, the verified error of {net} varies from {min(errors):.2f} to {max(errors):.2f}; "
                    "differences within this range are not significant."
                    for net, errors in seeds.items()
                    if len(errors) > 1
                ),
                *([] if find_spec("torchjd") else ["mgda is omitted, because the package torchjd is not installed."]),
                "The paper has no such table. It does not give c_max, beta_1 and beta_2.",
            ],
        )
    ]


ABLATIONS = Plan(
    description="AdvIBP with one of c_max, decays, scope, weighting and seed changed",
    specs=_specs,
    sections=_sections,
    narrowed_by=("models", "seeds", "data"),
)
