"""Objectives that are lower bounds of the robust loss: regular and adversarial losses."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from advibp import attacks
from advibp.execution import batchnorm
from advibp.execution.image_gradient import as_image
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.ball import Ball
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs


@costs(3)
def regular(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy at the inputs themselves: L(f(x), y)."""
    return Evaluation(F.cross_entropy(run_on_copy(net, inputs.x), y))


@costs(5)
def adversarial(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy at adversarial examples by FGSM with random start: L(f(x_adv), y).

    If `context.wants_fosc`, x_adv requires its gradient, which the backward pass of the loss computes as well.
    """
    with batchnorm.no_tracking():
        x_adv = attacks.linf_fgsm_random(net, inputs.x, y, inputs.eps, within=inputs.within)
    return _loss_at(net, x_adv, y, context)


@costs(5)
def fgsm(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy at adversarial examples by FGSM: one step of eps from x (Goodfellow et al. 2015)."""
    with batchnorm.no_tracking():
        x_adv = attacks.linf_fgsm(net, inputs.x, y, inputs.eps, within=inputs.within)
    return _loss_at(net, x_adv, y, context)


@costs(lambda context, _: 3 + 2 * context.settings.attack_steps)
def pgd(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy at adversarial examples by PGD with random start; all steps together are 2.5 eps long (Madry et al.
    2018)."""
    steps = context.settings.attack_steps
    with batchnorm.no_tracking():
        x_adv = attacks.linf_gradient_steps(
            net, inputs.x, y, inputs.eps, steps=steps, rel_stepsize=2.5 / steps, random_start=True, within=inputs.within
        )
    return _loss_at(net, x_adv, y, context)


def _loss_at(net: Any, x_adv: Tensor, y: Tensor, context: Context) -> Evaluation:
    if not context.wants_fosc:
        return Evaluation(F.cross_entropy(net(x_adv), y))
    x_adv.requires_grad_()
    return Evaluation(F.cross_entropy(run_on_copy(net, as_image(x_adv)), y), x_adv)
