"""The three cases of g_final, computed by Algorithm 1, and how often they occurred in trainings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce.carry_out import Measured, finished_runs
from advibp.reproduce.plan import Plan
from advibp.reproduce.run_specs import Ask
from advibp.runs.run_files import RunFiles
from advibp.weighting import Moments, Weights, combine


@dataclass(frozen=True)
class Case:
    """Two gradients in the plane, and whether the attack is strong."""

    name: str
    adv: tuple[float, float]
    ibp: tuple[float, float]
    strong: bool = True  # FOSC <= c_t
    ibp_loss: float = 0.0  # L_IBP, a factor of the regularizer


CASES = (
    Case("agreement", (1.0, 0.2), (0.4, 1.4)),
    Case("conflict, attack strong", (1.0, 0.2), (-0.6, 1.2)),
    Case("conflict, attack weak", (1.0, 0.2), (-0.6, 1.2), strong=False),
    Case("conflict, attack weak, with the regularizer", (1.0, 0.2), (-0.6, 1.2), strong=False, ibp_loss=0.5),
)


def solve(case: Case) -> tuple[Weights, Tensor, Tensor]:
    """Return the weights, the gradients (2, 2) and g_final (2,).

    All steps have the same gradients, so that the moments equal them.
    """
    gradients = torch.tensor([case.adv, case.ibp], dtype=torch.float64)
    moments = Moments()
    for _ in range(20):
        moments.update(gradients)
    weights = moments.weights(fosc=0.0 if case.strong else 1.0, c_t=0.5)
    return weights, gradients, combine(weights, gradients, case.ibp_loss)


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    rows: list[list[str]] = []
    charts: list[Section] = []
    for case in CASES:
        weights, (adv, ibp), final = solve(case)
        inner = float(final @ adv), float(final @ ibp)
        kappas = [f"{k:.3f}" for k in (weights.lower, weights.upper, weights.reg)]
        rows.append(
            [
                case.name,
                weights.branch,
                f"{weights.angle:.1f}",
                *kappas,
                f"{_angle(final, adv):.1f}",
                f"{_angle(final, ibp):.1f}",
                *(f"{number:+.4f}" for number in inner),
                _verdict(*inner),
            ]
        )
        charts.append(
            ChartSection(
                title=case.name,
                x="first parameter",
                y="second parameter",
                square=True,
                series=[
                    Series(name=name, x=[0.0, float(g[0])], y=[0.0, float(g[1])])
                    for name, g in (("g_adv", adv), ("g_IBP", ibp), ("g_final", final))
                ],
            )
        )
    head = ["case", "branch", "angle", "kappa_adv", "kappa_IBP", "kappa_reg", "to g_adv", "to g_IBP"]
    head += ["<g_final, g_adv>", "<g_final, g_IBP>", "a small step along -g_final"]
    table = TableSection(
        title="Three cases of g_final",
        head=head,
        rows=rows,
        notes=[
            "Angles in degrees. To first order, a loss decreases if g_final has a positive product with its gradient.",
            "In agreement both losses decrease. In a conflict the loss with priority decreases, and the other one "
            "stays the same: its product is 0.",
            "The regularizer (L_IBP = 0.5 here) changes that: it adds 2 kappa_reg L_IBP g_IBP, so that the product "
            "with g_adv is L_IBP <g_adv, g_IBP> < 0, and the adversarial loss increases.",
        ],
    )
    runs = finished_runs(ask.folders)
    return [table, *_branches(runs), *charts, *(chart for run in runs if (chart := _over_training(run)))]


def _angle(a: Tensor, b: Tensor) -> float:
    return math.degrees(math.acos(max(-1.0, min(1.0, float(a @ b / (a.norm() * b.norm()))))))


def _verdict(adv: float, ibp: float) -> str:
    def moves(product: float) -> str:
        return "stays" if abs(product) < 1e-9 else "decreases" if product > 0 else "increases"

    return f"L_adv {moves(adv)}, L_IBP {moves(ibp)}"


def _branches(runs: Sequence[RunFiles]) -> list[TableSection]:
    """Return the table of how often each case occurred in each phase, for runs with weights from moments."""
    rows = []
    for run in runs:
        for phase in ("ramp", "full", "latent"):
            epochs: list[dict[str, Any]] = [m for m in run.history if m.get("phase") == phase and "branch_agree" in m]
            if epochs:
                shares = [100 * mean(m.get(f"branch_{b}", 0.0) for m in epochs) for b in ("agree", "lower", "upper")]
                angles = [m["angle"] for m in epochs if math.isfinite(m.get("angle", math.nan))]
                angle = f"{mean(angles):.0f}" if angles else ""
                rows.append([run.name, phase, str(len(epochs)), *(f"{s:.1f}" for s in shares), angle])
    if not rows:
        return []
    return [
        TableSection(
            title="Frequency of each case in trainings",
            head=["run", "phase", "epochs", "agreement, %", "attack strong, %", "attack weak, %", "mean angle"],
            rows=rows,
        )
    ]


def _over_training(run: RunFiles) -> ChartSection | None:
    """Return the chart of how often each case occurred per epoch, for a run with seed 0 and weights from moments."""
    epochs = [m for m in run.history if "branch_agree" in m]
    if not epochs or run.recipe.get("seed"):
        return None
    names = {"agree": "agreement", "lower": "adversarial loss first", "upper": "abstract loss first"}
    return ChartSection(
        title=f"Cases over training: {run.name}",
        x="epoch",
        y="steps, %",
        series=[
            Series(
                name=name,
                x=[float(m["epoch"]) for m in epochs],
                y=[100 * m.get(f"branch_{branch}", 0.0) for m in epochs],
            )
            for branch, name in names.items()
        ],
    )


GRADIENT_CASES = Plan(
    description="the three cases of g_final, and which losses they decrease",
    specs=lambda ask: [],
    sections=_sections,
    narrowed_by=(),
)
