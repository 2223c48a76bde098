"""AdvIBP compared with fixed weights: the same warm-up, then both weights are 1."""

from __future__ import annotations

from statistics import mean
from typing import Any

from advibp.display.eps import format_eps
from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.cells import notes, spread
from advibp.reproduce.plan import Plan
from advibp.reproduce.run_specs import DEFAULT_WARM_UP, Ask, RunSpec, make_task, run_spec

_MODELS = ("dm-small", "dm-medium", "dm-large")
_METHODS = ("advibp", "fixed")
_CLAIM = "9.1 to 31.9"


def _specs(ask: Ask) -> list[RunSpec]:
    setting, radii = ask.setting(), ask.figure_radii()
    tasks = [make_task(ask, radii)]
    changes: dict[str, Any] = ask.at_scale(tiny={}, fast=DEFAULT_WARM_UP, paper={})
    return [
        run_spec(ask, setting, net=net, method=method, eps=ask.main_eps(), seed=seed, tasks=tasks, **changes)
        for net in ask.nets(_MODELS)
        for method in ask.method_names(_METHODS)
        for seed in ask.seed_list(fast=(0, 1, 2))
    ]


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    radii, rows, charts = ask.figure_radii(), [], []
    for net in ask.nets(_MODELS):
        of = {m: [one for one in measured if _of(one) == (net, m)] for m in ask.method_names(_METHODS)}
        verified = {m: [[one.errors(eps).verified["ibp"] for one in of[m]] for eps in radii] for m in of}
        for k, eps in enumerate(radii):
            reduction = ""
            if {"advibp", "fixed"} <= of.keys() and (base := mean(verified["fixed"][k])):
                reduction = f"{100 * (base - mean(verified['advibp'][k])) / base:+.1f}"
            for method, runs in of.items():
                errors = [one.errors(eps) for one in runs]
                attack, standard = spread([e.attack for e in errors]), spread([e.standard for e in errors])
                reductions = [reduction, _CLAIM] if method == "advibp" else ["", ""]
                rows.append([format_eps(eps), net, method, spread(verified[method][k]), *reductions, attack, standard])
        charts.append(
            ChartSection(
                title=f"IBP verified error of {net}",
                x="test eps",
                y="verified error, %",
                kind="bar",
                series=[
                    Series(
                        name=method,
                        x=[format_eps(eps) for eps in radii],
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
            "Reduction: by how much AdvIBP's verified error is below that of fixed weights, in percent of the latter. "
            "The paper's figure shows MNIST at 0.3 and CIFAR-10 at 8/255; its text gives only the range.",
            *notes(ask, measured, ask.setting(), _MODELS),
        ],
    )
    return [table, *charts]


def _of(one: Measured) -> tuple[str, str]:
    return one.spec.recipe.net, one.spec.recipe.method


BASELINE_FIGURE = Plan(description="AdvIBP compared with fixed weights, over seeds", specs=_specs, sections=_sections)
