"""Losses above the robust loss: cross-entropy of sound lower bounds of the margins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.attacks import Range
from advibp.bounds import Box, LinearBounds, Zonotope
from advibp.objectives.objective import AT_THE_END, PIXELS, Evaluation, Now, costs


def margin_loss(margins: Tensor, y: Tensor) -> Tensor:
    """L(-m, y): an upper bound of the robust cross-entropy when m are lower bounds of the margins (B, K), m_y = 0."""
    return F.cross_entropy(-margins, y)


@costs(6)
def ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m_IBP, y): the abstract loss over the set."""
    return Evaluation(margin_loss(net(Box.ball(x, eps, within)).lower_margins(y), y))


# Measured on dm-small: each margin's way back, with its gradient, takes four to five forward passes.
@costs(lambda now, classes: 6 + (4.5 * (classes - 1) if now.beta > 0 else 0))
def crown_ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m, y) with m = beta m_CROWN-IBP + (1 - beta) m_IBP, and beta falling from 1 over the eps ramp (Zhang et al.
    2020): a mean of two lower bounds is one."""
    if now.beta <= 0:
        return ibp(net, x, y, eps, within)
    bounds = LinearBounds(net, Box.ball(x, eps, within))
    return Evaluation(margin_loss(torch.lerp(bounds.interval_margins(y), bounds.margins(y), now.beta), y))


# Measured on dm-small, where DeepZ has some five thousand symbols.
@costs(lambda now, _: 6 + 5.5 * {"box": 0, "hybrid": now.settings.symbols}.get(now.settings.domain, 5000))
def abstract(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m, y) with margins by the recipe's domain (DiffAI): boxes, DeepZ's zonotopes, or between them the hybrid ones,
    of whose noise symbols the largest `symbols` are kept apart and the others become a box."""
    if now.settings.domain == "box":
        return ibp(net, x, y, eps, within)
    most = now.settings.symbols if now.settings.domain == "hybrid" else None
    return Evaluation(margin_loss(net(Zonotope.ball(x, eps, within, most_symbols=most)).lower_margins(y), y))
