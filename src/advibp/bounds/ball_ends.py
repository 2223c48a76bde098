"""The ends of the l_inf ball of radius eps around x, intersected with the range of valid inputs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advibp.bounds.box import Range


def feasible(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Return x - eps and x + eps, clipped to a range, up to rounding, in the shape of x."""
    lower, upper = x - eps, x + eps
    return (lower, upper) if within is None else (lower.clamp_(min=within[0]), upper.clamp_(max=within[1]))


def inner_ball(x: Tensor, eps: Tensor | float, within: Range = (0.0, 1.0)) -> tuple[Tensor, Tensor]:
    """Return the smallest and largest numbers of x's dtype within eps of x, and in a range, in real arithmetic.

    The ends that `feasible` returns are rounded, so they may lie outside of the set. A counterexample must lie inside.

    Args:
        x: inputs, (B, ...).
        eps: radius, an exact real number: a float, or a tensor that broadcasts to x.
        within: the range, or None.

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
        lower, upper = lower.clamp(min=_wide(within[0])), upper.clamp(max=_wide(within[1]))
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


def _wide(end: float | Tensor) -> Any:
    return end.double() if isinstance(end, Tensor) else end
