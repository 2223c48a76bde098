"""The set that an attack searches: the l_inf ball of radius eps around x, intersected with a range of pixels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Range = tuple[float, float] | None


def feasible(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Lower and upper ends of the feasible set, in the shape of x."""
    lower, upper = x - eps, x + eps
    return (lower, upper) if within is None else (lower.clamp_(min=within[0]), upper.clamp_(max=within[1]))


def inner_ball(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """The smallest and largest numbers of x's type that lie in the feasible set of real numbers, in the shape of x.

    The ends of `feasible` may lie outside of it by their rounding. A counterexample must not.
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
    """a + b as a rounded sum and its error, which add up to it exactly (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def uniform_start(
    x: Tensor, eps: Tensor | float, lower: Tensor, upper: Tensor, generators: Sequence[torch.Generator] | None = None
) -> Tensor:
    """A point of the set for each image, uniform in its ball before the projection. `generators`: one per image."""
    if generators is None:
        noise = torch.empty_like(x).uniform_(-1, 1)
    else:
        shape = x.shape[1:]
        rows = [torch.empty(shape, dtype=x.dtype, device=g.device).uniform_(-1, 1, generator=g) for g in generators]
        noise = torch.stack(rows).to(x.device)
    return torch.clamp(x + eps * noise, lower, upper)
