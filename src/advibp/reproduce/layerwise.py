"""Layer-wise stages: errors before them and after each, and the gain of the first two stages.

A run in a --reuse folder that is unfinished, or has fewer stages, is used with the stages it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from statistics import mean
from typing import Any

import torch

from advibp import nets
from advibp.data.fetch.catalogue import find
from advibp.display.eps import format_eps
from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import notes, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.published import DATA
from advibp.reproduce.run_specs import (
    CIFAR10,
    FIGURE_RADII,
    MNIST,
    Ask,
    RunSpec,
    Setting,
    make_task,
    run_spec,
)
from advibp.training.stages import Stages

_MODELS = ("dm-small", "dm-medium", "dm-large")
_FIRST = 2  # stages with most of the gain, according to the paper


@cache
def count_stages(net: str, data: str) -> int:
    """Return the number of layer-wise stages of a network: one for each layer but the last."""
    row = find(data)
    built = nets.build(net, row.input_shape, row.classes, seed=0)
    return Stages(built).count("all", torch.zeros(2, *row.input_shape))


def _halves(ask: Ask) -> list[tuple[Setting, tuple[float, ...]]]:
    """Return the data sets of the figure with their test radii; by default both of the paper's."""
    if ask.data or ask.scale == "tiny":
        return [(ask.setting(), ask.figure_radii())]
    radii = ask.radii((*FIGURE_RADII["mnist"], *FIGURE_RADII["cifar10"]), ())
    halves = [(setting, tuple(e for e in radii if e in FIGURE_RADII[setting.data])) for setting in (MNIST, CIFAR10)]
    return [(setting, tested) for setting, tested in halves if tested]


def _specs(ask: Ask) -> list[RunSpec]:
    changes: dict[str, Any] = ask.at_scale(
        tiny={"stages": "all", "stage_epochs": 1},
        fast={"epochs": 40, "stages": "all", "stage_epochs": 10},
        paper={},  # all of them already
    )
    steps = 200 if ask.scale == "paper" else 40
    return [
        run_spec(
            ask,
            setting,
            net=net,
            method=method,
            eps=ask.main_eps(setting),
            seed=seed,
            tasks=[
                make_task(ask, radii, steps=steps, stage=stage) for stage in range(count_stages(net, setting.data) + 1)
            ],
            partial=True,
            **changes,
        )
        for setting, radii in _halves(ask)
        for net in ask.nets(_MODELS[:1])
        for method in ask.method_names(("advibp",))
        for seed in ask.seed_list(fast=(0, 1, 2))
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows, shares, charts, lines = [], [], [], []
    for setting, radii in _halves(ask):
        data = ask.data or setting.data
        half = [one for one in measured if one.spec.recipe.data == data]
        for net, method in dict.fromkeys((one.spec.recipe.net, one.spec.recipe.method) for one in half):
            runs = [o for o in half if (o.spec.recipe.net, o.spec.recipe.method) == (net, method)]
            first = [DATA.get(data, data), net, method]
            for eps in radii:
                rows += [[*first, format_eps(eps), *cells] for cells in _errors(runs, eps)]
                shares.append([*first, format_eps(eps), *_share(runs, eps)])
            charts.append(_chart(", ".join(first), runs, radii))
        lines += notes(ask, half, setting, _MODELS)
    key = ["data", "net", "method", "eps"]
    return [
        TableSection(
            title="Layer-wise stages",
            head=[*key, "stage", "verified (IBP)", "PGD", "standard"],
            rows=rows,
            notes=[
                "Stage 0 is the network before the first stage; stage k is the network after k layers were frozen one "
                "by one.",
                *_partial_notes(measured),
                *dict.fromkeys(lines),
            ],
        ),
        TableSection(
            title="Gain of the first two stages",
            head=[*key, "runs", "stages", "gain of the first two", "gain of all", "share of the first two, %"],
            rows=shares,
            notes=[
                "Gain: IBP verified error before the stages minus that after them, in percentage points, over the runs "
                "with all stages, or if there are none, over those with two. Share: ratio of the means; it is above "
                "100 if later stages increase the error again.",
                "The paper gives no numbers for its figure (MNIST at 0.3, CIFAR-10 at 8/255). It claims that the "
                "stages reduce the verified error, and that most of the gain comes from the first two layers, i.e. a "
                "share above 50.",
            ],
        ),
        *charts,
    ]


def _reached(one: Measured) -> int:
    """Return the number of the last stage of a run."""
    return len(one.tasks) - 1


def _verified(one: Measured, eps: float, stage: int) -> float:
    return one.errors(eps, f"certify-stage-{stage}").verified["ibp"]


def _errors(runs: Sequence[Measured], eps: float) -> list[list[str]]:
    """Return a row per stage: its number, and verified, attack and standard errors."""
    rows = []
    for stage in range(max(map(_reached, runs)) + 1):
        errors = [one.errors(eps, f"certify-stage-{stage}") for one in runs if _reached(one) >= stage]
        columns = [[e.verified["ibp"] for e in errors], [e.attack for e in errors], [e.standard for e in errors]]
        rows.append([str(stage), *map(spread, columns)])
    return rows


def _share(runs: Sequence[Measured], eps: float) -> list[str]:
    """Return five cells: runs, stages, gain of the first two stages, gain of all, and the share."""
    stages = len(runs[0].spec.tasks) - 1
    complete = [one for one in runs if _reached(one) == stages]
    counted = complete or [one for one in runs if _reached(one) >= _FIRST]
    first = [_verified(one, eps, 0) - _verified(one, eps, min(_FIRST, stages)) for one in counted]
    total = [_verified(one, eps, 0) - _verified(one, eps, stages) for one in complete]
    share = "unknown" if not complete else "no gain"
    if total and mean(total) > 0:
        share = f"{100 * mean(first) / mean(total):.0f}"
    return [str(len(counted)), str(stages), spread(first), spread(total), share]


def _partial_notes(measured: Sequence[Measured]) -> list[str]:
    counts = {one.spec.name: (_reached(one), len(one.spec.tasks) - 1) for one in measured}
    return [
        f"{name} has only {reached} of its {stages} stages."
        for name, (reached, stages) in counts.items()
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
                name=f"eps {format_eps(eps)}",
                x=list(map(float, stages)),
                y=[mean(seeds) for seeds in values],
                low=[min(seeds) for seeds in values] if several else None,
                high=[max(seeds) for seeds in values] if several else None,
            )
        )
    return ChartSection(title=title, x="stages trained", y="verified error (IBP), %", series=series)


LAYERWISE_FIGURE = Plan(
    description="verified error before and after layer-wise stages, MNIST and CIFAR-10",
    specs=_specs,
    sections=_sections,
)
