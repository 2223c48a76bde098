"""The largest radius that can be proved for an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.verify import ibp
from advibp.verify.precision import full_precision


@torch.no_grad()
def largest_proved_eps(net: nn.Module, x: Tensor, y: Tensor, *, tolerance: float = 1e-4) -> Tensor:
    """Bisection on eps for each image, (B, ...) and labels (B,) -> (B,).

    What is returned was itself proved, never merely lies below a failure; 0 where no radius was.
    """
    with full_precision():
        return _bisect(net, x, y, tolerance)


def _bisect(net: nn.Module, x: Tensor, y: Tensor, tolerance: float) -> Tensor:
    proved, failed = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)
    while float((failed - proved).max()) > tolerance:
        middle = (proved + failed) / 2
        radius = middle.view(-1, *[1] * (x.dim() - 1))
        holds = ibp.worst(net(Box.ball(x, radius)).lower_margins(y), y) > 0
        proved, failed = torch.where(holds, middle, proved), torch.where(holds, failed, middle)
    return proved
