"""Problems for which all constants of Theorems 1 and 2 are known, and SGD on them with the theorems' step sizes.

Theorem 1 (the gradients agree). A sample x_i in R^d, parameters theta in R^d, a perturbation |xi|_inf <= eps:

    l(theta; x_i, xi) = |theta - x_i|^2 / 2 + b theta' xi - mu |xi|^2 / 2

is strongly concave in xi, with L_theta_theta = 1 and L_theta_x = L_x_theta = b. Its maximizer is clip(b theta / mu),
so the robust loss is |theta - x_i|^2 / 2 + sum_j huber(b theta_j), and its gradient has exactly the Lipschitz constant
L = 1 + b^2 / mu. The abstract loss bounds the terms one by one, as intervals do, and is smoothed:

    max b theta' xi + max -mu |xi|^2 / 2 = eps b |theta|_1 <= sum_j ((b theta_j)^2 / (2 mu) + mu eps^2 / 2).

The noise of a batch is that of its mean x_i and does not depend on theta: exactly sigma^2 = tr cov(x) / batch. Nothing
is clipped at the minimizer, so that both gradients have equal signs in every coordinate, everywhere.

Theorem 2 (the gradients conflict, the attack is weak). theta = (a, b), with a in R and b in R^d:

    robust:    w/2 (1 - a / sqrt(1 + a^2)), which decreases in a
    abstract:  w + s (a + sqrt(1 + a^2)) + h |b - y_i|^2 / 2, which increases in a, and is larger, since it is >= w

so that the gradients conflict everywhere. Lbar = max(s, h), and the theorem requires w > 1/2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.reproduce.bias import BETA1, BETA2, weigh


class Path(NamedTuple):
    """Means over repetitions at each step: of the squared gradient norm and of the loss that is minimized."""

    gradients: Tensor  # (T,)
    losses: Tensor  # (T,)
    premise: float  # fraction of steps in which the gradients agree or conflict, as the theorem assumes

    @property
    def average(self) -> float:
        """Mean squared gradient norm, which both theorems bound."""
        return float(self.gradients.mean())


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """The problem of Theorem 1. `delta` is the FOSC of the attack; 0 means that it finds the maximum."""

    sigma: float = 4.0
    delta: float = 0.0
    abstract_noise: float = 0.0  # additional noise of the abstract gradient
    d: int = 10
    b: float = 1.0
    mu: float = 2.0
    eps: float = 1.5
    center: float = 2.0  # each coordinate of the mean of x_i
    start: float = 4.0  # each coordinate of the first theta

    @property
    def L(self) -> float:
        return 1 + self.b**2 / self.mu

    def perturbation(self, theta: Tensor) -> Tensor:
        """Return the maximizer, or the first point from 0 to it whose FOSC is at most delta."""
        best = (self.b * theta / self.mu).clamp(-self.eps, self.eps)
        if self.delta == 0:
            return best
        low, high = torch.zeros(len(theta), 1, dtype=theta.dtype), torch.ones(len(theta), 1, dtype=theta.dtype)
        for _ in range(12):  # bisection, since FOSC decreases along the way
            middle = (low + high) / 2
            weak = (self.fosc(theta, middle * best) > self.delta)[:, None]
            low, high = torch.where(weak, middle, low), torch.where(weak, high, middle)
        return high * best

    def fosc(self, theta: Tensor, xi: Tensor) -> Tensor:
        slope = self.b * theta - self.mu * xi
        return self.eps * slope.abs().sum(1) - (xi * slope).sum(1)

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the gradient of the robust loss, (R, d)."""
        return theta - self.center + self.b * (self.b * theta / self.mu).clamp(-self.eps, self.eps)

    def abstract_gradient(self, theta: Tensor) -> Tensor:
        return theta - self.center + self.b**2 * theta / self.mu

    def loss(self, theta: Tensor) -> Tensor:
        """Return the robust loss without the variance of x_i, which does not depend on theta."""
        u = self.b * theta
        xi = (u / self.mu).clamp(-self.eps, self.eps)
        return ((theta - self.center) ** 2 / 2 + u * xi - self.mu * xi**2 / 2).sum(1)

    @property
    def Delta(self) -> float:
        best = torch.full((1, self.d), self.center / self.L, dtype=torch.float64)
        return float(self.loss(torch.full_like(best, self.start)) - self.loss(best))

    def step_size(self, steps: int) -> float:
        return min(1 / (6 * self.L), math.sqrt(self.Delta / (steps * self.L * self.sigma**2)))

    def least_steps(self) -> float:
        """Return the number of steps from which the second step size is the smaller one, so that the bound holds."""
        return 36 * self.L * self.Delta / self.sigma**2

    def bound(self, steps: int) -> float:
        """Return the bound that the paper prints."""
        return 8 * self.sigma * math.sqrt(self.L * self.Delta / steps) + self._weak

    def proved(self, steps: int) -> float:
        """Return the bound of the proof for either step size. Its first term is 4 Delta / (eta T) + 4 L eta sigma^2."""
        eta = self.step_size(steps)
        return 4 * self.Delta / (eta * steps) + 4 * self.L * eta * self.sigma**2 + self._weak

    @property
    def _weak(self) -> float:
        return 7 * self.b**2 * self.delta / (3 * self.mu)

    def run(self, steps: int, *, repetitions: int, seed: int = 0, moments: bool = False) -> Path:
        """Run SGD as in the proof, with the true gradient norms, or with `moments` with Algorithm 1's weights."""
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
            adv = theta - self.center + self.b * self.perturbation(theta) + noise
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
        """The minimum of the abstract loss: w plus the variance of y_i (for batches of one)."""
        return self.w + self.sigma**2 / (2 * self.h)

    def loss(self, theta: Tensor) -> Tensor:
        a, b = theta[:, 0], theta[:, 1:]
        return self._floor + self.s * (a + torch.sqrt(1 + a**2)) + self.h * (b**2).sum(1) / 2

    def gradient(self, theta: Tensor) -> Tensor:
        """Return the gradient of the abstract loss, (R, 1 + d)."""
        a, b = theta[:, :1], theta[:, 1:]
        return torch.cat([self.s * (1 + a / torch.sqrt(1 + a**2)), self.h * b], 1)

    def robust_gradient(self, theta: Tensor) -> Tensor:
        result = torch.zeros_like(theta)
        result[:, 0] = -self.w / 2 * (1 + theta[:, 0] ** 2) ** -1.5
        return result

    @property
    def first(self) -> Tensor:
        """The initial theta, (1, 1 + d)."""
        return torch.tensor([[0.0, *[self.start] * self.d]], dtype=torch.float64)

    @property
    def Delta(self) -> float:
        return float(self.loss(self.first)) - self._floor

    def step_sizes(self, steps: int, loss: float) -> tuple[float, float]:
        """Return the two step sizes of which the theorem takes the smaller one: by the loss, and by T."""
        return (2 * loss - 1) / self.L, math.sqrt(self.Delta / (steps * self.L * self.sigma**2))

    def bound(self, path: Path) -> float:
        """Return the bound that the paper prints, with a sum over all steps."""
        return self._rate(path) * (1 + float(((1 + path.losses) ** 2).sum()))

    def with_a_mean(self, path: Path) -> float:
        """Return the bound of the proof's last inequality for the second step size: half a mean instead of the sum."""
        return self._rate(path) * (1 + float(((1 + path.losses) ** 2).mean()) / 2)

    def _rate(self, path: Path) -> float:
        return 2 * self.sigma * math.sqrt(self.L * self.Delta / len(path.losses))

    def run(self, steps: int, *, repetitions: int, seed: int = 0) -> Path:
        """Run SGD as in the proof: -(1 + Lbar) gbar - kappa_adv g_adv, with kappa_adv = -<g_adv, gbar> / |g_adv|^2."""
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
