"""Which ReLU to split: filtered smart branching (De Palma et al. 2021).

What a bound loses at the lines around a ReLU is known from the way back to it, and tells the candidates. Of each of
them both halves are bounded, by one way back. A wrong choice doubles all that is below it, so the fewer parts there are
to split, the more candidates they have.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.linear.beta_crown import Back, Parts, SplitBounds
from advibp.verify.exact.question import PROVED

#: Candidates of all parts together, and of each at least.
_TOGETHER, _EACH = 256, 8


def to_split(bounds: SplitBounds, parts: Parts, back: Back) -> Tensor:
    """A ReLU (D,) of each part, all of which have one that can be split. back: the way back of the parts."""
    losses = bounds.losses(parts, back.kinks)
    count = len(losses)
    some = min(max(_EACH, _TOGETHER // count), losses.shape[1])
    lost, kinks = losses.topk(some, 1)
    each = torch.arange(count, device=kinks.device).repeat_interleave(some)
    lower = bounds.back(parts.take(each).split(kinks.flatten())).lower.view(2, count, some)
    # Both halves have to be closed: the product prefers what helps both. Above the threshold nothing is gained.
    gains = (lower.clamp(max=PROVED) - back.lower.unsqueeze(1)).clamp(min=0)
    gain = (gains + 1e-3 * (PROVED - back.lower).unsqueeze(1)).prod(0)
    best = gain.masked_fill(lost < 0, -torch.inf).argmax(1, keepdim=True)
    return kinks.gather(1, best).squeeze(1)
