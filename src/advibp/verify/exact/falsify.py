"""Searches for a counterexample by gradient descent on the margins of the unsafe conjunctions."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.question import Question

#: Numbers in the random points on which the network is run first, and the most points.
_SCREENED, _MOST_SCREENED = 2**15, 4096


def falsify(
    question: Question, *, seconds: float = math.inf, steps: int = 40, starts: int = 8, most: int = 256, seed: int = 0
) -> Tensor | None:
    """Search for a counterexample (1, ...) from the center of the box and from random points.

    With few inputs, the network is first run on many random points: a counterexample may lie in a small region that no
    descent reaches from a few points.

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
    generator = torch.Generator().manual_seed(seed)
    which = torch.randperm(len(question.unsafe), generator=generator)[: max(1, most // starts)].repeat_interleave(
        starts
    )
    screened = _SCREENED // max(1, question.lower.numel())
    if screened >= starts:
        share = torch.rand(min(screened, _MOST_SCREENED), *question.lower.shape[1:], generator=generator).to(
            question.lower
        )
        broken = question.broken_by(question.lower + (question.upper - question.lower) * share)
        if broken is not None:
            return broken
    share = torch.rand(len(which), *question.lower.shape[1:], generator=generator, dtype=torch.float64)
    share[::starts] = 0.5
    points = question.lower + (question.upper - question.lower) * share.to(question.lower)
    return downhill(question, points, which, steps=steps, deadline=time.monotonic() + seconds)


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
