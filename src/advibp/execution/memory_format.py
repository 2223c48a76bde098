"""Memory layout of a network's weights: channels_last during training where that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def prefers_channels_last(net: nn.Module, device: torch.device) -> bool:
    """Return whether channels_last is faster: on a CPU, with three or more convolutions (docs/performance.md).

    Networks with a stride larger than the kernel, such as a 1x1 convolution of stride 2, are excluded. In
    channels_last, torch 2.13 writes outside of its memory in the backward pass of such a convolution.
    """
    convolutions = [module for module in net.modules() if isinstance(module, nn.Conv2d)]
    skips = any(s > k for conv in convolutions for s, k in zip(conv.stride, conv.kernel_size, strict=True))
    return device.type == "cpu" and len(convolutions) >= 3 and not skips


def to_channels_last(net: nn.Module) -> None:
    """Convert the weights of `net` to channels_last, in place."""
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def match_layout(value: Tensor, model: Tensor) -> Tensor:
    """Return `value` with the strides of `model`, which has the same shape; fused optimizers require them."""
    if value.stride() == model.stride():
        return value
    return torch.empty_like(model, dtype=value.dtype, device=value.device).copy_(value)


@contextmanager
def preserve_layout(net: nn.Module) -> Iterator[None]:
    """Restore the strides of every weight on exit."""
    strides = [(p, p.stride()) for p in net.parameters() if p.dim() == 4]
    try:
        yield
    finally:
        for p, stride in strides:
            if p.stride() != stride:
                p.data = torch.empty_strided(p.shape, stride, dtype=p.dtype, device=p.device).copy_(p.data)
