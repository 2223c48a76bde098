"""PGD in training: the adversarial examples of the methods since the paper."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.attacks import attack_loss, feasible, uniform_start
from advibp.attacks.attack_loss import gradient_sign
from advibp.execution import batchnorm
from advibp.execution.image_gradient import as_image
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.ball import Ball
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, Objective, Settings, cost_of, costs


def ascend(net: Any, inputs: Ball, loss: Callable[[Tensor], Tensor], settings: Settings) -> Tensor:
    """Return points of a set with a high loss: PGD from random starts.

    All steps of a start together are 2.5 radii long, and a step is at most 1.25 radii long. With several starts the
    last iterates are compared, which takes one forward pass each. The BatchNorm statistics are not tracked.

    Args:
        net: maps inputs (B, ...) to logits (B, K).
        inputs: the set.
        loss: maps logits (B, K) to losses (B,).
        settings: `attack_steps` and `attack_restarts`.

    Returns:
        The points, (B, ...), without a gradient.
    """
    lower, upper = feasible(inputs.x, inputs.eps, inputs.within)
    stepsize = min(1.25, 2.5 / settings.attack_steps) * torch.as_tensor(inputs.eps, device=lower.device).to(lower.dtype)
    best, highest = inputs.x, inputs.x.new_full((len(inputs.x),), -torch.inf)
    with batchnorm.no_tracking(), torch.no_grad():
        for _ in range(settings.attack_restarts):
            now = uniform_start(inputs.x, inputs.eps, lower, upper)
            for _ in range(settings.attack_steps):
                sign, _ = gradient_sign(net, now, loss)
                now = torch.clamp(now + stepsize * sign, lower, upper)
            if settings.attack_restarts == 1:
                return now
            value = loss(run_on_copy(net, now))
            better = value > highest
            best = torch.where(better.view(-1, *[1] * (now.dim() - 1)), now, best)
            highest = torch.where(better, value, highest)
    return best


def ascent_cost(settings: Settings) -> float:
    """Return the cost of `ascend` in forward passes."""
    return settings.attack_restarts * (2 * settings.attack_steps + (settings.attack_restarts > 1))


def adversarial_examples(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Tensor:
    """Return x_adv (B, ...) by PGD in the ball of radius attack_eps_factor * eps.

    All objectives of a step that need such points share them through `context.shared`.
    """
    if context.shared is not None and context.shared.x_adv is not None:
        return context.shared.x_adv
    settings = context.settings
    ball = Ball(inputs.x, settings.attack_eps_factor * inputs.eps, inputs.within)
    x_adv = ascend(net, ball, partial(attack_loss, y=y, loss="ce"), settings)
    if context.shared is not None:
        context.shared.x_adv = x_adv
    return x_adv


def joint_cost(lower: Objective | None, upper: Objective | None, context: Context, classes: int = 10) -> float:
    """Return the cost of both objectives of a step in forward passes. A shared attack is counted once."""
    cost = cost_of(lower, context, classes) + cost_of(upper, context, classes)
    shared = all(getattr(objective, "shares_attack", False) for objective in (lower, upper))
    return cost - ascent_cost(context.settings) if shared else cost


@costs(lambda context, _: 3 + ascent_cost(context.settings), shares_attack=True)
def attacked(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy at adversarial examples by PGD with restarts, which the upper objective of the step uses too."""
    x_adv = adversarial_examples(net, inputs, y, context)
    if not context.wants_fosc:
        return Evaluation(F.cross_entropy(run_on_copy(net, x_adv), y))
    point = x_adv.detach().requires_grad_()
    return Evaluation(F.cross_entropy(run_on_copy(net, as_image(point)), y), point)
