"""What layer-wise stages gain: errors before them and after each."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import mean
from typing import Any

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import notes, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.wanted import Ask, Wanted, look, told, want

_STAGES = (0, 1, 2)
_MODELS = ("dm-small", "dm-medium", "dm-large")


def _wanted(ask: Ask) -> list[Wanted]:
    setting, radii = ask.setting(), ask.figure_radii()
    changes: dict[str, Any] = ask.at_scale(
        tiny={"stages": 2, "stage_epochs": 1}, fast={"epochs": 40, "stages": 2, "stage_epochs": 10}, paper={}
    )
    looks = [look(ask, radii, steps=200 if ask.scale == "paper" else 40, stage=stage) for stage in _STAGES]
    return [
        want(ask, setting, net=net, method=method, eps=ask.main_eps(), seed=seed, looks=looks, **changes)
        for net in ask.nets(_MODELS[:1])
        for method in ask.rules(("advibp",))
        for seed in ask.chances(fast=(0, 1, 2))
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    radii, rows, charts = ask.figure_radii(), [], []
    for net, method in dict.fromkeys((one.wanted.recipe.net, one.wanted.recipe.method) for one in measured):
        runs = [o for o in measured if (o.wanted.recipe.net, o.wanted.recipe.method) == (net, method)]
        for eps in radii:
            for stage in _STAGES:
                errors = [one.errors(eps, f"certify-stage-{stage}") for one in runs]
                verified, attack = [e.verified["ibp"] for e in errors], [e.attack for e in errors]
                measured_here = [spread(values) for values in (verified, attack, [e.standard for e in errors])]
                rows.append([net, method, told(eps), str(stage), *measured_here])
        charts.append(_chart(f"{net}, {method}", runs, radii))
    head = ["net", "method", "eps", "stage", "verified (IBP)", "PGD", "standard"]
    table = TableSection(
        title="Layer-wise stages",
        head=head,
        rows=rows,
        notes=[
            "Stage 0 is the network before the first stage; stage k after k layers were frozen, one after the other.",
            "The paper's figure (MNIST at 0.3, CIFAR-10 at 8/255) has no numbers in its text; its claim: stages lower "
            "the verified error, most of it in the first two.",
            *notes(ask, measured, ask.setting(), _MODELS),
        ],
    )
    return [table, *charts]


def _chart(title: str, runs: Sequence[Measured], radii: Sequence[float]) -> ChartSection:
    series = []
    for eps in radii:
        values = [[one.errors(eps, f"certify-stage-{stage}").verified["ibp"] for one in runs] for stage in _STAGES]
        several = len(runs) > 1
        series.append(
            Series(
                name=f"eps {told(eps)}",
                x=list(map(float, _STAGES)),
                y=[mean(seeds) for seeds in values],
                low=[min(seeds) for seeds in values] if several else None,
                high=[max(seeds) for seeds in values] if several else None,
            )
        )
    return ChartSection(title=title, x="stages trained", y="verified error (IBP), %", series=series)


LAYERWISE_FIGURE = Plan(says="verified error before and after layer-wise stages", wanted=_wanted, sections=_sections)
