"""Chooses the neuron to split: filtered smart branching (De Palma et al. 2021).

The backward pass gives the loss of the bound at the relaxation of each neuron. The neurons with the largest losses are
the candidates. Both halves of each candidate are bounded by one more backward pass. A bad choice doubles the work below
it, so there are more candidates per subproblem if there are few subproblems.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advibp.bounds.linear.beta_crown import SplitBackwardResult
from advibp.verify.exact.question import PROVED

#: Number of candidates of all subproblems together, and minimum for each.
_TOGETHER, _EACH = 512, 24


def to_split(bounds: Any, parts: Any, back: SplitBackwardResult) -> Tensor:
    """Choose a neuron (D,) for each subproblem. Each has at least one that can be split.

    Args:
        bounds: Bounds of subproblems, `SplitBounds` or `IntervalBounds`.
        parts: The subproblems.
        back: Their backward pass.
    """
    losses = bounds.losses(parts, back.kinks)
    count = len(losses)
    some = min(max(_EACH, _TOGETHER // count), losses.shape[1])
    lost, kinks = losses.topk(some, 1)
    each = torch.arange(count, device=kinks.device).repeat_interleave(some)
    lower = bounds.back(bounds.split(parts.take(each), kinks.flatten())).lower.view(2, count, some)
    # Both halves have to be closed, so the score is the product of their gains. Gains above the threshold do not count.
    gains = (lower.clamp(max=PROVED) - back.lower.unsqueeze(1)).clamp(min=0)
    gain = (gains + 1e-3 * (PROVED - back.lower).unsqueeze(1)).prod(0)
    best = gain.masked_fill(lost < 0, -torch.inf).argmax(1, keepdim=True)
    return kinks.gather(1, best).squeeze(1)
