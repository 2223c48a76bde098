"""From points where a bound is lowest downhill on the network itself: such a point is often near a counterexample."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advibp.verify.question import Question


def downhill(question: Question, points: Tensor, which: Sequence[int], *, steps: int = 8) -> Tensor | None:
    """A counterexample on the way of some points (D, ...), each to where the margin of its conjunction is small.

    By the gradient's signs, with steps from a half of the box down to a tenth of that.
    """
    rows = [question.conjunction(k) for k in which]
    width = question.upper - question.lower
    points = points.to(question.lower.dtype)
    for step in range(steps + 1):
        points = torch.minimum(torch.maximum(points, question.lower), question.upper)
        broken = question.broken_by(points)
        if broken is not None or step == steps:
            return broken
        with torch.enable_grad():
            moving = points.detach().requires_grad_()
            outputs = question.net(moving.to(question.dtype, copy=True)).double()  # (the network may write to it)
            margins = [(y @ c.T + d).max() for y, (c, d) in zip(outputs, rows, strict=True)]
            (slope,) = torch.autograd.grad(torch.stack(margins).sum(), moving)
        points = points - 0.5 * 0.1 ** (step / steps) * width * slope.sign()
    return None
