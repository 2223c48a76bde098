"""The two layers that torch does not have: normalisation of the images, and a residual block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from advibp.errors import UserError


class Normalize(nn.Module):
    """``(x - mean) / std`` per channel, inside the network: eps is then always in pixels of [0, 1]."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float], dims: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", _per_channel("mean", mean, dims))
        self.register_buffer("std", _per_channel("std", std, dims))
        if not bool((self.std > 0).all()):
            raise UserError(f"std is {std}, but every channel needs a positive one; give 1 for a constant channel.")

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class Residual(nn.Module):
    """relu(body(x) + skip(x)): two 3x3 convolutions, and x itself or, where its shape changes, a 1x1 convolution of it.

    (B, C, H, W) -> (B, filters, ceil(H / stride), ceil(W / stride)).
    """

    def __init__(self, channels: int, filters: int, stride: int = 1, *, batchnorm: bool = True) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, filters, 3, stride, padding=1),
            *_batchnorm(filters, batchnorm),
            nn.ReLU(),
            nn.Conv2d(filters, filters, 3, padding=1),
            *_batchnorm(filters, batchnorm),
        )
        self.skip = nn.Sequential()  # the identity
        if stride > 1 or channels != filters:
            self.skip = nn.Sequential(nn.Conv2d(channels, filters, 1, stride), *_batchnorm(filters, batchnorm))
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x) + self.skip(x))
        return out


def _batchnorm(channels: int, wanted: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if wanted else []


def _per_channel(name: str, values: float | Sequence[float], dims: int) -> Tensor:
    """(C, 1, 1) for images; a single number becomes one channel that broadcasts."""
    try:
        channels = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} must be a number or one number per channel, not {values!r}.") from error
    if channels.numel() == 0 or not bool(channels.isfinite().all()):
        raise UserError(f"{name} must be finite numbers, one or one per channel, not {values!r}.")
    return channels.clone().reshape(-1, *[1] * (dims - 1))
