"""SABR: the IBP loss over a small box around an adversarial example (Müller et al. 2023)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advibp.bounds import Box
from advibp.objectives.ball import Ball
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs
from advibp.objectives.shi import propagate
from advibp.objectives.training_attack import adversarial_examples, ascent_cost
from advibp.objectives.upper import margin_loss


def attack_cost(context: Context) -> float:
    """Return the cost of the attack of SABR in forward passes; 0 with lambda = 1, which needs none."""
    return 0.0 if context.settings.sabr_lambda == 1 else ascent_cost(context.settings)


@costs(lambda context, _: 6 + attack_cost(context), bound=False, shares_attack=True)
def sabr(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy of the IBP margins over a small box around an adversarial example (SABR, Müller et al. 2023).

    It is neither an upper nor a lower bound of the robust loss: it bounds the loss over the small box only. With lambda
    = 1 it is the IBP loss, with lambda = 0 the loss at the adversarial example.
    """
    box = small_box(net, inputs, y, context)
    logits = propagate(net, box, context, shrink=context.settings.relu_shrink)
    return Evaluation(margin_loss(logits.lower_margins(y), y))


def small_box(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Box:
    """Return SABR's box: half width tau around clamp(x_adv, lower + tau, upper - tau), which lies in the set.

    lower and upper are the ends of the set. tau is lambda eps, or half the width of the set where it is narrower than
    that because it ends at the range of valid inputs.

    Args:
        net: maps inputs (B, ...) to logits (B, K).
        inputs: the set.
        y: labels, (B,).
        context: `settings.sabr_lambda` is lambda.
    """
    share = context.settings.sabr_lambda
    if share == 1:
        return inputs.box()
    x_adv = adversarial_examples(net, inputs, y, context)
    lower, upper = inputs.ends()
    tau = torch.minimum(torch.as_tensor(share * inputs.eps, device=lower.device).to(lower.dtype), (upper - lower) / 2)
    return Box(center=torch.minimum(torch.maximum(x_adv, lower + tau), upper - tau), radius=tau)
