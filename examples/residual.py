r"""A residual network with BatchNorm, written like any other PyTorch module.

advibp train mnist examples/residual.py:residual --eps 0.1 --epochs 3 --warmup-natural 0.5 \
        --warmup-adversarial 0.5 --ramp 1 --out runs/residual
advibp certify runs/residual --net examples/residual.py:residual
"""

from torch import Tensor, nn


class Block(nn.Module):
    """x + f(x), with half the height and width; the skip connection is a 1x1 convolution."""

    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(filters),
            nn.ReLU(inplace=True),
            nn.Conv2d(filters, filters, 3, padding=1, bias=False),
            nn.BatchNorm2d(filters),
        )
        self.skip = nn.Sequential(nn.Conv2d(channels, filters, 1, stride=2, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        y += self.skip(x)
        return y.relu()


def residual() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        Block(8, 16),
        Block(16, 32),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.LazyLinear(10),
    )
