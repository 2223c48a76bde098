"""Windows that slide over images: kernels, strides and borders, in all the ways in which they can be written."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch.nn.functional as F

from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.torch_program import Program, Value

GEOMETRY = "auto_pad dilations kernel_shape pads strides"  # the attributes that are read here
_LARGEST = 2**20


@dataclass(frozen=True)
class Window:
    """One number per axis of the image; `before` and `after` are its borders."""

    kernel: Shape
    stride: Shape
    dilation: Shape
    before: Shape
    after: Shape

    @property
    def reach(self) -> Shape:
        """How many pixels a window spans."""
        return tuple(d * (k - 1) + 1 for k, d in zip(self.kernel, self.dilation, strict=True))

    @property
    def even(self) -> bool:
        return self.before == self.after

    def output(self, sizes: Shape) -> Shape:
        """How many windows there are over an image of these sizes."""
        around = (s + b + a for s, b, a in zip(sizes, self.before, self.after, strict=True))
        return tuple((n - r) // s + 1 for n, r, s in zip(around, self.reach, self.stride, strict=True))

    def rounded_up(self, sizes: Shape) -> Window:
        """With more border behind, so that a last window which would overlap the end is there too (ceil_mode).

        A window that begins behind the image and the border in front of it is none.
        """
        after = []
        for i, size in enumerate(sizes):
            stride, reach, begin = self.stride[i], self.reach[i], size + self.before[i]
            steps = -(-(begin + self.after[i] - reach) // stride)
            steps -= steps * stride >= begin
            after.append(max(self.after[i], steps * stride + reach - begin))
        return replace(self, after=tuple(after))


def window(node: Node, sizes: Shape, kernel: Shape | None = None) -> Window:
    """The window of a node over an image of these sizes; a convolution knows its kernel."""
    count = len(sizes)
    given = node.integers("kernel_shape")
    kernel = kernel or given or ()
    stride, dilation = (node.integers(name) or (1,) * count for name in ("strides", "dilations"))
    pads = node.integers("pads") or (0,) * 2 * count
    lengths = (len(kernel), len(stride), len(dilation), len(pads) / 2)
    sound = all(1 <= number < _LARGEST for number in (*kernel, *stride, *dilation))
    if any(length != count for length in lengths) or not sound or not all(0 <= pad < _LARGEST for pad in pads):
        node.refuse(f"has a kernel, strides, dilations or pads that do not fit {count} axes; export it again.")
    if given not in (None, kernel):
        node.refuse(f"has a kernel of {kernel}, but says {given}; the file is damaged, export it again.")
    found = Window(kernel, stride, dilation, pads[:count], pads[count:])
    found = _automatic(node, found, sizes)
    if any(size < 1 for size in found.output(sizes)):
        node.refuse(f"has a window of {found.reach} pixels, larger than its input of {sizes}; export it again.")
    return found


def _automatic(node: Node, found: Window, sizes: Shape) -> Window:
    mode = node.text("auto_pad", "NOTSET")
    if mode == "NOTSET":
        return found
    if mode == "VALID":
        return replace(found, before=(0,) * len(sizes), after=(0,) * len(sizes))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        node.refuse("has an auto_pad that is not known here; export it with pads.")
    axes = zip(sizes, found.stride, found.reach, strict=True)
    needed = [(-(-size // stride) - 1) * stride + reach - size for size, stride, reach in axes]
    if found.reach != found.kernel or min(needed) < -1:
        node.refuse("has an auto_pad with dilations, or steps past its window: programs differ; export it with pads.")
    both = [max(number, 0) for number in needed]
    less, more = tuple(b // 2 for b in both), tuple(b - b // 2 for b in both)
    before, after = (less, more) if mode == "SAME_UPPER" else (more, less)
    return replace(found, before=before, after=after)


def padded(program: Program, node: Node, x: Value, slides: Window) -> tuple[Value, Shape]:
    """x, and what is left to a convolution's own padding, which is the same on both sides."""
    if slides.even:
        return x, slides.before
    return bordered(program, node, x, slides, 0.0), (0,) * len(slides.before)


def bordered(program: Program, node: Node, x: Value, slides: Window, number: float) -> Value:
    """x with its borders, full of this number."""
    return program.call(node, F.pad, x, pad=borders(slides), value=number)


def borders(slides: Window) -> Shape:
    """As F.pad wants them, the last axis first."""
    pairs = zip(reversed(slides.before), reversed(slides.after), strict=True)
    return tuple(pad for pair in pairs for pad in pair)
