"""AdvIBP against fixed weights: the same warm-up, then both weights 1."""

from __future__ import annotations

from statistics import mean
from typing import Any

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import notes, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.wanted import Ask, Wanted, look, told, want

_MODELS = ("dm-small", "dm-medium", "dm-large")
_METHODS = ("advibp", "fixed")
_CLAIM = "9.1 to 31.9"


def _wanted(ask: Ask) -> list[Wanted]:
    setting, radii = ask.setting(), ask.figure_radii()
    looks = [look(ask, radii, steps=200 if ask.scale == "paper" else 40)]
    changes: dict[str, Any] = ask.at_scale(tiny={}, fast={"epochs": 20, "ramp": "50%"}, paper={})
    return [
        want(ask, setting, net=net, method=method, eps=ask.main_eps(), seed=seed, looks=looks, **changes)
        for net in ask.nets(_MODELS)
        for method in ask.rules(_METHODS)
        for seed in ask.chances(fast=(0, 1, 2))
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    radii, rows, charts = ask.figure_radii(), [], []
    for net in ask.nets(_MODELS):
        of = {m: [one for one in measured if _of(one) == (net, m)] for m in ask.rules(_METHODS)}
        verified = {m: [[one.errors(eps).verified["ibp"] for one in of[m]] for eps in radii] for m in of}
        for k, eps in enumerate(radii):
            cut = ""
            if {"advibp", "fixed"} <= of.keys() and (base := mean(verified["fixed"][k])):
                cut = f"{100 * (base - mean(verified['advibp'][k])) / base:+.1f}"
            for method, runs in of.items():
                errors = [one.errors(eps) for one in runs]
                attack, standard = spread([e.attack for e in errors]), spread([e.standard for e in errors])
                saved = [cut, _CLAIM] if method == "advibp" else ["", ""]
                rows.append([told(eps), net, method, spread(verified[method][k]), *saved, attack, standard])
        charts.append(
            ChartSection(
                title=f"IBP verified error of {net}",
                x="test eps",
                y="verified error, %",
                kind="bar",
                series=[
                    Series(
                        name=method,
                        x=[told(eps) for eps in radii],
                        y=[mean(seeds) for seeds in values],
                        low=[min(seeds) for seeds in values] if len(values[0]) > 1 else None,
                        high=[max(seeds) for seeds in values] if len(values[0]) > 1 else None,
                    )
                    for method, values in verified.items()
                ],
            )
        )
    head = ["eps", "net", "method", "verified (IBP)", "reduction, %", "reduction, paper, %", "PGD", "standard"]
    table = TableSection(
        title="AdvIBP against fixed weights",
        head=head,
        rows=rows,
        notes=[
            "Reduction: the part of fixed weights' verified error that AdvIBP saves; below 0, it adds to it. The "
            "paper's figure is of MNIST at 0.3 and CIFAR-10 at 8/255; its text gives the range alone.",
            *notes(ask, measured, ask.setting(), _MODELS),
        ],
    )
    return [table, *charts]


def _of(one: Measured) -> tuple[str, str]:
    return one.wanted.recipe.net, one.wanted.recipe.method


BASELINE_FIGURE = Plan(says="AdvIBP against fixed weights, over seeds", wanted=_wanted, sections=_sections)
