"""Averages and maxima over windows and over axes."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from advibp.vnncomp.onnx import shapes
from advibp.vnncomp.onnx.onnx_graph import Node
from advibp.vnncomp.onnx.operations import dynamic, operation
from advibp.vnncomp.onnx.sliding import GEOMETRY, Window, bordered, borders, window
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

#: Stands for -infinity in borders of which maxima are taken: a linear bound times 0 must stay 0.
LOWEST = -1e30

_AVERAGES: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d}
_MAXIMA: dict[int, Any] = {1: torch.max_pool1d, 2: torch.max_pool2d}  # F's can't be pickled


@operation("MaxPool", f"ceil_mode storage_order {GEOMETRY}")
def max_pool(program: Program, node: Node, x: Operand) -> Value:
    value, slides = _pooled(node, x)
    padding, inside = slides.before, torch.zeros(1, 1, *value.shape[2:])
    if not _by_torch(slides):
        value, padding = bordered(program, node, value, slides, LOWEST), (0,) * len(padding)
        inside = F.pad(inside, borders(slides), value=LOWEST)
    options: dict[str, Any] = {"kernel_size": slides.kernel, "stride": slides.stride, "dilation": slides.dilation}
    options["padding"] = padding
    func, work = _MAXIMA[len(padding)], math.prod(slides.kernel)
    made = program.call(node, func, value, work=work, **options)
    if bool((func(inside, **options) < 0).any()):
        node.refuse("has windows that lie in the border as a whole, and so have no maximum; export it again.")
    return made


@operation("AveragePool", f"ceil_mode count_include_pad {GEOMETRY}")
def average_pool(program: Program, node: Node, x: Operand) -> Value:
    value, slides = _pooled(node, x)
    if any(dilation != 1 for dilation in slides.dilation):
        node.refuse("averages over pixels that are apart (dilations), which is not read; export it without.")
    func, work, counted = _AVERAGES[len(slides.kernel)], math.prod(slides.kernel), node.integer("count_include_pad", 0)
    options: dict[str, Any] = {"kernel_size": slides.kernel, "stride": slides.stride}
    given = window(node, value.shape[2:])
    if _by_torch(slides) and slides == given:
        options |= {"padding": slides.before, "count_include_pad": bool(counted)}
        return program.call(node, func, value, work=work, **options)
    # The average over all of a window, divided by the share of it that counts.
    averages = program.call(node, func, bordered(program, node, value, slides, 0.0), work=work, **options)
    counting = torch.ones(1, 1, *value.shape[2:], dtype=program.dtype)
    counting = F.pad(counting, borders(given), value=float(bool(counted)))
    more = [a - b for a, b in zip(slides.after, given.after, strict=True)]  # what was added to round up never counts
    share = func(F.pad(counting, [pad for size in reversed(more) for pad in (0, size)]), **options)[0]
    if bool((share == 0).any()):
        node.refuse("has windows that lie in the border as a whole, and so have no average; export it again.")
    return program.call(node, torch.div, averages, share, shape=averages.shape)


def _pooled(node: Node, x: Operand) -> tuple[Value, Window]:
    value = dynamic(node, x)
    if not value.led or len(value.shape) - 2 not in _MAXIMA:
        node.refuse(f"pools {value.shape}, and (1, C, H, W) or (1, C, L) was expected; export it again.")
    slides = window(node, value.shape[2:])
    return value, slides.rounded_up(value.shape[2:]) if node.integer("ceil_mode", 0) else slides


def _by_torch(slides: Window) -> bool:
    """Whether the borders are such as torch's pooling makes itself."""
    return slides.even and all(2 * b <= k for b, k in zip(slides.before, slides.kernel, strict=True))


@operation("GlobalAveragePool")
def global_average_pool(program: Program, node: Node, x: Operand) -> Value:
    value = _images(node, x)
    return program.call(node, torch.mean, value, dim=tuple(range(2, len(value.shape))), keepdim=True)


@operation("GlobalMaxPool")
def global_max_pool(program: Program, node: Node, x: Operand) -> Value:
    value = _images(node, x)
    if len(value.shape) - 2 not in _MAXIMA:
        node.refuse(f"pools {value.shape}, and (1, C, H, W) or (1, C, L) was expected; export it again.")
    return program.call(node, _MAXIMA[len(value.shape) - 2], value, kernel_size=value.shape[2:])


def _images(node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    if not value.led or len(value.shape) < 3:
        node.refuse(f"pools {value.shape}, and (1, C, H, W) was expected; export it again.")
    return value


@operation("ReduceMean ReduceSum", "axes keepdims noop_with_empty_axes")
def reduce(program: Program, node: Node, x: Operand, axes: Operand = None) -> Value:
    value = dynamic(node, x)
    over, shape = shapes.reduced(node, value.shape, axes)
    if not over:
        return value
    places = tuple(value.axis(node, axis) for axis in over)
    func = torch.mean if node.op == "ReduceMean" else torch.sum
    return program.call(node, func, value, dim=places, keepdim=bool(node.integer("keepdims", 1)), shape=shape)
