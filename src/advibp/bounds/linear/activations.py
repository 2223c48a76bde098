"""The backward pass through activations.

A positive coefficient of an activation's output takes the lower line of its relaxation, a negative one the upper line.
Coefficients are A (b, k, ...): k rows for each of b images. With negative = min(A, 0) the result is

    A lower_slope + negative (upper_slope - lower_slope)

and its gradient needs only `negative`. Outside of convolutions, training by linear bounds spends most of its time here,
so the number of passes over A is kept small.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from advibp.bounds.linear.relaxation import LinearRelaxation, MaxPoolRelaxation


def backward_relaxation(
    relaxation: LinearRelaxation, a: Tensor, of_rows: Callable[[Tensor], Tensor] = lambda line: line
) -> tuple[Tensor, Tensor]:
    """Carry coefficients back through the relaxation of an activation.

    Args:
        relaxation: the relaxation, (b, 1, ...) or (b, k, ...), or anything that `of_rows` maps to this shape.
        a: coefficients A (b, k, ...) of the activation's output.
        of_rows: selects the numbers of the rows. Default: they are given.

    Returns:
        Coefficients (b, k, ...) of its input, and constants (b, k).
    """
    lower_slope, lower_intercept, upper_slope, upper_intercept = relaxation[:4]
    slopes = of_rows(lower_slope), of_rows(upper_slope - lower_slope)
    if lower_intercept is None:
        return _BackwardRelaxation.apply(a, *slopes, of_rows(upper_intercept))
    before, constant = _BackwardRelaxation.apply(a, *slopes, of_rows(upper_intercept - lower_intercept))
    return before, constant + dot(a, of_rows(lower_intercept))


def dot(a: Tensor, b: Tensor) -> Tensor:
    """Return the dot product of each row: (b, k, ...) and (b, 1, ...) or (b, k, ...) -> (b, k)."""
    if b.shape[1] == a.shape[1]:
        return (a * b).sum(tuple(range(2, a.dim()))) if a.dim() > 2 else a * b
    if a.dim() > 3 and not a.is_contiguous():  # channels_last
        a, b = a.movedim(2, -1), b.movedim(2, -1)
    return torch.bmm(a.reshape(*a.shape[:2], -1), b.reshape(len(b), -1, 1)).squeeze(2)


class _BackwardRelaxation(torch.autograd.Function):
    """Compute A lower_slope + min(A, 0) difference, and the constants min(A, 0) . intercept."""

    @staticmethod
    def forward(
        ctx: Any, a: Tensor, lower_slope: Tensor, difference: Tensor, intercept: Tensor
    ) -> tuple[Tensor, Tensor]:
        negative = a.clamp(max=0)
        ctx.save_for_backward(negative, lower_slope, difference, intercept, a if ctx.needs_input_grad[1] else None)
        return (a * lower_slope).addcmul_(negative, difference), dot(negative, intercept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_a: Tensor, grad_constant: Tensor) -> tuple[Tensor | None, ...]:
        negative, lower_slope, difference, intercept, a = ctx.saved_tensors
        per_row = grad_constant.view(*grad_constant.shape, *[1] * (grad_a.dim() - 2))
        grad_slope = None if a is None else _sum_rows(a * grad_a, lower_slope)
        grad_difference = _sum_rows(negative * grad_a, difference) if ctx.needs_input_grad[2] else None
        grad_intercept = _weight_rows(negative, grad_constant, intercept) if ctx.needs_input_grad[3] else None
        grad = grad_a * difference
        grad.addcmul_(per_row, intercept).mul_(negative < 0)
        return grad.addcmul_(grad_a, lower_slope), grad_slope, grad_difference, grad_intercept


def _sum_rows(per_row: Tensor, like: Tensor) -> Tensor:
    """Sum (b, k, ...) over rows to (b, 1, ...) if all rows of an image share a line."""
    return per_row if per_row.shape == like.shape else per_row.sum(1, keepdim=True)


def _weight_rows(rows: Tensor, weights: Tensor, like: Tensor) -> Tensor:
    """Return rows times weights (b, k), summed over rows if all rows of an image share a line."""
    if rows.shape == like.shape:
        return rows * weights.view(*weights.shape, *[1] * (rows.dim() - 2))
    return torch.bmm(weights.unsqueeze(1), rows.reshape(*rows.shape[:2], -1)).view(like.shape)


def backward_max_pool(relaxation: MaxPoolRelaxation, a: Tensor) -> tuple[Tensor, Tensor]:
    """Carry coefficients back through the relaxation of max pooling.

    Args:
        relaxation: the relaxation, with as many rows as A.
        a: coefficients A (R, C, ...) of the pooling's output.

    Returns:
        Coefficients (R, C, H, W) of its input, and constants (R,).
    """
    a = a.flatten(2).unsqueeze(2)  # (R, C, 1, L)
    positive, negative = a.clamp(min=0), a.clamp(max=0)
    spread = relaxation.spread(positive * relaxation.pick + negative * relaxation.certain)
    constant = negative.squeeze(2) * relaxation.ceiling * (1 - relaxation.certain.sum(2))
    return spread, constant.flatten(1).sum(1)
