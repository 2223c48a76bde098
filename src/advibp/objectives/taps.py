"""TAPS and STAPS: an attack in a latent box, combined with the IBP loss (Mao et al. 2023).

The network is split into g and h. IBP bounds g's output by a box [l, u]. In this box an attack for each class k finds a
point p_k with a low margin z_y - z_k of h. The loss is the product of the cross-entropy of these margins and the IBP
loss. The points are no bounds, so the product is none.

The gradient reaches g through the points. A point p in the upper half of its interval moves with u, by a share that
grows linearly from 0 at the middle to 1 at u; in the lower half it moves with l in the same way:

    dp/du = max(0, p - m) / (u - m),    dp/dl = max(0, m - p) / (m - l),    m = (l + u) / 2.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advibp.attacks.attack_loss import targeted_loss
from advibp.bounds import Box
from advibp.bounds.graph.cut import split
from advibp.bounds.shrinking import shrunk_relus
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.ball import Ball
from advibp.objectives.objective import DEFAULT_CONTEXT, Context, Evaluation, costs
from advibp.objectives.sabr import attack_cost, small_box
from advibp.objectives.shi import propagate
from advibp.objectives.training_attack import ascend, ascent_cost
from advibp.objectives.upper import margin_loss


def _latent_cost(context: Context, classes: int) -> float:
    """Return the cost of the attacks in the latent box. The layers behind the cut count as a tenth of the network."""
    return 0.1 * (classes - 1) * (3 + ascent_cost(context.settings)) if context.ramped == 1 else 0.0


@costs(lambda context, classes: 6 + _latent_cost(context, classes), bound=False)
def taps(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """Cross-entropy of attacks in a latent box, times the IBP loss; IBP in the ramp (TAPS, Mao et al. 2023)."""
    return _taps(net, inputs.box(), y, context)


@costs(
    lambda context, classes: 6 + attack_cost(context) + _latent_cost(context, classes), bound=False, shares_attack=True
)
def staps(net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
    """TAPS over the small box of SABR; SABR in the ramp (STAPS, Mao et al. 2023)."""
    return _taps(net, small_box(net, inputs, y, context), y, context)


def _taps(net: Any, box: Box, y: Tensor, context: Context) -> Evaluation:
    settings = context.settings
    if context.ramped < 1:
        return Evaluation(margin_loss(propagate(net, box, context, shrink=settings.relu_shrink).lower_margins(y), y))
    cut = context.cut or split(net, settings.taps_layers, box.center)
    with shrunk_relus(settings.relu_shrink):
        latent = run_on_copy(cut.before, box)
        margins = run_on_copy(cut.after, latent).lower_margins(y)
    at_points = latent_margins(cut.after, latent, y, margins.shape[1], context)
    above = F.cross_entropy(-margins, y, reduction="none")
    below = F.cross_entropy(-at_points, y, reduction="none")
    return Evaluation((scale_gradient(below, settings.taps_weight) * above).mean())


def latent_margins(after: Any, latent: Box, y: Tensor, classes: int, context: Context = DEFAULT_CONTEXT) -> Tensor:
    """Return the margins z_y - z_k (B, K) at the point of each class's attack in a latent box. That of y is 0.

    Args:
        after: h, maps latent values (B, ...) to logits (B, K).
        latent: the box of g's output, (B, ...).
        y: labels, (B,).
        classes: K.
        context: `settings.attack_steps` and `settings.attack_restarts`.
    """
    # All classes in one batch, unless h is a recorded graph, which takes only batches of the recorded size.
    at_once = classes - 1 if isinstance(after, nn.Module) else 1
    shifts = torch.arange(1, classes, device=y.device)
    columns = []
    for part in shifts.split(at_once):
        targets = ((y + part[:, None]) % classes).flatten()  # (len(part) * B,)
        labels = y.repeat(len(part))
        center, radius = (_repeat(value, len(part)) for value in (latent.center, latent.radius))
        ball = Ball(center.detach(), radius.detach(), within=None)
        points = ascend(after, ball, _Target(labels, targets), context.settings)
        logits = run_on_copy(after, connect(points, center, radius))
        columns.append(-targeted_loss(logits, labels, targets).view(len(part), -1))
    margins = torch.cat(columns).T  # (B, K - 1), in the order of the shifts
    others = (y[:, None] + shifts) % classes
    return margins.new_zeros(len(y), classes).scatter(1, others, margins)


class _Target:
    """The loss of an attack for given classes: z_target - z_y."""

    def __init__(self, labels: Tensor, targets: Tensor) -> None:
        self.labels, self.targets = labels, targets

    def __call__(self, logits: Tensor) -> Tensor:
        return targeted_loss(logits, self.labels, self.targets)


def _repeat(value: Tensor, times: int) -> Tensor:
    return value if times == 1 else torch.cat([value] * times)


def connect(points: Tensor, center: Tensor, radius: Tensor) -> Tensor:
    """Return points whose gradient reaches the ends of the box they lie in.

    In terms of center c and radius r, the derivatives in the docstring of this module are

        dp/dc = |p - c| / r,    dp/dr = (p - c) / r.

    Where the radius is 0, the point is the center: dp/dc = 1.

    Args:
        points: points in the box, (B, ...); their own gradient is ignored.
        center: center of the box, (B, ...).
        radius: radius of the box, (B, ...).
    """
    with torch.no_grad():
        flat = radius <= 0
        share = torch.where(flat, 0.0, (points - center) / torch.where(flat, 1.0, radius)).clamp(-1, 1)
        size = torch.where(flat, 1.0, share.abs())
    return points.detach() + size * (center - center.detach()) + share * (radius - radius.detach())


def scale_gradient(value: Tensor, factor: float) -> Tensor:
    """Return the same value with its gradient multiplied by a factor."""
    constant = value.detach()
    return constant + factor * (value - constant)
