"""Combine the gradients of two losses into one."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.moved import renamed_keywords
from advibp.weighting.flat_gradients import FlatGradients
from advibp.weighting.moments import Weighting, Weights


@renamed_keywords(ibp_loss="upper_loss")
def combine(weights: Weights, gradients: Tensor, upper_loss: Tensor | float, out: Tensor | None = None) -> Tensor:
    """Return g_final = kappa_lower g_lower + (kappa_upper + 2 kappa_reg L_upper) g_upper.

    Args:
        weights: the weights.
        gradients: g_lower and g_upper as rows, (2, n).
        upper_loss: L_upper, used if kappa_reg is not 0.
        out: where the result is written, (n,).

    Returns:
        g_final, (n,).
    """
    k_lower, k_upper = weights.of_gradients(float(upper_loss) if weights.reg else 0.0)
    return torch.mul(gradients[0], k_lower, out=out).add_(gradients[1], alpha=k_upper)


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
    """Replace `loss.backward()` for two losses: two backward passes, Algorithm 1, and the combined gradient in .grad.

    Unlike `loss.backward()` it does not accumulate: it replaces every .grad. `optimizer.zero_grad()` is not needed.

    Args:
        weighting: for example `Moments()`. It is updated with both gradients.
        lower: the lower loss, a scalar; in the paper the adversarial loss.
        upper: the upper loss, a scalar; in the paper the IBP loss. Both may come from one forward pass.
        params: parameters of both losses. Parameters that do not require a gradient are skipped.
        fosc: FOSC of the attack behind `lower`, 0 or more. Default: infinite, i.e. the attack counts as weak.
        c_t: the largest `fosc` of an attack that counts as strong. If the gradients conflict, `lower` is prioritized
            if fosc <= c_t, else `upper`. With the defaults `upper` is always prioritized; fosc=0 always prioritizes
            `lower`.
        ramped: finished share of the eps ramp, 0 to 1, for weights by a schedule.

    Returns:
        The weights, and the branch of Algorithm 1 that they come from.

    Raises:
        UserError: if no parameter requires a gradient.

    Examples:
        >>> import torch, advibp
        >>> from advibp import objectives
        >>> net = torch.nn.Linear(4, 3)
        >>> optimizer, weighting = torch.optim.Adam(net.parameters()), advibp.Moments()
        >>> inputs, y = objectives.Ball(torch.rand(2, 4), 0.1), torch.tensor([0, 2])
        >>> for step in range(3):
        ...     lower, upper = objectives.adversarial(net, inputs, y).loss, objectives.ibp(net, inputs, y).loss
        ...     weights = advibp.joint_backward(weighting, lower, upper, net.parameters())
        ...     optimizer.step()
    """
    trainable = [p for p in params if p.requires_grad]
    if not trainable:
        raise UserError(
            "joint_backward got no trainable parameter; pass list(net.parameters()), and no iterator that was used up."
        )
    flat = FlatGradients(trainable)
    flat.take(0, lower, keep_graph=True)  # both losses may come from one forward pass
    flat.take(1, upper)
    weights = weighting.weights(fosc, c_t, ramped=ramped, gradients=flat.rows)
    combine(weights, flat.rows, upper.detach(), out=flat.final)
    flat.deliver()
    weighting.update(flat.rows)
    return weights
