"""Small problems for verifiers, and their verdicts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from advibp import nets
from advibp.verify import Attack, Certificate

QUICK = Attack(steps=10, step=0.25)


def problem(seed: int, spec: str = "FC 10, FC 8", count: int = 18) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return a random float64 network, images, and labels; five of six are predicted."""
    net = nets.build(spec, (1, 4, 4), 3, seed=seed, init="default").eval().double()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed)).double()
    y = net(x).argmax(1)
    y[::6] = (y[::6] + 1) % 3
    return net, x, y


def verdicts(certificate: Certificate) -> list[tuple[int, float, str, str | None, float | None]]:
    """Return the records without seconds."""
    return [(r.index, r.eps, r.verdict, r.by, r.lower_margin) for r in certificate.records]
