"""A small problem for attacks, and a network that records its inputs."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Spy(nn.Module):
    """A network that records its inputs."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        return self.net(x)


def network(classes: int = 3, inputs: int = 4) -> nn.Module:
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, classes)).double()


def problem(seed: int, *, classes: int = 3, linear: bool = False, n: int = 6) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a random network, images (n, 4) in [0, 1], and labels, most of which it predicts."""
    torch.manual_seed(seed)
    net = nn.Linear(4, classes).double() if linear else network(classes)
    x = torch.rand(n, 4, dtype=torch.float64)
    y = net(x).argmax(1)
    y[0] = (y[0] + 1) % classes
    return net, x, y


def wrong(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return net(x).argmax(1) != y
