"""Objectives with a regularizer: Shi et al. 2021, Xiao et al. 2019 and COLT (Balunovic and Vechev 2020).

Every regularizer is computed from bounds [l, u] of the pre-activations of ReLUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds import Box
from advibp.bounds.graph.pre_activations import record_pre_activations
from advibp.bounds.latent import LatentZonotope, first_pre_activation
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.ball import Ball
from advibp.objectives.lower import pgd
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs
from advibp.objectives.shi import TOLERANCE, balance, tightness
from advibp.objectives.upper import margin_loss

__all__ = [
    "TOLERANCE",
    "area",
    "balance",
    "instability",
    "latent_pgd",
    "shi_ibp",
    "stable_pgd",
    "tightness",
]


@costs(lambda context, _: 6 if context.ramped == 1 else 8)
def shi_ibp(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """The IBP loss plus regularizers for tight bounds and balanced ReLUs, which fade out over the eps ramp (Shi et al.
    2021)."""
    box = inputs.box()
    with record_pre_activations() as pre_activations:
        loss = margin_loss(run_on_copy(net, box).lower_margins(y), y)
    weight = context.settings.regularizer * (1 - context.ramped)
    if weight > 0 and pre_activations:
        loss = loss + weight * (tightness(box, pre_activations) + balance(pre_activations))
    return Evaluation(loss)


@costs(lambda context, _: 3 + 2 * context.settings.attack_steps + 6)
def stable_pgd(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """The PGD loss plus a regularizer for stable ReLUs, which a complete verifier need not split (Xiao et al. 2019)."""
    result = pgd(net, inputs, y, context)
    with record_pre_activations() as pre_activations:
        net(inputs.box())
    if not pre_activations:
        return result
    return result._replace(loss=result.loss + context.settings.regularizer * instability(pre_activations))


def instability(pre_activations: Sequence[Box]) -> Tensor:
    """Return -tanh(1 + l u), summed over all neurons, mean over the batch. It is lowest if l and u have one sign."""
    return -torch.stack([torch.tanh(1 + box.lower * box.upper).sum() / len(box) for box in pre_activations]).sum()


@costs(
    lambda context, _: (
        5 + 2 * context.settings.attack_steps + (3 * (1 + context.settings.projections) if context.latent else 0)
    )
)
def latent_pgd(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """The PGD loss plus a regularizer for the area of the next ReLU relaxation (COLT, Balunovic and Vechev 2020).

    The inputs are images, or the noise of a latent zonotope in a layer-wise stage. The regularizer makes the zonotope
    of the next stage small.
    """
    result = pgd(net, inputs, y, context)
    if isinstance(net, LatentZonotope):
        bounds = net.next_pre_activation_bounds()
    else:
        box = first_pre_activation(net, inputs.box())
        bounds = None if box is None else (box.lower, box.upper)
    return result._replace(loss=result.loss + context.settings.regularizer * area(*bounds)) if bounds else result


def area(lower: Tensor, upper: Tensor) -> Tensor:
    """Return -l u where l < 0 < u, summed over the neurons, mean over the batch.

    It is the area of DeepZ's parallelogram, which is u - l wide and -l u / (u - l) high.
    """
    return (F.relu(-lower) * F.relu(upper)).sum() / len(lower)
