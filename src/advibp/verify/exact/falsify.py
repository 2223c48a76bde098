"""Searches for a counterexample by gradient descent on the margins of the unsafe conjunctions."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.question import Question

#: Numbers in the points of the second attempt, and the most points. It is left out if it has no more than the first.
_MANY_NUMBERS, _MANY_POINTS = 2**15, 4096


def falsify(
    question: Question, *, seconds: float = math.inf, steps: int = 40, starts: int = 8, most: int = 256, seed: int = 0
) -> Tensor | None:
    """Search for a counterexample (1, ...) from the center of the box and from random points.

    With few inputs there is a second attempt from many points, few of which may reach a counterexample.

    Args:
        question: The network, the box and the unsafe conjunctions.
        seconds: Time limit.
        steps: Gradient steps.
        starts: Points per conjunction.
        most: Largest number of points. If there are too many conjunctions, a random selection is used.
        seed: Seed of the random points.
    """
    if any(len(rows) == 0 for rows, _ in question.unsafe):  # an empty conjunction always holds
        return question.broken_by(question.lower)
    deadline = time.monotonic() + seconds
    found = _attempt(question, deadline, steps, starts, most, seed)
    many = min(_MANY_POINTS, _MANY_NUMBERS // max(1, question.lower.numel()))
    if found is not None or many <= most or time.monotonic() > deadline:
        return found
    each = max(starts, many // max(1, len(question.unsafe)))
    return _attempt(question, deadline, steps, each, many, seed + 1)


def _attempt(question: Question, deadline: float, steps: int, starts: int, most: int, seed: int) -> Tensor | None:
    """Descend from `starts` points for each conjunction, at most `most` together."""
    generator = torch.Generator().manual_seed(seed)
    which = torch.randperm(len(question.unsafe), generator=generator)[: max(1, most // starts)].repeat_interleave(
        starts
    )
    share = torch.rand(len(which), *question.lower.shape[1:], generator=generator, dtype=torch.float64)
    share[::starts] = 0.5
    points = question.lower + (question.upper - question.lower) * share.to(question.lower)
    return downhill(question, points, which, steps=steps, deadline=deadline)


def downhill(
    question: Question, points: Tensor, which: Tensor, *, steps: int = 8, deadline: float = math.inf
) -> Tensor | None:
    """Minimize the margins of conjunctions `which` (D,) by sign gradient descent from some points (D, ...).

    Steps decrease from a half of the box to a twentieth. Returns the first counterexample on the way.
    """
    width, which = question.upper - question.lower, which.to(points.device)
    points = points.to(question.lower)
    for step in range(steps + 1):
        points = torch.minimum(torch.maximum(points, question.lower), question.upper)
        broken = question.broken_by(points)
        if broken is not None or step == steps or len(points) == 0 or time.monotonic() > deadline:
            return broken
        with torch.enable_grad():
            moving = points.detach().requires_grad_()
            outputs = run_on_copy(question.net, moving.to(question.dtype)).double()
            margins = []
            for k in which.unique().tolist():
                rows, offsets = (part.to(outputs) for part in question.unsafe[k])
                margins.append((outputs[which == k] @ rows.T + offsets).amax(1))
            (slope,) = torch.autograd.grad(torch.cat(margins).sum(), moving)
        points = points - 0.5 * 0.1 ** (step / steps) * width * slope.sign()
    return None
