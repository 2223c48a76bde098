"""The memory layout of a network's weights: channels_last while it is trained, where that is faster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def prefers_channels_last(net: nn.Module, device: torch.device) -> bool:
    """From three convolutions on channels_last makes a CPU's step faster, by up to a sixth; docs/performance.md."""
    return device.type == "cpu" and sum(isinstance(module, nn.Conv2d) for module in net.modules()) >= 3


def to_channels_last(net: nn.Module) -> None:
    net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def laid_out_like(value: Tensor, model: Tensor) -> Tensor:
    """`value` with the strides of `model`, of the same shape: fused optimisers take no others."""
    if value.stride() == model.stride():
        return value
    return torch.empty_like(model, dtype=value.dtype, device=value.device).copy_(value)


@contextmanager
def layout_kept(net: nn.Module) -> Iterator[None]:
    """Whatever happens inside, every weight has its old strides afterwards: the module stays its owner's."""
    strides = [(p, p.stride()) for p in net.parameters() if p.dim() == 4]
    try:
        yield
    finally:
        for p, stride in strides:
            if p.stride() != stride:
                p.data = torch.empty_strided(p.shape, stride, dtype=p.dtype, device=p.device).copy_(p.data)
