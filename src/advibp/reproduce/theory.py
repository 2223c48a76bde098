"""Compare the bounds of Theorems 1 and 2 with measured gradient norms, and measure the bias of the weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.reproduce import bias
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.convergence import Agreement, Conflict, Path
from advibp.reproduce.plan import Plan
from advibp.reproduce.run_specs import Ask


def _sections(ask: Ask, measured: list[Measured]) -> list[Section]:
    steps = ask.at_scale(tiny=(10, 40, 160), fast=(10, 100, 400, 1600), paper=(10, 100, 400, 1600, 6400))
    repetitions = ask.at_scale(tiny=20, fast=100, paper=400)
    chains = ask.at_scale(tiny=4000, fast=20_000, paper=100_000)
    return [
        *_first(steps, repetitions),
        *_second(steps, repetitions),
        _bias(chains, ask.at_scale(tiny=16, fast=64, paper=64)),
    ]


def _first(steps: tuple[int, ...], repetitions: int) -> list[Section]:
    problems = {
        "exact attack": (Agreement(), steps),
        "attack with FOSC 0.5": (Agreement(delta=0.5), steps[:2]),
        "little noise": (Agreement(sigma=0.5), steps[:2]),
        "abstract gradient 30 times as noisy": (Agreement(sigma=1.0, abstract_noise=30.0), steps[1:3]),
    }
    rows = []
    curve: list[tuple[float, float, float]] = []
    for name, (problem, every) in problems.items():
        for t in every:
            proof = problem.run(t, repetitions=repetitions)
            moments = problem.run(t, repetitions=repetitions, seed=1, moments=True)
            rows.append(
                [
                    name,
                    str(t),
                    f"{problem.step_size(t):.4f}",
                    f"{proof.average:.3f}",
                    f"{moments.average:.3f}",
                    f"{problem.bound(t):.3f}",
                    _stands(proof.average, problem.bound(t)),
                    f"{problem.proved(t):.3f}",
                    _stands(proof.average, problem.proved(t)),
                    f"{100 * proof.premise:.0f}",
                ]
            )
            if name == "exact attack":
                curve.append((proof.average, moments.average, problem.bound(t)))
    least = math.ceil(Agreement().least_steps())
    table = TableSection(
        title="Theorem 1: mean squared gradient norm of the robust loss, gradients in agreement",
        head=[
            "problem",
            "T",
            "eta",
            "measured",
            "by Algorithm 1",
            "bound",
            "holds",
            "proof's bound",
            "holds too",
            "agree, %",
        ],
        rows=rows,
        notes=[
            "measured: with the step of the proof, which uses the true gradient norms; by Algorithm 1: with weights "
            f"from past gradients and the same eta. Means over {repetitions} repetitions, in float64; L, Delta, sigma, "
            "mu and delta are exact.",
            "The printed bound omits the case eta = 1 / (6 L). It is valid only for T >= 36 L Delta / sigma^2 "
            f"(here {least} for the exact attack), and fails with little noise and few steps. `proof's bound`, "
            "4 Delta / (eta T) + 4 L eta sigma^2 + 7 L_theta_x^2 delta / (3 mu), follows from the telescoping sum of "
            "the proof for every T.",
            "The proof replaces E|gbar|^2 by |E gbar|^2, so that no bound contains the noise of the abstract gradient. "
            "With large noise both bounds eventually fail. Algorithm 1 tolerates it better than the step of the proof, "
            "because its norms include the noise.",
        ],
    )
    return [table, _chart("Theorem 1", steps, curve, ("measured", "by Algorithm 1", "bound"))]


def _chart(title: str, steps: Sequence[int], curve: Sequence[tuple[float, ...]], names: Sequence[str]) -> ChartSection:
    """Return a chart over T with one series per name; each point of `curve` has one number per name."""
    series = [
        Series(name=name, x=[str(t) for t in steps], y=[point[k] for point in curve]) for k, name in enumerate(names)
    ]
    return ChartSection(title=title, x="T", y="mean squared gradient norm", log=True, series=series)


def _second(steps: tuple[int, ...], repetitions: int) -> list[Section]:
    problems = {"near": (Conflict(), steps), "far": (Conflict(start=1.0), (5,))}
    rows = []
    curve: list[tuple[float, float, float]] = []
    for name, (problem, every) in problems.items():
        for t in every:
            path = problem.run(t, repetitions=repetitions)
            rows.append(_conflict_row(name, problem, t, path))
            if name == "near":
                curve.append((path.average, problem.bound(path), problem.with_a_mean(path)))
    table = TableSection(
        title="Theorem 2: mean squared gradient norm of the abstract loss, gradients in conflict, weak attack",
        head=[
            "start",
            "T",
            "eta",
            "first loss",
            "last loss",
            "measured",
            "bound",
            "holds",
            "with a mean",
            "holds too",
            "<= 2",
        ],
        rows=rows,
        notes=[
            f"Means over {repetitions} repetitions of the proof's step, in float64; the gradients conflict in every "
            "step.",
            "The printed bound is vacuous: it has a sum over t instead of a mean. Since each term is above 9/4, it "
            "grows as sqrt(T), while the gradient norm stays constant even without any training. Measured values are "
            "below it, and decrease.",
            "`with a mean`: the proof's last inequality, divided by eta T / 2, has half a mean instead of the sum and "
            "decreases as 1 / sqrt(T). Measured values stay below it as long as the steps are small.",
            "The proof omits the factor (1 + L_IBP)^2 of |step|^2, so that the step size is too large if the loss is "
            "large: with eta (1 + L_IBP) > 2 / Lbar the loss diverges (row `far`). There the printed bound holds only "
            "because it grows with the fourth power of the loss and the measured value with the square.",
            "The last line of the printed proof is `<= 2`. This is not a bound (row `far`), because gradients can have "
            "any scale.",
        ],
    )
    return [table, _chart("Theorem 2", steps, curve, ("measured", "bound", "with a mean"))]


def _conflict_row(name: str, problem: Conflict, t: int, path: Path) -> list[str]:
    bound, mean = problem.bound(path), problem.with_a_mean(path)
    return [
        name,
        str(t),
        f"{min(problem.step_sizes(t, float(path.losses[0]))):.4f}",
        _number(float(path.losses[0])),
        _number(float(path.losses[-1])),
        _number(path.average),
        _number(bound),
        _stands(path.average, bound),
        _number(mean),
        _stands(path.average, mean),
        _stands(path.average, 2.0),
    ]


def _number(value: float) -> str:
    return f"{value:.3f}" if abs(value) < 1e6 else f"{value:.1e}"


def _stands(measured: float, bound: float) -> str:
    return "yes" if measured <= bound else "no"


def _bias(chains: int, steps: int) -> Section:
    rows = []
    for k, rule in enumerate(bias.RULES):
        result = bias.measure(rule, chains=chains, steps=steps, seed=k)
        p = f"{result.p:.2g}" if result.p > 1e-300 else "< 1e-300"
        rows.append([rule.description, f"{100 * result.share:.2f}", f"{100 * result.high:.2f}", p])
    return TableSection(
        title="Bias of the expected update, in percent of its norm",
        head=["weights", "bias", "at most (95 %)", "p of no bias"],
        rows=rows,
        notes=[
            f"{chains} independent chains of {steps} steps, batches of {bias.BATCH} drawn with replacement from two "
            "quadratic losses at fixed parameters.",
            "Weights that depend on the current gradients bias the update. Algorithm 1's weights show no significant "
            "bias. Its regularizer does, because it multiplies the current loss by the current gradient.",
        ],
    )


THEORY = Plan(
    description="bounds of Theorems 1 and 2, measured gradient norms, bias of the weights",
    specs=lambda ask: [],
    sections=_sections,
    narrowed_by=(),
)
