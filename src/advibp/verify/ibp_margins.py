"""The cheapest proof: margins by interval bound propagation."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.execution.own_copy import run_on_copy


def worst(margins: Tensor, y: Tensor) -> Tensor:
    """The smallest lower margin over the wrong classes, (B, K) -> (B,). Robust iff it is > 0, strictly."""
    return margins.scatter(1, y[:, None], torch.inf).amin(1)


@torch.no_grad()
def lower_margin(net: nn.Module, x: Tensor, y: Tensor, eps: float | Tensor) -> Tensor:
    """What IBP proves about the margin of each image over the ball intersected with [0, 1]: (B, ...) -> (B,)."""
    return worst(net(Box.ball(x, eps)).lower_margins(y), y)


@torch.no_grad()
def errors(net: nn.Module, x: Tensor, y: Tensor, eps: float, *, batch_size: int = 1000) -> tuple[float, float]:
    """Standard error and IBP-verified error, as shares. An unproved image counts as an error."""
    wrong = unproved = 0
    for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True):
        wrong += int((run_on_copy(net, xs).argmax(1) != ys).sum())
        # Written so that a NaN margin counts as unproved.
        unproved += len(xs) - int((lower_margin(net, xs, ys, eps) > 0).sum())
    return wrong / len(x), unproved / len(x)
