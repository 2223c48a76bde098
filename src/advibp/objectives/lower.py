"""Losses below the robust loss: regular and adversarial ones."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor

from advibp import attacks
from advibp.attacks import Range
from advibp.execution import batchnorm
from advibp.execution.image_gradient import image
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.objective import AT_THE_END, PIXELS, Evaluation, Now, costs


@costs(3)
def regular(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x), y)."""
    return Evaluation(F.cross_entropy(run_on_copy(net, x), y))


@costs(5)
def adversarial(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with x_adv from FGSM + random init. With `now.wants_fosc` x_adv asks for its gradient, which comes
    out of the loss's own backward pass."""
    with batchnorm.quietly():
        x_adv = attacks.fgsm_random(net, x, y, eps, within=within)
    return _at(net, x_adv, y, now)


@costs(5)
def fgsm(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with one step of eps from x itself (Goodfellow et al. 2015)."""
    with batchnorm.quietly():
        x_adv = attacks.fgsm(net, x, y, eps, within=within)
    return _at(net, x_adv, y, now)


@costs(lambda now, _: 3 + 2 * now.settings.attack_steps)
def pgd(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with PGD from a random start; its steps could cross the ball's radius 2.5 times (Madry et al.)."""
    steps = now.settings.attack_steps
    with batchnorm.quietly():
        x_adv = attacks.climb(net, x, y, eps, steps=steps, step=2.5 / steps, random_start=True, within=within)
    return _at(net, x_adv, y, now)


def _at(net: Any, x_adv: Tensor, y: Tensor, now: Now) -> Evaluation:
    if not now.wants_fosc:
        return Evaluation(F.cross_entropy(net(x_adv), y))
    x_adv.requires_grad_()
    return Evaluation(F.cross_entropy(run_on_copy(net, image(x_adv)), y), x_adv)
