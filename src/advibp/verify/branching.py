import torch, os
from torch import Tensor

from advibp.bounds.split import Back, Parts, SplitBounds
from advibp.verify.question import PROVED
LOOK=int(os.environ.get('LOOK','0')); SCORE=os.environ.get('SCORE','min'); TRIES=int(os.environ.get('TRIES','1024'))

def to_split(bounds: SplitBounds, parts: Parts, back: Back, candidates: int) -> Tensor:
    losses = bounds.losses(parts, back.kinks)
    candidates = max(candidates, TRIES // (2*len(losses)))
    lost, kinks = losses.topk(min(candidates, losses.shape[1]), 1)
    count, some = kinks.shape
    if some == 1:
        return kinks[:, 0]
    each = torch.arange(count, device=kinks.device).repeat_interleave(some)
    halves = parts.take(each).split(kinks.flatten())
    if LOOK:
        lower = bounds.ascend(halves, steps=LOOK, lr=.25, enough=PROVED, deadline=1e99)[0]
    else: lower = bounds.back(halves).lower
    lower = lower.view(2, count, some)
    gain = (lower.clamp(max=PROVED) - back.lower.unsqueeze(1)).clamp(min=0)
    if SCORE=='min': gain = gain.amin(0) + 1e-2 * gain.amax(0)
    else:
        floor = 1e-3*(PROVED-back.lower).unsqueeze(1)
        gain = (gain+floor).prod(0)
    return kinks.gather(1, gain.masked_fill(lost < 0, -torch.inf).argmax(1, keepdim=True)).squeeze(1)
