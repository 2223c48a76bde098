"""An attack on a question: from some points of its box downhill, each towards a conjunction that must not hold."""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.question import Question


def falsify(
    question: Question, *, seconds: float = math.inf, steps: int = 40, starts: int = 8, most: int = 256, seed: int = 0
) -> Tensor | None:
    """A point (1, ...) that breaks the network, if one is found from the middle and from random points.

    `starts` for each conjunction; of many conjunctions some are chosen by chance, for `most` points in all.
    """
    if any(len(rows) == 0 for rows, _ in question.unsafe):  # it holds everywhere
        return question.broken_by(question.lower)
    chance = torch.Generator().manual_seed(seed)
    which = torch.randperm(len(question.unsafe), generator=chance)[: max(1, most // starts)].repeat_interleave(starts)
    share = torch.rand(len(which), *question.lower.shape[1:], generator=chance, dtype=torch.float64)
    share[::starts] = 0.5
    points = question.lower + (question.upper - question.lower) * share.to(question.lower)
    return downhill(question, points, which, steps=steps, deadline=time.monotonic() + seconds)


def downhill(
    question: Question, points: Tensor, which: Tensor, *, steps: int = 8, deadline: float = math.inf
) -> Tensor | None:
    """A counterexample on the way of some points (D, ...), each to where the margin of its conjunction (D,) is small.

    By the gradient's signs, with steps from a half of the box down to a tenth of that.
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
