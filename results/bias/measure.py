"""Measure the bias of the expected update, for weights from current gradients and for Algorithm 1's, from past ones.

    python results/bias/measure.py          writes bias.json and the table of README.md, in less than a minute

Two quadratic losses over a finite population at fixed parameters: the full gradients are known and constant. With g_t
the batch gradients and gbar the full ones, the bias of an update is the mean of

    s_t = kappa_t (g_t - gbar)      summed over both losses.

If kappa_t depends only on the past and batches are independent, s_t is a martingale difference and its mean is 0. The
mean of s_t over the steps of an independent chain is one sample. Hotelling's T^2 tests whether the mean of the samples
is 0.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from scipy import stats
from torch import Tensor

from advibp.reproduce.bias import BATCH, BETA1, BETA2, weigh
from advibp.reproduce.bias import population as samples

HERE = Path(__file__).parent


class Population(NamedTuple):
    """Gradients, losses and FOSC of N samples at the fixed parameters."""

    gradients: Tensor  # (N, 2, d): of the adversarial and of the abstract loss
    upper: Tensor  # (N,): abstract loss
    fosc: Tensor  # (N,)

    @property
    def c_t(self) -> float:
        """Threshold of FOSC, at which about half of the batches count as strong."""
        return float(self.fosc.mean())


def population(angle: float, n: int) -> Population:
    """Return the samples of `advibp reproduce theory`, with the norm of the adversarial gradient in place of FOSC.

    Both increase with the backpropagated error. The norm of a batch's noise is 0.7 of that of the full adversarial
    gradient, and 0.5 of that of the full abstract gradient.
    """
    gradients, upper = samples(angle, n)
    return Population(gradients, upper, gradients[:, 0].norm(dim=1))


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One rule for weights and for drawing batches."""

    description: str
    angle: float
    weights_from: str = "past"  # past: Algorithm 1; current: m = g_t, v = |g_t|; both: the moments include g_t
    strong: str = "always"  # always: c_t infinite; never: c_t = 0; fosc: the batch's FOSC is compared with c_t
    regularizer: bool = False
    batches_per_epoch: int | None = None  # shuffled without replacement; None: independent draws


class Step(NamedTuple):
    """One step of R chains: the weights and the batch's gradients, losses and FOSC."""

    kappa: Tensor  # (R, 3)
    gradients: Tensor  # (R, 2, d)
    upper: Tensor  # (R,)
    fosc: Tensor  # (R,)


def walk(rule: Rule, people: Population, *, chains: int, steps: int, seed: int, batch: int = BATCH) -> Iterator[Step]:
    """Run many independent chains of Algorithm 1 at fixed parameters."""
    random = torch.Generator().manual_seed(seed)
    n, _, d = people.gradients.shape
    every = torch.cat([people.gradients.flatten(1), people.upper[:, None], people.fosc[:, None]], 1)
    m, v = torch.zeros(chains, 2, d, dtype=torch.float64), torch.zeros(chains, 2, dtype=torch.float64)
    order = torch.empty(0)
    for t in range(steps):
        if rule.batches_per_epoch is None:
            rows = torch.randint(n, (chains, batch), generator=random)
        else:
            k = t % rule.batches_per_epoch
            order = torch.rand(chains, n, generator=random).argsort(1) if k == 0 else order
            rows = order[:, k * batch : (k + 1) * batch]
        drawn = every[rows].mean(1)
        g, upper, fosc = drawn[:, : 2 * d].view(chains, 2, d), drawn[:, -2], drawn[:, -1]
        strong = fosc <= people.c_t if rule.strong == "fosc" else torch.full((chains,), rule.strong == "always")

        moved_m, moved_v = m + (1 - BETA1) * (g - m), v + (1 - BETA2) * (g.norm(dim=2) - v)
        if rule.weights_from == "current":
            kappa = weigh(g, g.norm(dim=2), strong=strong)
        elif rule.weights_from == "both":
            kappa = weigh(moved_m / (1 - BETA1 ** (t + 1)), moved_v / (1 - BETA2 ** (t + 1)), strong=strong)
        elif t == 0:
            kappa = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64).expand(chains, 3)
        else:
            kappa = weigh(m / (1 - BETA1**t), v / (1 - BETA2**t), strong=strong)
        m, v = moved_m, moved_v
        yield Step(kappa, g, upper, fosc)


def chain_means(rule: Rule, people: Population, *, chains: int, steps: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the means of s_t and of the update over the steps of each chain, both (R, d)."""
    d = people.gradients.shape[2]
    full, full_upper = people.gradients.mean(0), people.upper.mean()
    bias, update = torch.zeros(chains, d, dtype=torch.float64), torch.zeros(chains, d, dtype=torch.float64)
    for kappa, g, upper, _ in walk(rule, people, chains=chains, steps=steps, seed=seed):
        actual, ideal = (kappa[:, :2, None] * g).sum(1), (kappa[:, :2, None] * full).sum(1)
        if rule.regularizer:  # the current loss multiplies the current gradient
            actual = actual + 2 * kappa[:, 2:] * upper[:, None] * g[:, 1]
            ideal = ideal + 2 * kappa[:, 2:] * full_upper * full[1]
        bias += (actual - ideal) / steps
        update += actual / steps
    return bias, update


def hotelling(samples: Tensor) -> tuple[float, float]:
    """Test whether the mean of these rows (R, d) is 0.

    Returns:
        The p-value, and the radius of a ball around the mean that contains its 95 % confidence ellipsoid.
    """
    r, d = samples.shape
    covariance = torch.cov(samples.T) / r
    mean = samples.mean(0)
    t2 = float(mean @ torch.linalg.solve(covariance, mean))
    p = float(stats.f.sf(t2 * (r - d) / (d * (r - 1)), d, r - d))
    reach = stats.f.ppf(0.95, d, r - d) * d * (r - 1) / (r - d)
    return p, math.sqrt(reach * float(torch.linalg.eigvalsh(covariance)[-1]))


def measure(rule: Rule, *, chains: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the bias of one rule relative to the norm of its expected update, with its 95 % confidence interval."""
    steps = max(steps, rule.batches_per_epoch or 0)  # whole epochs
    people = population(rule.angle, BATCH * (rule.batches_per_epoch or 32))
    biases, updates = chain_means(rule, people, chains=chains, steps=steps, seed=seed)
    p, radius = hotelling(biases)
    size, bias = float(updates.mean(0).norm()), float(biases.mean(0).norm())
    return {
        "rule": rule.description,
        "angle": rule.angle,
        "p": p,
        "relative_bias": bias / size,
        "low": max(0.0, bias - radius) / size,
        "high": (bias + radius) / size,
        "expected_update": size,
        "seed": seed,
        "chains": chains,
        "steps": steps,
        "population": len(people.fosc),
    }


def p_values(rule: Rule, *, repetitions: int, chains: int, steps: int, seed: int) -> list[float]:
    """Return the p-values of many independent repetitions, which are uniform on [0, 1] if there is no bias."""
    people = population(rule.angle, BATCH * 32)
    biases, _ = chain_means(rule, people, chains=repetitions * chains, steps=steps, seed=seed)
    return [hotelling(part)[0] for part in biases.split(chains)]


CURRENT, BOTH, PAST = "weights from the current gradients", "moments that include the current gradient", "Algorithm 1"
RULES = [
    Rule(description=f"{CURRENT}; the losses agree", angle=60, weights_from="current"),
    Rule(description=f"{BOTH}; the losses agree", angle=60, weights_from="both"),
    Rule(description=f"{PAST}; the losses agree", angle=60),
    Rule(description=f"{CURRENT}; conflict", angle=120, weights_from="current"),
    Rule(description=f"{BOTH}; conflict", angle=120, weights_from="both"),
    Rule(description=f"{PAST}; conflict, c_t infinite", angle=120),
    Rule(description=f"{PAST}; conflict, c_t = 0, no regularizer", angle=120, strong="never"),
    Rule(description=f"{PAST}; conflict, c_t = 0, regularizer", angle=120, strong="never", regularizer=True),
    Rule(description=f"{PAST}; conflict, strong or weak by the current batch's FOSC", angle=120, strong="fosc"),
    Rule(description=f"{PAST}; conflict, shuffled, 8 batches per epoch", angle=120, batches_per_epoch=8),
    Rule(description=f"{PAST}; conflict, shuffled, 32 batches per epoch", angle=120, batches_per_epoch=32),
    Rule(description=f"{PAST}; conflict, shuffled, 128 batches per epoch", angle=120, batches_per_epoch=128),
]


def table(rows: list[dict[str, Any]]) -> str:
    lines = ["| weights and draws | bias, % of the expected update (95 %) | p |", "| --- | --- | --- |"]
    for row in rows:
        low, bias, high = (100 * row[key] for key in ("low", "relative_bias", "high"))
        p = f"{row['p']:.2g}" if row["p"] > 1e-300 else "< 1e-300"
        lines.append(f"| {row['rule']} | {bias:.2f} ({low:.2f} to {high:.2f}) | {p} |")
    return "\n".join(lines)


def main(chains: int = 20_000, steps: int = 64, seed: int = 0) -> None:
    torch.set_num_threads(1)
    began = time.process_time()
    rows = [measure(rule, chains=chains, steps=steps, seed=seed + i) for i, rule in enumerate(RULES)]
    repeated = p_values(RULES[5], repetitions=200, chains=100, steps=16, seed=seed + len(RULES))
    found = {
        "command": "python results/bias/measure.py",
        "seed": seed,
        "torch": torch.__version__,
        "cpu_seconds": round(time.process_time() - began, 1),
        "batch": BATCH,
        "betas": [BETA1, BETA2],
        "rows": rows,
        "uniform": {"rule": RULES[5].says, "repetitions": 200, "ks_p": float(stats.kstest(repeated, "uniform").pvalue)},
    }
    (HERE / "bias.json").write_text(json.dumps(found, indent=1) + "\n")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text("utf-8").partition("| weights")
    after = rest[rest.index("\n\n") :]
    readme.write_text(before + table(rows) + after, "utf-8")
    print(table(rows), f"\np-values of 200 repetitions of Algorithm 1 are uniform: p = {found['uniform']['ks_p']:.2g}")


if __name__ == "__main__":
    main()
