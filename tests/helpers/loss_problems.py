"""A small problem for losses."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp import nets


def problem(spec: str, seed: int) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a random float64 network with large weights, and images with some pixels of 0 and 1."""
    generator = torch.Generator().manual_seed(seed)
    net = nets.build(spec, (1, 5, 5), 4, seed=seed).double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(3)
    x = (torch.rand(6, 1, 5, 5, generator=generator, dtype=torch.float64) * 1.6 - 0.3).clamp(0, 1)
    return net, x, torch.randint(0, 4, (6,), generator=generator)


def gradients_of(loss: Tensor, net: nn.Module) -> tuple[Tensor, ...]:
    """Return the gradients of a loss with respect to all parameters."""
    return torch.autograd.grad(loss, list(net.parameters()), materialize_grads=True, retain_graph=True)
