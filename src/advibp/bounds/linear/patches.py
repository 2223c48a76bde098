"""Rows that are zero outside of a small window of a feature map.

A neuron of a convolutional layer depends on a window of each earlier feature map. The window grows from layer to layer
while the row is carried back. `Patches` store only this window, so a backward pass from an early layer costs a small
part of one with whole feature maps. Rows become dense where their window covers most of the map, and at operations that
have no rule here.

All rows of a backward pass have windows of one size. They differ in their position: the window of a row that starts at
position p of its layer's map begins at pixel p * stride + shift of an earlier map.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.graph.nodes import Node, Ref
from advibp.bounds.linear.activations import backward_relaxation
from advibp.bounds.linear.relaxation import LinearRelaxation, MaxPoolRelaxation
from advibp.bounds.linear.transpose import (
    ChannelRule,
    Convolution,
    constants_of_channels,
    convolution_arguments,
    pair,
    transposed_convolution,
)

#: A window that covers this share of its map, or more, is made dense: the whole map then costs less than the copies of
#: windows.
DENSE_SHARE = 0.75


@dataclass(frozen=True)
class Patches:
    """Coefficients in a window of a feature map.

    Attributes:
        a: coefficients (R, C, h, w) in the window of each row. Those outside of the map have no meaning, see `clear`.
        at: position (R, 2) of each row in the map in which the rows start.
        most: the largest position, plus 1, that `at` may have: height and width of that map.
        stride: pixels of this map per position, (vertical, horizontal).
        shift: first pixel of the window of position (0, 0). It is negative if the window begins in the padding.
        size: height and width of this map.
        clear: whether the coefficients outside of the map are 0.
    """

    a: Tensor
    at: Tensor
    most: tuple[int, int]
    stride: tuple[int, int]
    shift: tuple[int, int]
    size: tuple[int, int]
    clear: bool = False

    @classmethod
    def one_hot(cls, elements: Tensor, shape: torch.Size, signs: Tensor) -> Patches:
        """Return a row for each element of a value (C, H, W), with one coefficient.

        Args:
            elements: indices (R,) in the flattened value.
            shape: shape (C, H, W) of the value.
            signs: the coefficients (R,).
        """
        channels, height, width = shape
        a = signs.new_zeros(len(elements), channels)
        channel, pixel = elements // (height * width), elements % (height * width)
        a[torch.arange(len(a), device=a.device), channel] = signs
        at = torch.stack([pixel // width, pixel % width], 1)
        return cls(a[:, :, None, None], at, (height, width), (1, 1), (0, 0), (height, width), clear=True)

    def __len__(self) -> int:
        return len(self.a)

    @property
    def window(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.a.shape[2], self.a.shape[3]

    @property
    def is_large(self) -> bool:
        """Whether the window covers so much of the map that dense rows cost less."""
        return self.a.shape[2] * self.a.shape[3] >= DENSE_SHARE * self.size[0] * self.size[1]

    def take(self, part: slice | Tensor) -> Patches:
        """Return some of the rows."""
        return replace(self, a=self.a[part], at=self.at[part])

    def both_signs(self) -> Patches:
        """Return the rows and their negatives."""
        return replace(self, a=torch.cat([self.a, -self.a]), at=self.at.repeat(2, 1))

    def gather(self, values: Tensor, images: Tensor | slice) -> Tensor:
        """Return the window of each row in a map of its image; 0 outside of the map.

        Args:
            values: maps (B, C, H, W).
            images: image of each row (R,), or a slice with the one image of all rows.

        Returns:
            Windows (R, C, h, w).
        """
        values = values[images] if isinstance(images, slice) else values
        left, right, top, bottom = self._padding()
        padded = F.pad(values, (left, right, top, bottom)) if left or right or top or bottom else values
        windows = self._windows(padded.permute(0, 2, 3, 1).contiguous(), top, left)  # (B, ..., ..., h, w C)
        place = self.at[:, 0] * self.most[1] + self.at[:, 1]
        if isinstance(images, Tensor):
            place = place + images * (self.most[0] * self.most[1])
        rows = windows.flatten(3).flatten(0, 2).index_select(0, place)
        return rows.view(len(place), *self.window, values.shape[1]).permute(0, 3, 1, 2)

    def dense(self) -> Tensor:
        """Return the rows as whole maps (R, C, H, W), in channels_last."""
        (rows, channels), (height, width) = self.a.shape[:2], self.window
        lines, columns = (self._pixels(d) for d in (0, 1))  # of the window, at each line and column of the map
        inside = ((lines >= 0) & (lines < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
        number = torch.arange(rows, device=inside.device).view(-1, 1, 1)
        place = (number * height + lines[:, :, None]) * width + columns[:, None, :]
        pixels = self.a.permute(0, 2, 3, 1).reshape(-1, channels)
        pixels = torch.cat([pixels, pixels.new_zeros(1, channels)])
        place = place.masked_fill(~inside, len(pixels) - 1).flatten()
        return pixels.index_select(0, place).view(rows, *self.size, channels).permute(0, 3, 1, 2)

    def _pixels(self, d: int) -> Tensor:
        """Return the position in the window of each line (d = 0) or column (d = 1) of the map, for each row (R, n)."""
        first = self.at[:, d, None] * self.stride[d] + self.shift[d]
        return torch.arange(self.size[d], device=first.device) - first

    def _windows(self, padded: Tensor, top: int, left: int) -> Tensor:
        """Return a view of the windows at all positions, (N, most, most, h, w C), of padded maps (N, H, W, C)."""
        _, _, width, channels = padded.shape
        image, line = padded.stride(0), width * channels
        start = padded.storage_offset() + (self.shift[0] + top) * line + (self.shift[1] + left) * channels
        steps = (image, self.stride[0] * line, self.stride[1] * channels, line, 1)
        return padded.as_strided((len(padded), *self.most, self.window[0], self.window[1] * channels), steps, start)

    def _padding(self) -> tuple[int, int, int, int]:
        """Return the padding (left, right, top, bottom) with which the windows of all positions are inside the map."""
        before = [max(0, -shift) for shift in self.shift]
        ends = [(self.most[d] - 1) * self.stride[d] + self.shift[d] + self.window[d] for d in (0, 1)]
        after = [max(0, ends[d] - self.size[d]) for d in (0, 1)]
        return before[1], after[1], before[0], after[0]

    def cleared(self) -> Patches:
        """Return the rows with zeros outside of the map."""
        if self.clear or not any(self._padding()):
            return self
        inside = []
        for d in (0, 1):
            first = self.at[:, d, None] * self.stride[d] + self.shift[d]
            pixels = first + torch.arange(self.window[d], device=first.device)
            inside.append((pixels >= 0) & (pixels < self.size[d]))
        mask = inside[0][:, None, :, None] & inside[1][:, None, None, :]
        return replace(self, a=self.a * mask.to(self.a.dtype), clear=True)

    def plus(self, other: Patches) -> Patches | None:
        """Add rows of the same value with other windows. None if their windows move at different strides."""
        if self.stride != other.stride:
            return None
        first = tuple(min(self.shift[d], other.shift[d]) for d in (0, 1))
        end = tuple(max(p.shift[d] + p.window[d] for p in (self, other)) for d in (0, 1))
        large, small = (self, other) if self.a[0].numel() >= other.a[0].numel() else (other, self)
        before = [large.shift[d] - first[d] for d in (0, 1)]
        after = [end[d] - large.shift[d] - large.window[d] for d in (0, 1)]
        padding = (0, 0, before[1], after[1], before[0], after[0])
        whole = F.pad(large.a.permute(0, 2, 3, 1), padding)  # channels_last
        (top, left), (height, width) = (small.shift[d] - first[d] for d in (0, 1)), small.window
        whole[:, top : top + height, left : left + width] += small.a.permute(0, 2, 3, 1)
        return replace(self, a=whole.permute(0, 3, 1, 2), shift=(first[0], first[1]), clear=self.clear and other.clear)


def add_rows(a: Patches | Tensor, b: Patches | Tensor) -> Patches | Tensor:
    """Add rows of the same value. The sum is dense unless both are patches whose windows move at the same stride."""
    if isinstance(a, Patches) and isinstance(b, Patches):
        total = a.plus(b)
        if total is not None:
            return total
    return (a.dense() if isinstance(a, Patches) else a) + (b.dense() if isinstance(b, Patches) else b)


def backward_patches(
    node: Node, a: Patches, rule: ChannelRule | None, shape: torch.Size | None, precise: bool
) -> tuple[dict[int, Patches], Tensor] | None:
    """Carry patches back through an affine operation.

    Args:
        node: the operation.
        a: coefficients of its value.
        rule: the numbers of an elementwise operation.
        shape: shape (B, ...) of the first value that it uses.
        precise: whether constants are computed in float64.

    Returns:
        Coefficients of each value that it uses, and the constants A c (R,). None if there is no rule for the operation.
    """
    if rule is not None:
        a = a.cleared()
        rows, constants = rule.backward(a.a, precise)
        return {ref: replace(a, a=each) for ref, each in rows.items()}, constants
    if len(node.refs) != 1 or not node.args or node.args[0] != Ref(node.refs[0]) or shape is None or len(shape) != 4:
        return None
    name, moved, constant = getattr(node.func, "__name__", ""), None, a.a.new_zeros(len(a))
    if name == "conv2d":
        moved, constant = _convolution(node, a, shape, precise)
    elif name == "avg_pool2d":
        moved = _average(node, a, shape)
    return None if moved is None else ({node.refs[0]: moved}, constant)


def _convolution(node: Node, a: Patches, shape: torch.Size, precise: bool) -> tuple[Patches | None, Tensor]:
    """Carry patches back through a 2d convolution."""
    arguments = convolution_arguments(node)
    if arguments is None:
        return None, a.a
    a = a.cleared()
    before = _transposed(a.a, arguments._replace(padding=(0, 0)))
    constant = constants_of_channels(a.a, arguments.bias, precise)
    return _moved(a, before, arguments.stride, arguments.padding, shape), constant


def _transposed(a: Tensor, convolution: Convolution) -> Tensor:
    """Return the transposed convolution of windows (R, C, h, w), which are small.

    If the convolution, as a matrix of a window, is not much larger than its kernel, the product with this matrix is the
    fastest. Windows are in channels_last, in which transposed convolutions with a stride are three times as fast.
    """
    weight, window = convolution.weight, a.shape[2:]
    dilation, stride = convolution.dilation, convolution.stride
    size = [(window[d] - 1) * stride[d] + dilation[d] * (weight.shape[d + 2] - 1) + 1 for d in (0, 1)]
    positions, pixels = window[0] * window[1], weight.shape[2] * weight.shape[3]
    growth = size[0] * size[1] / pixels  # of the matrix, compared with one that has no zeros
    if positions == 1 or (weight.shape[1] <= 4 and growth <= 8):
        unit = torch.eye(a[0].numel(), dtype=a.dtype, device=a.device).view(-1, *a.shape[1:])
        matrix = transposed_convolution(unit, convolution).permute(0, 2, 3, 1).flatten(1)
        rows = a.reshape(len(a), -1) @ matrix
        return rows.view(len(a), *size, -1).permute(0, 3, 1, 2)
    if weight.shape[1] > 4:
        weight = weight.contiguous(memory_format=torch.channels_last)
    return transposed_convolution(a, convolution._replace(weight=weight))


def _average(node: Node, a: Patches, shape: torch.Size) -> Patches | None:
    """Carry patches back through average pooling without padding; None for other options."""
    names = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    options = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    if any(pair(options.get("padding", 0))) or options.get("ceil_mode") or options.get("divisor_override"):
        return None
    height, width = pair(options["kernel_size"])
    stride = pair(options.get("stride") or (height, width))
    a, channels = a.cleared(), a.a.shape[1]
    kernel = a.a.new_full((channels, 1, height, width), 1 / (height * width))
    return _moved(a, F.conv_transpose2d(a.a, kernel, None, stride, 0, 0, channels), stride, (0, 0), shape)


def _moved(a: Patches, before: Tensor, stride: tuple[int, int], padding: tuple[int, int], shape: torch.Size) -> Patches:
    """Return patches of the input of a convolution. The coefficients of its padding are not cleared."""
    return replace(
        a,
        a=before,
        stride=(a.stride[0] * stride[0], a.stride[1] * stride[1]),
        shift=(a.shift[0] * stride[0] - padding[0], a.shift[1] * stride[1] - padding[1]),
        size=(shape[2], shape[3]),
        clear=False,
    )


def backward_patch_activation(
    relaxation: LinearRelaxation | MaxPoolRelaxation, a: Patches, images: Tensor | slice
) -> tuple[Patches, Tensor]:
    """Carry patches back through the relaxation of an activation. It is 0 outside of the map, so the result is clear.

    Args:
        relaxation: the relaxation (B, ...) of the activation.
        a: coefficients of its output.
        images: image of each row (R,), or a slice with the one image of all rows.

    Returns:
        Coefficients of its input, and constants (R,).
    """
    if isinstance(relaxation, MaxPoolRelaxation):
        return _max_pool(relaxation, a, images)
    before, constant = backward_relaxation(relaxation, a.a.unsqueeze(1), lambda b: a.gather(b, images).unsqueeze(1))
    return replace(a, a=before.squeeze(1), clear=True), constant.squeeze(1)


def _max_pool(relaxation: MaxPoolRelaxation, a: Patches, images: Tensor | slice) -> tuple[Patches, Tensor]:
    """Carry patches back through the relaxation of max pooling."""
    count, channels, elements, _ = relaxation.pick.shape

    def windows(values: Tensor) -> Tensor:
        gathered = a.gather(values.reshape(count, -1, *a.size), images)
        return gathered.view(len(a), channels, -1, *a.window)

    coefficients = a.a.unsqueeze(2)
    positive, negative = coefficients.clamp(min=0), coefficients.clamp(max=0)
    certain = windows(relaxation.certain)
    spread = positive * windows(relaxation.pick) + negative * certain  # (R, C, n, h, w)
    kernel, stride, dilation = (pair(relaxation.fold[key]) for key in ("kernel_size", "stride", "dilation"))
    height, width = ((a.window[d] - 1) * stride[d] + dilation[d] * (kernel[d] - 1) + 1 for d in (0, 1))
    before = F.fold(spread.reshape(len(a) * channels, elements, -1), (height, width), kernel, dilation, 0, stride)
    constant = negative * windows(relaxation.ceiling) * (1 - certain.sum(2, keepdim=True))
    moved = _moved(a, before.view(len(a), channels, height, width), stride, relaxation.fold["padding"], relaxation.size)
    return moved, constant.flatten(1).sum(1)
