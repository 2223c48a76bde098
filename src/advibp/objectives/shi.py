"""The regularizers of Shi et al. 2021, for tight bounds and balanced ReLUs while eps grows.

They are computed from the bounds [l, u] of the pre-activations of ReLUs. `propagate` runs a network on a box and
computes them from the same pass. They belong to no loss: a training step adds them after it has combined its losses, so
their size does not depend on the weights of the losses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds import Box
from advibp.bounds.graph.pre_activations import record_pre_activations
from advibp.bounds.shrinking import shrunk_relus
from advibp.execution.own_copy import run_on_copy
from advibp.objectives.objective import Context

#: Ratios above this are not penalized (Shi et al. 2021).
TOLERANCE = 0.5


def propagate(net: Any, box: Box, context: Context, *, shrink: float = 1.0) -> Box:
    """Return the bounds of the logits over a box. Store Shi's regularizers in `context.shared` if they have a weight.

    Args:
        net: the network.
        box: the set of inputs, (B, ...).
        context: its `shi` is the weight of the regularizers.
        shrink: factor of the upper ends of unstable ReLUs. Below 1 the result is no bound.
    """
    with shrunk_relus(shrink):
        if context.shared is None or context.shi <= 0:
            logits: Box = run_on_copy(net, box)
            return logits
        with record_pre_activations() as pre_activations:
            logits = run_on_copy(net, box)
    boxes = [value for value in pre_activations if isinstance(value, Box)]
    if boxes:
        context.shared.regularizer = context.shi * (tightness(box, boxes) + balance(boxes))
    return logits


def tightness(input: Box, pre_activations: Sequence[Box]) -> Tensor:
    """Return the tightness regularizer, a scalar in [0, 1].

    For each ReLU layer: the mean radius of the input divided by the mean radius of the pre-activations. The regularizer
    is the mean of max(0, tolerance - ratio) / tolerance.
    """
    ratios = torch.stack([input.radius.mean() / box.radius.mean().clamp(min=1e-12) for box in pre_activations])
    return F.relu(TOLERANCE - ratios).mean() / TOLERANCE


def balance(pre_activations: Sequence[Box]) -> Tensor:
    """Return the ReLU regularizer, which is 0 if active and inactive neurons are balanced.

    Active neurons have l > 0, inactive ones u < 0. The regularizer compares the two kinds by the sum of their centers
    and by the sum of squared deviations of the centers. A ratio is the smaller of two sums divided by the larger. It is
    1 in a layer where one kind is missing, because it has no useful gradient there.
    """
    ratios = []
    for box in pre_activations:
        center = box.center
        active, inactive = (box.lower > 0).to(center.dtype), (box.upper < 0).to(center.dtype)
        deviation = (center - center.mean()).square()
        ratios += [
            _ratio((center * active).sum(), -(center * inactive).sum()),
            _ratio((deviation * active).sum(), (deviation * inactive).sum()),
        ]
    return 2 * F.relu(TOLERANCE - torch.stack(ratios)).mean() / TOLERANCE


def _ratio(a: Tensor, b: Tensor) -> Tensor:
    smaller, larger = torch.minimum(a, b), torch.maximum(a, b)
    return torch.where(smaller > 0, smaller / larger.clamp(min=1e-12), torch.ones_like(a))
