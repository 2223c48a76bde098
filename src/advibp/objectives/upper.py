"""Objectives that are upper bounds of the robust loss: cross-entropy of sound lower bounds of the margins."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds import LinearBounds
from advibp.objectives.ball import Ball
from advibp.objectives.loss_fusion import fused_loss
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs
from advibp.objectives.shi import propagate


def margin_loss(margins: Tensor, y: Tensor) -> Tensor:
    """Return L(-m, y), the cross-entropy of negated margins.

    It is an upper bound of the robust cross-entropy if m are lower bounds of the margins z_y - z_k over the set.

    Args:
        margins: m, (B, K), with m_y = 0.
        y: labels, (B,).

    Returns:
        The mean over the batch, a scalar.
    """
    return F.cross_entropy(-margins, y)


@costs(6)
def ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy of the margins by interval bound propagation: L(-m_IBP, y)."""
    return Evaluation(margin_loss(propagate(net, inputs.box(), context).lower_margins(y), y))


# Measured on dm-small: the backward bounds of a row and their gradient take four to five forward passes.
@costs(lambda context, classes: 6 + (4.5 * _rows(context, classes) if context.beta > 0 else 0))
def crown_ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Upper bound of the robust loss by CROWN-IBP and IBP, with the weights beta and 1 - beta (Zhang et al. 2020).

    beta falls from 1 to `settings.beta` over the eps ramp. A mean of two lower bounds is a lower bound.

    With `settings.loss_fusion` the cross-entropy is bounded by one backward pass per image (`loss_fusion.py`).
    Otherwise the loss is the cross-entropy of the margins m = beta m_CROWN-IBP + (1 - beta) m_IBP, which need K - 1
    rows per image.
    """
    if context.beta <= 0:
        return ibp(net, inputs, y, context)
    bounds = LinearBounds(net, inputs.box())
    if context.settings.loss_fusion:
        return Evaluation(fused_loss(bounds, y, context.beta).mean())
    return Evaluation(margin_loss(torch.lerp(bounds.interval_margins(y), bounds.margins(y), context.beta), y))


def _rows(context: Context, classes: int) -> int:
    """Return the number of rows per image that are carried back."""
    return 1 if context.settings.loss_fusion else classes - 1


# Measured on dm-small, where DeepZ has about five thousand noise symbols.
@costs(lambda context, _: 6 + 5.5 * {"box": 0, "hybrid": context.settings.symbols}.get(context.settings.domain, 5000))
def abstract(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy of the margins by the abstract domain `settings.domain` (DiffAI, Mirman et al. 2018).

    The domain is a box, a zonotope (deepz), or a hybrid zonotope, which keeps the `settings.symbols` largest noise
    symbols and turns the others into a box.
    """
    if context.settings.domain == "box":
        return ibp(net, inputs, y, context)
    most = context.settings.symbols if context.settings.domain == "hybrid" else None
    return Evaluation(margin_loss(net(inputs.zonotope(most)).lower_margins(y), y))
