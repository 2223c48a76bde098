"""Faster gradients with respect to the image, which attacks and FOSC need.

An image has few channels. For few input channels the transposed convolution of torch on a CPU takes two to five times
as long as the same gradient computed as W^T g, with one column per output pixel, followed by one shifted sum per kernel
element. `net(as_image(x))` runs any network so that its first convolution computes the gradient this way. The forward
pass and the gradient of the weights stay torch's. Second derivatives raise an error.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

MAX_CHANNELS = 4


def input_gradient(
    gradient: Tensor, weight: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int]
) -> Tensor:
    """Return dL/dx (B, C, *size) of conv2d(x, weight (O, C, m, n)) from dL/dy (B, O, h, w)."""
    (channels, m, n), (h, w) = weight.shape[1:], gradient.shape[2:]
    transposed = weight.flatten(1).t().expand(len(gradient), -1, -1)
    columns = torch.bmm(transposed, gradient.flatten(2)).view(-1, channels, m, n, h, w)
    (down, right), (top, left) = stride, padding
    image = gradient.new_zeros(len(gradient), channels, size[0] + 2 * top, size[1] + 2 * left)
    for i in range(m):
        for j in range(n):
            image[:, :, i : i + down * h : down, j : j + right * w : right] += columns[:, :, i, j]
    return image[:, :, top : top + size[0], left : left + size[1]]


class _ToImage(torch.autograd.Function):
    """Return the output of conv2d unchanged, and compute the gradient with respect to x by `input_gradient`."""

    @staticmethod
    def forward(
        ctx: Any, output: Tensor, x: Tensor, weight: Tensor, stride: tuple[int, int], padding: tuple[int, int]
    ) -> Tensor:
        ctx.size, ctx.stride, ctx.padding, ctx.dtype = x.shape[2:], stride, padding, x.dtype
        ctx.save_for_backward(weight)
        ctx.mark_dirty(output)  # the same tensor, so that an in-place ReLU may follow
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        # Under autocast these may have different dtypes.
        back = input_gradient(gradient, weight.to(gradient.dtype), ctx.size, ctx.stride, ctx.padding)
        return gradient, back.to(ctx.dtype), None, None, None


class Image(Tensor):
    """Images (B, C, H, W) that require a gradient.

    Operations that keep the number of dimensions and have few channels, such as a normalization, return an Image. All
    other operations return a plain tensor.
    """

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.conv2d:
            return _conv2d(*args, **(kwargs or {}))
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, (tuple, list)):
            return tuple(map(_plain, result))
        return _plain(result)


def as_image(x: Tensor) -> Tensor:
    """Mark x (B, C, H, W) for a forward pass whose backward pass goes to x.

    Tensors that are not images of at most `MAX_CHANNELS` channels on a CPU are returned unchanged.
    """
    return x.as_subclass(Image) if type(x) is Tensor and x.device.type == "cpu" and _few_channels(x) else x


def _plain(value: Any) -> Any:
    """Convert an Image that is no longer shaped like one to a plain tensor."""
    return value.as_subclass(Tensor) if type(value) is Image and not _few_channels(value) else value


def _few_channels(x: Tensor) -> bool:
    with torch._C.DisableTorchFunctionSubclass():
        return x.dim() == 4 and x.shape[1] <= MAX_CHANNELS


def _conv2d(
    input: Tensor, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> Tensor:
    supported = type(input) is Image and groups == 1 and _pair(dilation) == (1, 1) and not isinstance(padding, str)
    x = input.as_subclass(Tensor)
    if not supported or x.dim() != 4:
        return F.conv2d(x, weight, bias, stride, padding, dilation, groups)
    output = F.conv2d(x.detach(), weight, bias, stride, padding)  # its own backward pass goes to the weights only
    result: Tensor = _ToImage.apply(output, x, weight, _pair(stride), _pair(padding))
    return result


def _pair(value: Any) -> tuple[int, int]:
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * 2 if len(values) == 1 else values
