"""Describe a network layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from advibp.execution.modes import preserve_modes
from advibp.nets.building import checked_shape
from advibp.nets.structures import Conv


class Row(NamedTuple):
    """One row of `summary`.

    Attributes:
        layer: the layer in the grammar's notation, or its class name.
        shape: shape of its output without the batch.
        parameters: number of parameters.

    Examples:
        >>> from advibp import nets
        >>> nets.Row("FC 100", (100,), 78500).parameters
        78500
    """

    layer: str
    shape: tuple[int, ...]
    parameters: int


def summary(net: nn.Module, input_shape: Sequence[int] = (1, 28, 28)) -> list[Row]:
    """List the layers that ``net`` calls, in the order of the calls.

    The network runs once on zeros, in evaluation mode and without gradients. Its modes and statistics do not change.

    Args:
        net: the network.
        input_shape: shape of one image, (C, H, W).

    Returns:
        One row per call of a layer without children.

    Examples:
        >>> from advibp import nets
        >>> nets.summary(nets.build("FC 5", (1, 4, 4), 3), (1, 4, 4))[1]
        Row(layer='FC 5', shape=(5,), parameters=85)
    """
    rows: list[Row] = []

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        shape = tuple(output.shape[1:]) if isinstance(output, Tensor) else ()
        rows.append(Row(describe(module), shape, sum(p.numel() for p in module.parameters())))

    layers = [m for m in net.modules() if not list(m.children()) and type(m) is not nn.Sequential]
    hooks = [m.register_forward_hook(note) for m in layers]
    like = next(net.parameters(), torch.empty(0))
    try:
        with preserve_modes(net), torch.no_grad():  # eval: this pass must not update BatchNorm's statistics
            net.eval()(torch.zeros(1, *checked_shape(input_shape), dtype=like.dtype, device=like.device))
    finally:
        for hook in hooks:
            hook.remove()
    return rows


def describe(layer: nn.Module) -> str:
    """Return a layer in the grammar's notation if it has one, otherwise its class name."""
    if isinstance(layer, nn.Linear):
        return f"FC {layer.out_features}"
    if isinstance(layer, nn.Conv2d):
        height, width = layer.kernel_size
        text = str(Conv(layer.out_channels, width, height, layer.stride[0]))
        if layer.padding in ((0, 0), "valid"):
            return text
        even = isinstance(layer.padding, tuple) and len(set(layer.padding)) == 1
        return f"{text}p{layer.padding[0]}" if even else f"{text} padding {layer.padding}"
    return type(layer).__name__
