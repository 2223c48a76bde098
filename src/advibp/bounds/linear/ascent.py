"""Maximize many lower bounds, one per row, over their free parameters.

Every choice of the parameters within their limits gives a sound bound. The best iterate of each row is therefore kept.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Variable(NamedTuple):
    """Parameters of the rows.

    Attributes:
        start: initial values (R, ...).
        free: which of them may change, (R, ...) or broadcastable.
        limits: (smallest, largest) value.
        rate: learning rate relative to that of the others.
    """

    start: Tensor
    free: Tensor
    limits: tuple[float, float]
    rate: float = 1.0


class AscentResult(NamedTuple):
    """The highest bounds (R,), and for each variable the values (R, ...) that gave them."""

    bounds: Tensor
    values: list[Tensor]


def ascend(
    lower: Callable[[list[Tensor]], Tensor],
    variables: Sequence[Variable],
    *,
    steps: int,
    lr: float,
    enough: float = 0.0,
    deadline: float = math.inf,
) -> AscentResult:
    """Maximize the bounds by Adam.

    Args:
        lower: maps the values of each variable to bounds (R,).
        variables: the variables.
        steps: maximal number of steps.
        lr: learning rate of the first step; it decays by 0.95 per step.
        enough: stop when all bounds are above this number. A row above it does not change any more.
        deadline: stop after this time of `time.monotonic`. At least one evaluation is always made.

    Returns:
        The best bounds and values of each row. A NaN does not count as a bound: a row without another bound gets -inf.
    """
    values = [v.start.detach().clone().clamp_(*v.limits).requires_grad_() for v in variables]
    groups = [{"params": [value], "lr": lr * v.rate} for value, v in zip(values, variables, strict=True)]
    optimizer = torch.optim.Adam(groups, maximize=True)
    best, best_values = None, [n.detach().clone() for n in values]
    for step in range(steps + 1):
        with torch.enable_grad():
            bounds = lower(values)
        detached = bounds.detach()
        best = torch.full_like(detached, -torch.inf) if best is None else best
        # A proved row does not change, so that its result does not depend on the other rows.
        better = (detached > best) & ~(best > enough)
        best = torch.where(better, detached, best)
        for best_value, value in zip(best_values, values, strict=True):
            best_value[better] = value.detach()[better]
        done = step == steps or bool((best > enough).all()) or time.monotonic() > deadline
        if done or not bounds.requires_grad:  # the bounds do not depend on the variables
            break
        grads = torch.autograd.grad(bounds, values, torch.ones_like(bounds), allow_unused=True)
        for value, grad, variable in zip(values, grads, variables, strict=True):
            value.grad = None if grad is None else grad * variable.free
        optimizer.step()
        for group in optimizer.param_groups:
            group["lr"] *= 0.95
        with torch.no_grad():
            for value, variable in zip(values, variables, strict=True):
                value.clamp_(*variable.limits)
    assert best is not None
    return AscentResult(best, best_values)
