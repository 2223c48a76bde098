"""Two losses into one gradient."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.weighting.flat_gradients import FlatGradients
from advibp.weighting.moments import Weighting, Weights


def combine(weights: Weights, gradients: Tensor, ibp_loss: Tensor | float, out: Tensor | None = None) -> Tensor:
    """g_final = kappa_adv g_adv + (kappa_IBP + 2 kappa_reg L_IBP) g_IBP, (2, n) -> (n,)."""
    k_adv, k_ibp = weights.of_gradients(float(ibp_loss) if weights.reg else 0.0)
    return torch.mul(gradients[0], k_adv, out=out).add_(gradients[1], alpha=k_ibp)


def joint_backward(
    weighting: Weighting,
    lower: Tensor,
    upper: Tensor,
    params: Iterable[Tensor],
    *,
    fosc: Tensor | float = math.inf,
    c_t: float = 0.0,
    ramped: float = 1.0,
) -> Weights:
    """Instead of `loss.backward()`: two backward passes, Algorithm 1, and the combined gradient in every .grad.

    Args:
        weighting: for example `Moments()`; it takes in the gradients for the next step.
        lower: the loss from below, a scalar; in the paper the adversarial loss.
        upper: the loss from above, a scalar; in the paper the IBP loss. Both may come from one forward pass.
        params: parameters of both losses; those that are not trainable are skipped.
        fosc: how far the attack behind `lower` is from the strongest one, 0 or more; not given: it counts as weak.
        c_t: the largest `fosc` that counts as strong. When the gradients conflict, `upper` is prioritized unless
            fosc <= c_t; so it always is if neither is given. To prioritize `lower` always, pass fosc=0.
        ramped: the share of the eps ramp that is over, 0 to 1, for weights by a schedule.

    Returns:
        The weights, and which branch of Algorithm 1 they come from.
    """
    trainable = [p for p in params if p.requires_grad]
    if not trainable:
        raise UserError("joint_backward got no trainable parameter; pass list(net.parameters()), no used-up iterator.")
    flat = FlatGradients(trainable)
    flat.take(0, lower, keep_graph=True)  # both losses may come from one forward pass
    flat.take(1, upper)
    weights = weighting.weights(fosc, c_t, ramped=ramped, gradients=flat.rows)
    combine(weights, flat.rows, upper.detach(), out=flat.final)
    flat.deliver()
    weighting.update(flat.rows)
    return weights
