"""The cost of training steps in forward passes, from which the remaining time is estimated."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from advibp import objectives
from advibp.objectives import Context, cost_of, joint_cost

if TYPE_CHECKING:
    from advibp.training import Training


def step_cost(training: Training, ramped: float = 1.0, latent: bool = False) -> float:
    """Return the cost of a joint step, or of a step of a layer-wise stage (`latent`), in forward passes.

    `ramped` is the finished share of the eps ramp.
    """
    lower, upper = training.method.lower, training.method.upper
    context = Context(ramped=ramped, latent=latent, settings=training.settings)
    cost, share = joint_cost(lower, upper, context, training.data.classes), training.recipe.clean_share
    if training.trains_batchnorm and (upper or share):  # the upper loss differentiates BatchNorm's statistics too
        if training.passes.captures_clean(lower, upper, share):
            return cost + 3 + (2 if lower and upper else 0)
        return cost + 2
    return cost + (3 if share else 0)


def remaining_cost(training: Training) -> float:
    """Return the cost of all steps that are left, in forward passes of a batch."""
    per_epoch, now, line = training.steps_per_epoch, training.course.at(training.steps), training.timeline
    begin, total = now.t if now.stage == 0 else math.inf, 0.0
    phase_ends = (line.natural, line.joint, line.joint + line.ramp, training.recipe.epochs)
    costs = (
        cost_of(objectives.regular),
        cost_of(objectives.adversarial),
        step_cost(training, ramped=0.5),
        step_cost(training),
    )
    for end, cost in zip(phase_ends, costs, strict=True):
        total += max(0.0, end - begin) * per_epoch * cost
        begin = max(begin, end)
    latent_steps = min(training.course.total - training.steps, training.course.stages * training.course.each)
    return total + latent_steps * step_cost(training, latent=True)
