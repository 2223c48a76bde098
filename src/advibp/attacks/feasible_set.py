"""The feasible set of an attack: the l_inf ball of radius eps around x, intersected with the range of valid inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Range = tuple[float, float] | None


def feasible(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Return the lower and upper ends of the feasible set, in the shape of x, up to rounding."""
    lower, upper = x - eps, x + eps
    return (lower, upper) if within is None else (lower.clamp_(min=within[0]), upper.clamp_(max=within[1]))


def inner_ball(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest numbers of x's dtype that lie in the feasible set of real numbers.

    The ends that `feasible` returns are rounded, so they may lie outside of the set. A counterexample must lie inside.

    Returns:
        Lower and upper ends, in the shape of x.
    """
    wide, radius = x.double(), torch.as_tensor(eps, dtype=torch.float64, device=x.device)
    up = torch.full_like(wide, torch.inf)
    lower, below = _exact_sum(wide, -radius)
    upper, above = _exact_sum(wide, radius)
    lower, upper = (
        torch.where(below > 0, lower.nextafter(up), lower),
        torch.where(above < 0, upper.nextafter(-up), upper),
    )
    if within is not None:
        lower, upper = lower.clamp(min=within[0]), upper.clamp(max=within[1])
    ends = lower.to(x.dtype), upper.to(x.dtype)
    away = torch.full_like(x, torch.inf)
    return (
        torch.where(ends[0].double() < lower, ends[0].nextafter(away), ends[0]),
        torch.where(ends[1].double() > upper, ends[1].nextafter(-away), ends[1]),
    )


def _exact_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rounded sum of a and b and its rounding error, which together equal a + b exactly (Knuth's 2Sum)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def uniform_start(
    x: Tensor, eps: Tensor | float, lower: Tensor, upper: Tensor, generators: Sequence[torch.Generator] | None = None
) -> Tensor:
    """Return a random point for each input: uniform in the ball, then clipped to [lower, upper].

    `generators`: one per input; None for torch's global generator.
    """
    if generators is None:
        noise = torch.empty_like(x).uniform_(-1, 1)
    else:
        shape = x.shape[1:]
        rows = [torch.empty(shape, dtype=x.dtype, device=g.device).uniform_(-1, 1, generator=g) for g in generators]
        noise = torch.stack(rows).to(x.device)
    return torch.clamp(x + eps * noise, lower, upper)
