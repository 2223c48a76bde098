"""Margins by interval bound propagation (IBP)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.execution.own_copy import run_on_copy


def worst(margins: Tensor, y: Tensor) -> Tensor:
    """The smallest lower margin over the other classes, (B, K) -> (B,). The image is robust if it is above 0."""
    return margins.scatter(1, y[:, None], torch.inf).amin(1)


@torch.no_grad()
def lower_margin(net: nn.Module, x: Tensor, y: Tensor, eps: float | Tensor) -> Tensor:
    """Lower bound by IBP of the smallest margin of each image over its ball within [0, 1]: (B, ...) -> (B,)."""
    return worst(net(Box.ball(x, eps)).lower_margins(y), y)


@torch.no_grad()
def errors(net: nn.Module, x: Tensor, y: Tensor, eps: float, *, batch_size: int = 1000) -> tuple[float, float]:
    """Standard error and IBP-verified error, as shares. An image that is not proved counts as an error."""
    wrong = unproved = 0
    for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True):
        wrong += int((run_on_copy(net, xs).argmax(1) != ys).sum())
        # A NaN margin counts as not proved.
        unproved += len(xs) - int((lower_margin(net, xs, ys, eps) > 0).sum())
    return wrong / len(x), unproved / len(x)
