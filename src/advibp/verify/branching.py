"""Which ReLU to split: filtered smart branching (De Palma et al. 2021).

What a bound loses at the lines around a ReLU is known from the way back to it, and tells a few candidates. Of each of
these both halves are bounded, by one way back, and the one is taken whose lower half is highest.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.split import Back, Parts, SplitBounds
from advibp.verify.question import PROVED


def to_split(bounds: SplitBounds, parts: Parts, back: Back, candidates: int) -> Tensor:
    """A kink (D,) of each part, all of which have one that can be split. back: their way back."""
    losses = bounds.losses(parts, back.kinks)
    lost, kinks = losses.topk(min(candidates, losses.shape[1]), 1)
    count, some = kinks.shape
    if some == 1:
        return kinks[:, 0]
    each = torch.arange(count, device=kinks.device).repeat_interleave(some)
    lower = bounds.back(parts.take(each).split(kinks.flatten())).lower.view(2, count, some)
    lower = torch.fmax(lower, back.lower.unsqueeze(1)).clamp(max=PROVED)  # a half that is closed is as good as any
    gain = lower.amin(0) + 1e-2 * lower.amax(0)
    return kinks.gather(1, gain.masked_fill(lost < 0, -torch.inf).argmax(1, keepdim=True)).squeeze(1)
