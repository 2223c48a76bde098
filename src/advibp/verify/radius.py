"""The largest radius that can be proved for an image."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp.verify import ibp
from advibp.verify.precision import full_precision


@torch.no_grad()
def largest_proved_eps(net: nn.Module, x: Tensor, y: Tensor, *, tolerance: float = 1e-4) -> Tensor:
    """Bisection on eps for each image, (B, ...) and labels (B,) -> (B,).

    What is returned was itself proved, never merely lies below a failure; 0 where no radius was.
    """
    proved, failed = torch.zeros(len(x), device=x.device), torch.ones(len(x), device=x.device)
    with full_precision():
        while float((failed - proved).max()) > tolerance:
            middle = (proved + failed) / 2
            holds = ibp.lower_margin(net, x, y, middle.view(-1, *[1] * (x.dim() - 1))) > 0
            proved, failed = torch.where(holds, middle, proved), torch.where(holds, failed, middle)
    return proved
