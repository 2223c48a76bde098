"""A problem in which every constant of Theorems 1 and 2 is known, and SGD on it with the theorems' step sizes.

Theorem 1 (the gradients agree). A sample x_i in R^d, parameters theta in R^d, a perturbation |xi|_inf <= eps:

    l(theta; x_i, xi) = |theta - x_i|^2 / 2 + b theta' xi - mu |xi|^2 / 2

is strongly concave in xi, with L_theta_theta = 1 and L_theta_x = L_x_theta = b. Its maximiser is clip(b theta / mu),
so the robust loss is |theta - x_i|^2 / 2 + sum_j huber(b theta_j), and its gradient has the Lipschitz constant
L = 1 + b^2 / mu exactly. The abstract loss treats the terms one by one, as intervals do, and is smoothed:

    max b theta' xi + max -mu |xi|^2 / 2 = eps b |theta|_1 <= sum_j ((b theta_j)^2 / (2 mu) + mu eps^2 / 2).

The noise of a batch is that of its mean x_i, the same for every theta: sigma^2 = tr cov(x) / batch, exactly. Since the
minimiser lies where nothing is clipped, both gradients have equal signs in every coordinate, everywhere.

Theorem 2 (they conflict, the attack is weak). theta = (a, b), with a in R and b in R^d:

    robust:    w/2 (1 - a / sqrt(1 + a^2)), which falls in a
    abstract:  w + s (a + sqrt(1 + a^2)) + h |b - y_i|^2 / 2, which rises in a, and lies above it since it is >= w

so that the gradients conflict everywhere. Lbar = max(s, h), and w > 1/2 is what the theorem asks of the loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.reproduce.bias import BETA1, BETA2, weigh


class Path(NamedTuple):
    """Means over repetitions at each step: of the squared gradient norm, and of the loss that is minimised."""

    gradients: Tensor  # (T,)
    losses: Tensor  # (T,)
    premise: float  # the share of steps in which the gradients stood as the theorem assumes

    @property
    def average(self) -> float:
        """What both theorems bound."""
        return float(self.gradients.mean())


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The problem of Theorem 1. `delta` is the FOSC of the attack, 0: it finds the maximum."""

    sigma: float = 4.0
    delta: float = 0.0
    abstract_noise: float = 0.0  # what the abstract gradient has in addition to sigma
    d: int = 10
    b: float = 1.0
    mu: float = 2.0
    eps: float = 1.5
    centre: float = 2.0  # each coordinate of the mean of x_i
    start: float = 4.0  # each coordinate of the first theta

    @property
    def L(self) -> float:
        return 1 + self.b**2 / self.mu

    def perturbation(self, theta: Tensor) -> Tensor:
        """The maximiser, or on the way from 0 to it the first point whose FOSC is at most delta."""
        best = (self.b * theta / self.mu).clamp(-self.eps, self.eps)
        if self.delta == 0:
            return best
        low, high = torch.zeros(len(theta), 1, dtype=theta.dtype), torch.ones(len(theta), 1, dtype=theta.dtype)
        for _ in range(12):  # FOSC falls on the way
            middle = (low + high) / 2
            weak = (self.fosc(theta, middle * best) > self.delta)[:, None]
            low, high = torch.where(weak, middle, low), torch.where(weak, high, middle)
        return high * best

    def fosc(self, theta: Tensor, xi: Tensor) -> Tensor:
        slope = self.b * theta - self.mu * xi
        return self.eps * slope.abs().sum(1) - (xi * slope).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        """Of the robust loss, (R, d)."""
        return theta - self.centre + self.b * (self.b * theta / self.mu).clamp(-self.eps, self.eps)

    def abstract_gradient(self, theta: Tensor) -> Tensor:
        return theta - self.centre + self.b**2 * theta / self.mu

    def loss(self, theta: Tensor) -> Tensor:
        """Robust, up to the spread of x_i, which no theta changes."""
        u = self.b * theta
        xi = (u / self.mu).clamp(-self.eps, self.eps)
        return ((theta - self.centre) ** 2 / 2 + u * xi - self.mu * xi**2 / 2).sum(1)

    @property
    def Delta(self) -> float:
        best = torch.full((1, self.d), self.centre / self.L, dtype=torch.float64)
        return float(self.loss(torch.full_like(best, self.start)) - self.loss(best))

    def step_size(self, steps: int) -> float:
        return min(1 / (6 * self.L), math.sqrt(self.Delta / (steps * self.L * self.sigma**2)))

    def least_steps(self) -> float:
        """From here on the second of the two step sizes counts, and with it the theorem's bound."""
        return 36 * self.L * self.Delta / self.sigma**2

    def bound(self, steps: int) -> float:
        """As it is printed."""
        return 8 * self.sigma * math.sqrt(self.L * self.Delta / steps) + self._weak

    def proved(self, steps: int) -> float:
        """What its proof gives for either step size: 4 Delta / (eta T) + 4 L eta sigma^2 in place of the first term."""
        eta = self.step_size(steps)
        return 4 * self.Delta / (eta * steps) + 4 * self.L * eta * self.sigma**2 + self._weak

    @property
    def _weak(self) -> float:
        return 7 * self.b**2 * self.delta / (3 * self.mu)

    def run(self, steps: int, *, repetitions: int, seed: int = 0, moments: bool = False) -> Path:
        """SGD as in the proof, eta_t = |grad L| eta with the true norms, or by Algorithm 1's moments with that eta."""
        random = torch.Generator().manual_seed(seed)
        theta = torch.full((repetitions, self.d), self.start, dtype=torch.float64)
        eta, squares, losses, agreed = self.step_size(steps), [], [], 0.0
        m = torch.zeros(repetitions, 2, self.d, dtype=torch.float64)
        v = torch.zeros(repetitions, 2, dtype=torch.float64)
        for t in range(steps):
            full, abstract = self.gradient(theta), self.abstract_gradient(theta)
            squares.append((full**2).sum(1).mean())
            losses.append(self.loss(theta).mean())
            agreed += float(((full * abstract).sum(1) > 0).double().mean()) / steps
            noise, more = torch.randn(2, *theta.shape, generator=random, dtype=torch.float64) / math.sqrt(self.d)
            noise = self.sigma * noise
            adv = theta - self.centre + self.b * self.perturbation(theta) + noise
            ibp = abstract + noise + self.abstract_noise * more
            if moments:
                g = torch.stack([adv, ibp], 1)
                kappa = weigh(m / (1 - BETA1**t), v / (1 - BETA2**t)) if t else torch.full_like(v, 0.5)
                theta = theta - eta * (kappa[:, :2, None] * g).sum(1)
                m, v = torch.lerp(m, g, 1 - BETA1), torch.lerp(v, g.norm(dim=2), 1 - BETA2)
            else:
                ratio = full.norm(dim=1, keepdim=True) / abstract.norm(dim=1, keepdim=True)
                theta = theta - eta * (adv + ratio * ibp)
        return Path(torch.stack(squares), torch.stack(losses), agreed)


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """The problem of Theorem 2."""

    sigma: float = 1.0  # of the abstract gradient
    d: int = 10
    w: float = 0.6
    s: float = 0.5
    h: float = 1.0
    start: float = 0.3  # each coordinate of b; y_i has mean 0

    @property
    def L(self) -> float:
        return max(self.s, self.h)

    @property
    def _floor(self) -> float:
        """The least abstract loss: w, and the spread of y_i (in batches of one)."""
        return self.w + self.sigma**2 / (2 * self.h)

    def loss(self, theta: Tensor) -> Tensor:
        a, b = theta[:, 0], theta[:, 1:]
        return self._floor + self.s * (a + torch.sqrt(1 + a**2)) + self.h * (b**2).sum(1) / 2

    def gradient(self, theta: Tensor) -> Tensor:
        """Of the abstract loss, (R, 1 + d)."""
        a, b = theta[:, :1], theta[:, 1:]
        return torch.cat([self.s * (1 + a / torch.sqrt(1 + a**2)), self.h * b], 1)

    def robust_gradient(self, theta: Tensor) -> Tensor:
        found = torch.zeros_like(theta)
        found[:, 0] = -self.w / 2 * (1 + theta[:, 0] ** 2) ** -1.5
        return found

    @property
    def first(self) -> Tensor:
        """theta (1, 1 + d)."""
        return torch.tensor([[0.0, *[self.start] * self.d]], dtype=torch.float64)

    @property
    def Delta(self) -> float:
        return float(self.loss(self.first)) - self._floor

    def step_sizes(self, steps: int, loss: float) -> tuple[float, float]:
        """The two that the theorem takes the smaller of: by the loss, and by T."""
        return (2 * loss - 1) / self.L, math.sqrt(self.Delta / (steps * self.L * self.sigma**2))

    def bound(self, path: Path) -> float:
        """As it is printed: with a sum over all steps."""
        return self._rate(path) * (1 + float(((1 + path.losses) ** 2).sum()))

    def with_a_mean(self, path: Path) -> float:
        """What the proof's last inequality gives for the second step size: half a mean in place of the sum."""
        return self._rate(path) * (1 + float(((1 + path.losses) ** 2).mean()) / 2)

    def _rate(self, path: Path) -> float:
        return 2 * self.sigma * math.sqrt(self.L * self.Delta / len(path.losses))

    def run(self, steps: int, *, repetitions: int, seed: int = 0) -> Path:
        """SGD by -(1 + Lbar) gbar - kappa_adv g_adv, kappa_adv = -<g_adv, gbar> / |g_adv|^2, as in the proof."""
        random = torch.Generator().manual_seed(seed)
        theta = self.first.expand(repetitions, -1).clone()
        squares, losses, apart = [], [], 0.0
        for _ in range(steps):
            full, robust, loss = self.gradient(theta), self.robust_gradient(theta), self.loss(theta)
            squares.append((full**2).sum(1).mean())
            losses.append(loss.mean())
            product = (full * robust).sum(1)
            apart += float((product <= 0).double().mean()) / steps
            kappa = -product / (robust**2).sum(1)
            noise = torch.zeros_like(theta)
            noise[:, 1:] = torch.randn(repetitions, self.d, generator=random, dtype=torch.float64) / math.sqrt(self.d)
            eta = min(self.step_sizes(steps, float(losses[-1])))
            theta = theta - eta * ((1 + loss)[:, None] * (full + self.sigma * noise) + kappa[:, None] * robust)
        return Path(torch.stack(squares), torch.stack(losses), apart)
