"""Measure the bias of the expected update, for weights from current gradients and for Algorithm 1's, from past ones.

Two quadratic losses over a finite population, at fixed parameters, so that the full gradients gbar are known. With g_t
the gradients of a batch, the bias of an update is the mean of kappa_t (g_t - gbar), summed over both losses. It is 0 if
kappa_t depends only on the past and batches are independent. Many independent chains run at once. The mean over the
steps of a chain is one sample, and Hotelling's T^2 tests whether the mean of the samples is 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

BETA1, BETA2 = 0.9, 0.99  # the paper's
BATCH, POPULATION, PARAMETERS = 8, 256, 4
_CHI2_95 = 9.4877  # of 4 degrees of freedom


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One setting of the experiment."""

    description: str
    angle: float  # between the full gradients, in degrees
    from_past: bool  # Algorithm 1; otherwise m = g_t, v = |g_t|
    strong: bool = True
    regularizer: bool = False


RULES = (
    Rule(description="weights from the current gradients; agreement", angle=60, from_past=False),
    Rule(description="Algorithm 1; agreement", angle=60, from_past=True),
    Rule(description="weights from the current gradients; conflict", angle=120, from_past=False),
    Rule(description="Algorithm 1; conflict, attack strong", angle=120, from_past=True),
    Rule(description="Algorithm 1; conflict, attack weak, no regularizer", angle=120, from_past=True, strong=False),
    Rule(
        description="Algorithm 1; conflict, attack weak, regularizer",
        angle=120,
        from_past=True,
        strong=False,
        regularizer=True,
    ),
)


@dataclass(frozen=True)
class Bias:
    """The bias, relative to the norm of the expected update."""

    share: float
    high: float  # upper end at 95 % confidence
    p: float  # p-value of "no bias"


def weigh(m: Tensor, v: Tensor, *, strong: bool | Tensor = True) -> Tensor:
    """Algorithm 1 for many chains at once: m (R, 2, d), v (R, 2) -> kappa_adv, kappa_IBP, kappa_reg (R, 3).

    `strong`, whether FOSC <= c_t, is one value or one per chain (R,).
    """
    p = (m[:, 0] * m[:, 1]).sum(1)
    zero, one = torch.zeros_like(p), torch.ones_like(p)
    bisector = m[:, 0] / v[:, :1] + m[:, 1] / v[:, 1:]
    gamma = 0.5 * (m.sum(1) * bisector).sum(1) / (bisector**2).sum(1)
    agree = torch.stack([gamma / v[:, 0], gamma / v[:, 1], zero], 1)
    adv = torch.stack([one, -p / v[:, 1] ** 2, zero], 1)
    ibp = torch.stack([-p / v[:, 0] ** 2, one, one / 2], 1)
    conflict = torch.where(torch.as_tensor(strong).expand(len(m))[:, None], adv, ibp)
    return torch.where((p > 0)[:, None], agree, conflict)


def population(angle: float, n: int = POPULATION) -> tuple[Tensor, Tensor]:
    """Return the gradients (N, 2, d) of each sample's losses and its abstract loss (N,), at the fixed parameters.

    The two losses of a sample share part of their noise, like two losses of one image.
    """
    random = torch.Generator().manual_seed(0)
    shared, own_x, own_y = torch.randn(3, n, PARAMETERS, generator=random, dtype=torch.float64)
    noise = torch.stack([shared + own_x, shared + own_y], 1) / math.sqrt(2)
    noise -= noise.mean(0)
    full = torch.zeros(2, PARAMETERS, dtype=torch.float64)
    full[0, 0] = 1
    full[1, :2] = 2 * torch.tensor([math.cos(math.radians(angle)), math.sin(math.radians(angle))])
    curvature = torch.linspace(0.5, 2, PARAMETERS, dtype=torch.float64)
    away = full[1] / curvature + noise[:, 1]  # from each sample's minimizer of the abstract loss
    gradients = torch.stack([full[0] + noise[:, 0], curvature * away], 1)
    return gradients, (curvature * away**2).sum(1) / 2 + 0.5


def measure(rule: Rule, *, chains: int, steps: int, seed: int) -> Bias:
    """Run the experiment with this many chains and steps."""
    random = torch.Generator().manual_seed(seed)
    gradients, losses = population(rule.angle)
    full, full_loss = gradients.mean(0), losses.mean()
    m = torch.zeros(chains, 2, PARAMETERS, dtype=torch.float64)
    v = torch.zeros(chains, 2, dtype=torch.float64)
    bias, update = torch.zeros_like(m[:, 0]), torch.zeros_like(m[:, 0])
    for t in range(steps + 1):
        rows = torch.randint(POPULATION, (chains, BATCH), generator=random)
        g, loss = gradients[rows].mean(1), losses[rows].mean(1)
        if t > 0:  # there are past gradients
            past = m / (1 - BETA1**t), v / (1 - BETA2**t)
            kappa = weigh(*(past if rule.from_past else (g, g.norm(dim=2))), strong=rule.strong)
            actual, ideal = ((kappa[:, :2, None] * gradient).sum(1) for gradient in (g, full))
            if rule.regularizer:
                actual = actual + 2 * kappa[:, 2:] * loss[:, None] * g[:, 1]
                ideal = ideal + 2 * kappa[:, 2:] * full_loss * full[1]
            bias += (actual - ideal) / steps
            update += actual / steps
        m, v = torch.lerp(m, g, 1 - BETA1), torch.lerp(v, g.norm(dim=2), 1 - BETA2)
    return _tested(bias, float(update.mean(0).norm()))


def _tested(samples: Tensor, size: float) -> Bias:
    """Hotelling's T^2 of samples (R, 4). With many chains its distribution is chi^2 with 4 degrees of freedom."""
    mean, covariance = samples.mean(0), torch.cov(samples.T) / len(samples)
    t2 = float(mean @ torch.linalg.solve(covariance, mean))
    p = math.exp(-t2 / 2) * (1 + t2 / 2)  # of chi^2 with 4 degrees of freedom
    reach = math.sqrt(_CHI2_95 * float(torch.linalg.eigvalsh(covariance)[-1]))
    length = float(mean.norm())
    return Bias(length / size, (length + reach) / size, p)
