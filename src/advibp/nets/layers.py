"""Layers that torch does not have: normalization of images, and a residual block."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from advibp.errors import UserError


class Normalize(nn.Module):
    """Normalize each channel: ``(x - mean) / std``.

    Use it as the first layer: the images stay in [0, 1], and eps has the same units. Mean and std are buffers, so they
    are saved with the weights.

    Args:
        mean: one number, or one per channel.
        std: one positive number, or one per channel.
        dims: number of dimensions of one input: 3 for images (C, H, W), the default; 1 for vectors (C,).

    Examples:
        >>> import torch
        >>> from advibp import nets
        >>> nets.Normalize(mean=0.5, std=0.25)(torch.ones(1, 1, 2, 2)).unique()
        tensor([2.])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float], dims: int = 3) -> None:
        super().__init__()
        self.register_buffer("mean", _per_channel("mean", mean, dims))
        self.register_buffer("std", _per_channel("std", std, dims))
        if not bool((self.std > 0).all()):
            raise UserError(f"std is {std}, but must be positive for every channel; use 1 for a constant channel.")

    def forward(self, x: Tensor) -> Tensor:
        """Normalize x (B, C, ...). The shape does not change."""
        return (x - self.mean) / self.std

    def extra_repr(self) -> str:
        return f"mean={self.mean.flatten().tolist()}, std={self.std.flatten().tolist()}"


class Residual(nn.Module):
    """A residual block: relu(body(x) + skip(x)).

    The body has two 3x3 convolutions with a ReLU between them. The skip connection is the identity, or a 1x1
    convolution if the shape changes.

        (B, channels, H, W) -> (B, filters, ceil(H / stride), ceil(W / stride))

    Args:
        channels: channels of the input.
        filters: channels of the output.
        stride: stride of the first convolution. Default: 1.
        batchnorm: whether BatchNorm follows each convolution. Default: True.

    Examples:
        >>> import torch
        >>> from advibp import nets
        >>> nets.Residual(1, 4, stride=2)(torch.rand(2, 1, 7, 7)).shape
        torch.Size([2, 4, 4, 4])
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
        """Map x (B, channels, H, W) to (B, filters, ceil(H / stride), ceil(W / stride))."""
        out: Tensor = self.relu(self.body(x) + self.skip(x))
        return out


def _batchnorm(channels: int, enabled: bool) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels)] if enabled else []


def _per_channel(name: str, values: float | Sequence[float], dims: int) -> Tensor:
    """Return (C, 1, 1) for images. A single number becomes one channel that broadcasts."""
    try:
        channels = torch.as_tensor(values, dtype=torch.float32).reshape(-1)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{name} must be a number or one number per channel, not {values!r}.") from error
    if channels.numel() == 0 or not bool(channels.isfinite().all()):
        raise UserError(f"{name} must be a finite number or one finite number per channel, not {values!r}.")
    return channels.clone().reshape(-1, *[1] * (dims - 1))
