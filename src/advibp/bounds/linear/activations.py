"""The way back through activations: a coefficient takes the lower line where it is positive, the upper where negative.

Coefficients come as A (b, k, ...): k rows for each of b images. This is where training by linear bounds spends most of
its time outside of convolutions, so the passes over A are counted: with negative = min(A, 0) the result is
A low_slope + negative (up_slope - low_slope), whose backward pass needs `negative` alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from advibp.bounds.linear.relaxation import Lines, Windows


def through_lines(lines: Lines, a: Tensor) -> tuple[Tensor, Tensor]:
    """A (b, k, ...) after an activation, lines (b, 1, ...) or (b, k, ...) -> A before it, and constants (b, k)."""
    low_shift, up_shift = lines.low_shift, lines.up_shift
    if low_shift is None:
        return _Through.apply(a, lines.low_slope, lines.up_slope - lines.low_slope, up_shift)
    before, constant = _Through.apply(a, lines.low_slope, lines.up_slope - lines.low_slope, up_shift - low_shift)
    return before, constant + dot(a, low_shift)


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Row by row: (b, k, ...) and (b, 1, ...) or (b, k, ...) -> (b, k)."""
    if b.shape[1] == a.shape[1]:
        return (a * b).reshape(*a.shape[:2], -1).sum(2)
    return torch.bmm(a.reshape(*a.shape[:2], -1), b.reshape(len(b), -1, 1)).squeeze(2)


class _Through(torch.autograd.Function):
    """A low + min(A, 0) more, and the constants min(A, 0) . shift."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, low: Tensor, more: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
        negative = a.clamp(max=0)
        ctx.save_for_backward(negative, low, more, shift, a if ctx.needs_input_grad[1] else None)
        return torch.addcmul(a * low, negative, more), dot(negative, shift)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_a: Tensor, to_constant: Tensor) -> tuple[Tensor | None, ...]:
        negative, low, more, shift, a = ctx.saved_tensors
        per_row = to_constant.view(*to_constant.shape, *[1] * (to_a.dim() - 2))
        to_low = None if a is None else _summed(a * to_a, low)
        to_more = _summed(negative * to_a, more) if ctx.needs_input_grad[2] else None
        to_shift = _weighted(negative, to_constant, shift) if ctx.needs_input_grad[3] else None
        slope = to_a * more
        slope.addcmul_(per_row, shift).mul_(negative < 0)
        return slope.addcmul_(to_a, low), to_low, to_more, to_shift


def _summed(per_row: Tensor, like: Tensor) -> Tensor:
    """(b, k, ...) -> (b, 1, ...) where all rows of an image share a line."""
    return per_row if per_row.shape == like.shape else per_row.sum(1, keepdim=True)


def _weighted(rows: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    if rows.shape == like.shape:
        return rows * weights.view(*weights.shape, *[1] * (rows.dim() - 2))
    return torch.bmm(weights.unsqueeze(1), rows.reshape(*rows.shape[:2], -1)).view(like.shape)


def through_windows(lines: Windows, a: Tensor) -> tuple[Tensor, Tensor]:
    """The same for max pooling: A (R, C, ...), lines of as many rows -> A before it, and constants (R,)."""
    a = a.flatten(2).unsqueeze(2)  # (R, C, 1, L)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    spread = lines.spread(positive * lines.pick + negative * lines.certain)
    above = negative.squeeze(2) * lines.ceiling * (1 - lines.certain.sum(2))
    return spread, above.flatten(1).sum(1)
