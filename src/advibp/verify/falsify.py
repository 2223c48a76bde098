"""An attack on a question: points of its box that go down towards each of the conjunctions that must not hold.

From the middle and from random points, by signed gradient steps that become smaller, on the largest row of the
conjunction a point is meant for.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from advibp.verify.question import Question


def falsify(
    question: Question, *, seconds: float = math.inf, steps: int = 40, starts: int = 8, most: int = 256, seed: int = 0
) -> Tensor | None:
    """A point (1, ...) that breaks the network, if one is found with at most `most` points at once."""
    deadline = time.monotonic() + seconds
    lower, upper = (end.to(question.dtype) for end in (question.lower, question.upper))
    chance = torch.Generator().manual_seed(seed)
    conjunctions = [(rows.to(lower), offsets.to(lower)) for rows, offsets in question.unsafe if len(rows)]
    if len(conjunctions) < len(question.unsafe):  # one has no rows: it holds everywhere
        return question.broken_by(lower)
    kept = torch.randperm(len(conjunctions), generator=chance)[: max(1, most // starts)].tolist()
    conjunctions = [conjunctions[k] for k in sorted(kept)]
    if not conjunctions:
        return None
    share = torch.rand(len(conjunctions) * starts, *lower.shape[1:], generator=chance, dtype=torch.float64)
    share[::starts] = 0.5
    x = lower + (upper - lower) * share.to(lower)
    for step in range(steps + 1):
        broken = question.broken_by(x)
        if broken is not None or step == steps or time.monotonic() > deadline:
            return broken
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            outputs = question.net(x).unflatten(0, (len(conjunctions), starts))
            down = sum(
                (output @ rows.T + offsets).amax(1).sum()
                for output, (rows, offsets) in zip(outputs, conjunctions, strict=True)
            )
            (gradient,) = torch.autograd.grad(down, x)
        pace = (upper - lower) * (0.25 * 0.9**step)
        x = torch.minimum(torch.maximum(x.detach() - pace * gradient.sign(), lower), upper)
    return None
