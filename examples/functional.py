r"""A network in functional style: it has its own parameters, and calls functions instead of layers.

advibp train mnist examples/functional.py:functional --eps 0.1 --epochs 3 --warmup-natural 0.5 \
        --warmup-adversarial 0.5 --ramp 1 --out runs/functional
advibp certify runs/functional --net examples/functional.py:functional
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(0.25 * torch.randn(12, 1, 5, 5))
        self.wide = nn.Parameter(0.1 * torch.randn(12, 1, 7, 7))
        self.hidden = nn.Parameter(0.02 * torch.randn(64, 2 * 12 * 12 * 12))
        self.shift = nn.Parameter(torch.zeros(64))
        self.last = nn.Parameter(0.1 * torch.randn(64, 10))

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.13) / 0.31  # inside the network, so that eps stays in pixels
        near = F.conv2d(x, self.kernel, stride=2)
        far = F.conv2d(x, self.wide, stride=2, padding=1)
        x = torch.cat([near.relu(), F.leaky_relu(far, 0.1)], dim=1)
        x = F.relu(F.linear(x.view(x.size(0), -1), self.hidden) + self.shift)
        return x @ self.last


def functional() -> nn.Module:
    return Functional()
