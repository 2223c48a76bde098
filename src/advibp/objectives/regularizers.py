"""Objectives with a term of their own: what Shi et al., Xiao et al. and COLT add to the loss.

Every term looks at the bounds [l, u] of what enters the ReLUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.attacks import Range
from advibp.bounds import Box
from advibp.bounds.graph.relu_inputs import entering_relus
from advibp.bounds.latent import LatentZonotope, entering_first_relu
from advibp.execution.own_copy import run_on_copy
from advibp.objectives import AT_THE_END, PIXELS, Evaluation, Now, costs, margin_loss, pgd

#: Up to where a layer may be less tight, or less balanced, than the input before it is penalised (Shi et al. 2021).
TOLERANCE = 0.5


@costs(lambda now, _: 6 if now.ramped == 1 else 8)
def shi_ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """The IBP loss and, while eps grows, terms for tight bounds and balanced ReLUs that fade as it does."""
    box = Box.ball(x, eps, within)
    with entering_relus() as entering:
        loss = margin_loss(run_on_copy(net, box).lower_margins(y), y)
    fading = now.settings.regulariser * (1 - now.ramped)
    if fading > 0 and entering:
        loss = loss + fading * (tightness(box, entering) + balance(entering))
    return Evaluation(loss)


def tightness(input: Box, entering: Sequence[Box]) -> Tensor:
    """How much the mean width of the bounds grows from the input to each ReLU, beyond the tolerance: in [0, 1]."""
    shares = torch.stack([input.radius.mean() / box.radius.mean().clamp(min=1e-12) for box in entering])
    return F.relu(TOLERANCE - shares).mean() / TOLERANCE


def balance(entering: Sequence[Box]) -> Tensor:
    """How far surely active and surely inactive neurons are from having centres of the same size and spread.

    Of two sums the smaller is divided by the larger: 1 is balance, and so is a layer where one kind is missing, as it
    then has no gradient that could help.
    """
    shares = []
    for box in entering:
        centre = box.center
        active, inactive = (box.lower > 0).to(centre.dtype), (box.upper < 0).to(centre.dtype)
        spread = (centre - centre.mean()).square()
        shares += [
            _share((centre * active).sum(), -(centre * inactive).sum()),
            _share((spread * active).sum(), (spread * inactive).sum()),
        ]
    return 2 * F.relu(TOLERANCE - torch.stack(shares)).mean() / TOLERANCE


def _share(a: Tensor, b: Tensor) -> Tensor:
    smaller, larger = torch.minimum(a, b), torch.maximum(a, b)
    return torch.where(smaller > 0, smaller / larger.clamp(min=1e-12), torch.ones_like(a))


@costs(lambda now, _: 3 + 2 * now.settings.attack_steps + 6)
def stable_pgd(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """PGD's loss and a term for ReLUs that can't switch, which leaves a complete verifier less to split (Xiao et al.
    2019)."""
    found = pgd(net, x, y, eps, within, now)
    with entering_relus() as entering:
        net(Box.ball(x, eps, within))
    if not entering:
        return found
    return found._replace(loss=found.loss + now.settings.regulariser * instability(entering))


def instability(entering: Sequence[Box]) -> Tensor:
    """-tanh(1 + l u), summed over all neurons, mean over the images: lowest where l and u have one sign."""
    return -torch.stack([torch.tanh(1 + box.lower * box.upper).sum() / len(box) for box in entering]).sum()


@costs(lambda now, _: 5 + 2 * now.settings.attack_steps + (3 * (1 + now.settings.projections) if now.latent else 0))
def latent_pgd(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """PGD's loss in the image or, in a layer-wise stage, in the latent zonotope, and a term for the area between the
    lines around the ReLUs that follow, which makes the zonotope of the next stage small (COLT)."""
    found = pgd(net, x, y, eps, within, now)
    if isinstance(net, LatentZonotope):
        bounds = net.next_relu()
    else:
        box = entering_first_relu(net, Box.ball(x, eps, within))
        bounds = None if box is None else (box.lower, box.upper)
    return found._replace(loss=found.loss + now.settings.regulariser * area(*bounds)) if bounds else found


def area(lower: Tensor, upper: Tensor) -> Tensor:
    """-l u where l < 0 < u, summed over the neurons, mean over the images: DeepZ's parallelogram, u - l wide and
    -l u / (u - l) high."""
    return (F.relu(-lower) * F.relu(upper)).sum() / len(lower)
