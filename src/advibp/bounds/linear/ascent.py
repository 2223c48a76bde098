"""The ascent to the highest of many bounds: one for each row, by whatever numbers the row is free to choose.

Any choice within the spans yields a sound bound, so the best iterate of each row is kept, whatever the way there was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Variable(NamedTuple):
    """Numbers (R, ...) where the ascent starts, of which those marked `free` may move within the span."""

    start: Tensor
    free: Tensor
    span: tuple[float, float]


class Highest(NamedTuple):
    """The highest bounds (R,) found, and the numbers (R, ...) of each variable that led to them."""

    bounds: Tensor
    at: list[Tensor]


def ascend(
    lower: Callable[[list[Tensor]], Tensor],
    variables: Sequence[Variable],
    *,
    steps: int,
    lr: float,
    enough: float = 0.0,
    deadline: float = math.inf,
) -> Highest:
    """By Adam, from `lower`(numbers of each variable) -> bounds (R,), until all are above `enough`.

    A NaN is no bound: a row that has none other gets -inf. After the deadline, a time of `time.monotonic`, there is
    only the first evaluation.
    """
    numbers = [v.start.detach().clone().clamp_(*v.span).requires_grad_() for v in variables]
    optimizer = torch.optim.Adam(numbers, lr=lr, maximize=True)
    best, at = None, [n.detach().clone() for n in numbers]
    for step in range(steps + 1):
        with torch.enable_grad():
            found = lower(numbers)
        value = found.detach()
        best = torch.full_like(value, -torch.inf) if best is None else best
        # A row that is proved stays as it is, so that it does not depend on how long others take.
        better = (value > best) & ~(best > enough)
        best = torch.where(better, value, best)
        for kept, number in zip(at, numbers, strict=True):
            kept[better] = number.detach()[better]
        over = step == steps or bool((best > enough).all()) or time.monotonic() > deadline
        if over or not found.requires_grad:  # (nothing depends on a choice)
            break
        grads = torch.autograd.grad(found, numbers, torch.ones_like(found), allow_unused=True)
        for number, grad, variable in zip(numbers, grads, variables, strict=True):
            number.grad = None if grad is None else grad * variable.free
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.95
        with torch.no_grad():
            for number, variable in zip(numbers, variables, strict=True):
                number.clamp_(*variable.span)
    assert best is not None
    return Highest(best, at)
