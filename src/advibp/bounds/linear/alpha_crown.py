"""alpha-CROWN (Xu et al. 2021): optimize the slopes alpha of the lower lines of unstable neurons.

Every alpha in the slope range of an unstable neuron gives a sound bound. The lower and the upper line of a sigmoid or
tanh have free slopes too.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from advibp.bounds.linear.ascent import Variable, ascend
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.relaxation import CURVE_RATE, LinearRelaxation


def alpha_margins(
    bounds: LinearBounds, y: Tensor, *, steps: int = 20, lr: float = 0.25, deadline: float = math.inf
) -> Tensor:
    """Compute lower bounds of the margins, optimized where CROWN's are not above 0. They are never below CROWN's.

    Args:
        bounds: linear bounds of the network.
        y: labels (B,).
        steps: steps of the optimization. Default: 20.
        lr: learning rate. Default: 0.25.
        deadline: stop after this time of `time.monotonic`. Default: no limit.

    Returns:
        Lower bounds (B, K) of z_y - z_k.

    Examples:
        >>> import torch
        >>> from advibp import Box, nets
        >>> from advibp.bounds import crown
        >>> from advibp.bounds.linear.alpha_crown import alpha_margins
        >>> net, y = nets.build("FC 8", (1, 3, 3), 3, seed=0), torch.tensor([0, 1])
        >>> bounds = crown(net, Box.ball(torch.rand(2, 1, 3, 3), 0.1))
        >>> bool((alpha_margins(bounds, y) >= bounds.margins(y)).all())
        True
    """
    with torch.no_grad():
        margins = bounds.margins(y)
    rows, others, image = bounds.margin_rows(y)
    best = margins.gather(1, others).flatten()
    for chosen in torch.nonzero(best <= 0).flatten().split(bounds.at_once):
        if len(chosen):
            optimized = _optimize(bounds, rows[chosen], image[chosen], steps, lr, deadline)
            best[chosen] = torch.fmax(best[chosen], optimized)  # ignores NaN
    return margins.scatter(1, others, best.view(others.shape))


def _optimize(bounds: LinearBounds, a: Tensor, image: Tensor, steps: int, lr: float, deadline: float) -> Tensor:
    """Return optimized lower bounds (R,) of the rows of A (R, K); -inf if there is nothing to optimize."""
    relaxations = {index: bounds.relaxation(index) for index in bounds.activations}
    slopes = {
        index: Variable(
            relaxation.free_slopes[image],
            relaxation.free[image],
            relaxation.slope_range,
            CURVE_RATE if relaxation.curve else 1.0,
        )
        for index, relaxation in relaxations.items()
        if isinstance(relaxation, LinearRelaxation)
    }
    if not slopes:
        return a.new_full((len(a),), -torch.inf)

    def lower(values: list[Tensor]) -> Tensor:
        return bounds.lower(bounds.tape.output, a, image, dict(zip(slopes, values, strict=True)))

    return ascend(lower, list(slopes.values()), steps=steps, lr=lr, deadline=deadline).bounds
