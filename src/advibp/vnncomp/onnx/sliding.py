"""Kernel size, stride, dilation and padding of convolutions and pooling."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F

from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.torch_program import Program, Value

GEOMETRY = "auto_pad dilations kernel_shape pads strides"  # the attributes that `read_window` reads
_LARGEST = 2**20


@dataclass(frozen=True)
class Window:
    """A sliding window, with one number per axis of the image. `before` and `after` are the padding on both sides."""

    kernel: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def reach(self) -> Shape:
        """Pixels that the window spans, dilation included."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def symmetric(self) -> bool:
        """Whether the padding is the same on both sides."""
        return self.before == self.after

    def output(self, sizes: Shape) -> Shape:
        """Return the output sizes for an image of these sizes."""
        padded = (s + b + a for s, b, a in zip(sizes, self.before, self.after, strict=True))
        return tuple((n - r) // s + 1 for n, r, s in zip(padded, self.reach, self.stride, strict=True))

    def rounded_up(self, sizes: Shape) -> Window:
        """Return the window with more padding at the end, so that output sizes are rounded up (ceil_mode).

        As in torch, a window must start inside the image or the padding before it.
        """
        after = []
        for i, size in enumerate(sizes):
            stride, reach, begin = self.stride[i], self.reach[i], size + self.before[i]
            steps = -(-(begin + self.after[i] - reach) // stride)
            steps -= steps * stride >= begin
            after.append(max(self.after[i], steps * stride + reach - begin))
        return replace(self, after=tuple(after))


def read_window(node: Node, sizes: Shape, kernel: Shape | None = None) -> Window:
    """Return the window of a node.

    Args:
        node: a convolution or pooling node.
        sizes: sizes of the image, without batch and channels.
        kernel: kernel size of a convolution; by default it is read from the node.
    """
    count = len(sizes)
    declared = node.integers("kernel_shape")
    kernel = kernel or declared or ()
    stride, dilation = (node.integers(name) or (1,) * count for name in ("strides", "dilations"))
    pads = node.integers("pads") or (0,) * 2 * count
    lengths = (len(kernel), len(stride), len(dilation), len(pads) / 2)
    in_range = all(1 <= number < _LARGEST for number in (*kernel, *stride, *dilation))
    if any(length != count for length in lengths) or not in_range or not all(0 <= pad < _LARGEST for pad in pads):
        node.refuse(f"has a kernel, strides, dilations or pads that do not match {count} axes; export it again.")
    if declared not in (None, kernel):
        node.refuse(f"has a kernel of size {kernel}, but its kernel_shape is {declared}; export it again.")
    window = _apply_auto_pad(node, Window(kernel, stride, dilation, pads[:count], pads[count:]), sizes)
    if any(size < 1 for size in window.output(sizes)):
        node.refuse(f"has a window of {window.reach} pixels, larger than its input of {sizes}; export it again.")
    return window


def _apply_auto_pad(node: Node, window: Window, sizes: Shape) -> Window:
    mode = node.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return window
    if mode == "VALID":
        return replace(window, before=(0,) * len(sizes), after=(0,) * len(sizes))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse("has an unknown auto_pad; export the network with pads.")
    axes = zip(sizes, window.stride, window.reach, strict=True)
    needed = [(-(-size // stride) - 1) * stride + reach - size for size, stride, reach in axes]
    if window.reach != window.kernel or min(needed) < -1:
        node.refuse("has auto_pad with dilations or large strides, which programs read differently; export with pads.")
    total = [max(number, 0) for number in needed]
    less, more = tuple(pad // 2 for pad in total), tuple(pad - pad // 2 for pad in total)
    before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
    return replace(window, before=before, after=after)


def pad_for_convolution(program: Program, node: Node, x: Value, window: Window) -> tuple[Value, Shape]:
    """Return x and the `padding` argument of the convolution. Asymmetric padding is added to x."""
    if window.symmetric:
        return x, window.before
    return add_border(program, node, x, window, 0.0), (0,) * len(window.before)


def add_border(program: Program, node: Node, x: Value, window: Window, number: float) -> Value:
    """Pad x with a number."""
    return program.call(node, F.pad, x, pad=border_sizes(window), value=number)


def border_sizes(window: Window) -> Shape:
    """Return the padding as F.pad expects it, last axis first."""
    pairs = zip(reversed(window.before), reversed(window.after), strict=True)
    return tuple(pad for pair in pairs for pad in pair)
