"""What layer-wise stages gain: errors before them and after each, and the share of the first two stages.

A run in a --reuse folder that is unfinished, or was trained with fewer stages, is shown with the stages it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import Any

import torch

from advibp import nets
from advibp.data.fetch.catalogue import find
from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import notes, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import DATA
from advibp.reproduce.wanted import CIFAR10, FIGURE_RADII, MNIST, Ask, Setting, Wanted, look, told, want
from advibp.training.stages import Stages

_MODELS = ("dm-small", "dm-medium", "dm-large")
_FIRST = 2  # stages in which the paper sees most of the gain


@cache
def count_stages(net: str, data: str) -> int:
    """How many layer-wise stages a network has: one for each layer but the last."""
    row = find(data)
    built = nets.build(net, row.input_shape, row.classes, seed=0)
    return Stages(built).count("all", torch.zeros(2, *row.input_shape))


def _halves(ask: Ask) -> list[tuple[Setting, tuple[float, ...]]]:
    """The data sets of the figure with their test radii: both of the paper's, if none was asked for."""
    if ask.data or ask.scale == "tiny":
        return [(ask.setting(), ask.figure_radii())]
    radii = ask.radii((*FIGURE_RADII["mnist"], *FIGURE_RADII["cifar10"]), ())
    halves = [(setting, tuple(e for e in radii if e in FIGURE_RADII[setting.data])) for setting in (MNIST, CIFAR10)]
    return [(setting, tested) for setting, tested in halves if tested]


def _wanted(ask: Ask) -> list[Wanted]:
    changes: dict[str, Any] = ask.at_scale(
        tiny={"stages": "all", "stage_epochs": 1},
        fast={"epochs": 40, "stages": "all", "stage_epochs": 10},
        paper={},  # all of them already
    )
    steps = 200 if ask.scale == "paper" else 40
    return [
        want(
            ask,
            setting,
            net=net,
            method=method,
            eps=ask.main_eps(setting),
            seed=seed,
            looks=[look(ask, radii, steps=steps, stage=stage) for stage in range(count_stages(net, setting.data) + 1)],
            partial=True,
            **changes,
        )
        for setting, radii in _halves(ask)
        for net in ask.nets(_MODELS[:1])
        for method in ask.rules(("advibp",))
        for seed in ask.chances(fast=(0, 1, 2))
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows, shares, charts, said = [], [], [], []
    for setting, radii in _halves(ask):
        data = ask.data or setting.data
        half = [one for one in measured if one.wanted.recipe.data == data]
        for net, method in dict.fromkeys((one.wanted.recipe.net, one.wanted.recipe.method) for one in half):
            runs = [o for o in half if (o.wanted.recipe.net, o.wanted.recipe.method) == (net, method)]
            named = [DATA.get(data, data), net, method]
            for eps in radii:
                rows += [[*named, told(eps), *cells] for cells in _errors(runs, eps)]
                shares.append([*named, told(eps), *_share(runs, eps)])
            charts.append(_chart(", ".join(named), runs, radii))
        said += notes(ask, half, setting, _MODELS)
    key = ["data", "net", "method", "eps"]
    return [
        TableSection(
            title="Layer-wise stages",
            head=[*key, "stage", "verified (IBP)", "PGD", "standard"],
            rows=rows,
            notes=[
                "Stage 0 is the network before the first stage; stage k after k layers were frozen, one after the "
                "other.",
                *_partial_notes(measured),
                *dict.fromkeys(said),
            ],
        ),
        TableSection(
            title="Gain of the first two stages",
            head=[*key, "runs", "stages", "gain of the first two", "gain of all", "share of the first two, %"],
            rows=shares,
            notes=[
                "Gain: IBP verified error before the stages minus that after them, in points, of the runs that have "
                "all their stages, or if there are none, of those that have two. Share: of the means; above 100 if "
                "later stages lose again.",
                "The paper's figure (MNIST at 0.3, CIFAR-10 at 8/255) has no numbers in its text. Its claim: the "
                "stages lower the verified error, and most of the gain is in the first two layers, i.e. a share "
                "above 50.",
            ],
        ),
        *charts,
    ]


def _reached(one: Measured) -> int:
    """The last stage that a run has."""
    return len(one.looks) - 1


def _verified(one: Measured, eps: float, stage: int) -> float:
    return one.errors(eps, f"certify-stage-{stage}").verified["ibp"]


def _errors(runs: Sequence[Measured], eps: float) -> list[list[str]]:
    """For each stage: its number, and verified, attack and standard errors."""
    rows = []
    for stage in range(max(map(_reached, runs)) + 1):
        errors = [one.errors(eps, f"certify-stage-{stage}") for one in runs if _reached(one) >= stage]
        columns = [[e.verified["ibp"] for e in errors], [e.attack for e in errors], [e.standard for e in errors]]
        rows.append([str(stage), *map(spread, columns)])
    return rows


def _share(runs: Sequence[Measured], eps: float) -> list[str]:
    """How many runs, of how many stages; their gains in the first two and in all, and the share."""
    stages = len(runs[0].wanted.looks) - 1
    whole = [one for one in runs if _reached(one) == stages]
    counted = whole or [one for one in runs if _reached(one) >= _FIRST]
    first = [_verified(one, eps, 0) - _verified(one, eps, min(_FIRST, stages)) for one in counted]
    every = [_verified(one, eps, 0) - _verified(one, eps, stages) for one in whole]
    share = "unknown" if not whole else "no gain"
    if every and mean(every) > 0:
        share = f"{100 * mean(first) / mean(every):.0f}"
    return [str(len(counted)), str(stages), spread(first), spread(every), share]


def _partial_notes(measured: Sequence[Measured]) -> list[str]:
    found = {one.wanted.name: (_reached(one), len(one.wanted.looks) - 1) for one in measured}
    return [
        f"{name} has {reached} of its {stages} stages; later ones are missing here."
        for name, (reached, stages) in found.items()
        if reached < stages
    ]


def _chart(title: str, runs: Sequence[Measured], radii: Sequence[float]) -> ChartSection:
    series = []
    stages = range(max(map(_reached, runs)) + 1)
    for eps in radii:
        values = [[_verified(one, eps, stage) for one in runs if _reached(one) >= stage] for stage in stages]
        several = len(runs) > 1
        series.append(
            Series(
                name=f"eps {told(eps)}",
                x=list(map(float, stages)),
                y=[mean(seeds) for seeds in values],
                low=[min(seeds) for seeds in values] if several else None,
                high=[max(seeds) for seeds in values] if several else None,
            )
        )
    return ChartSection(title=title, x="stages trained", y="verified error (IBP), %", series=series)


LAYERWISE_FIGURE = Plan(
    says="verified error before and after layer-wise stages, MNIST and CIFAR-10", wanted=_wanted, sections=_sections
)
