"""Convert pooling and reduction nodes to torch calls."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch
import torch.nn.functional as F

from advibp.vnncomp.onnx import shapes
from advibp.vnncomp.onnx.onnx_graph import Node
from advibp.vnncomp.onnx.operations import WINDOW_IN_PADDING, dynamic, operation
from advibp.vnncomp.onnx.sliding import GEOMETRY, Window, add_border, border_sizes, read_window
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

#: Padding of max pooling. It is finite, because linear bounds multiply it by 0.
LOWEST = -1e30

_AVERAGES: dict[int, Any] = {1: F.avg_pool1d, 2: F.avg_pool2d}
_MAXIMA: dict[int, Any] = {1: torch.max_pool1d, 2: torch.max_pool2d}  # F.max_pool2d can't be pickled


@operation("MaxPool", f"ceil_mode storage_order {GEOMETRY}")
def max_pool(program: Program, node: Node, x: Operand) -> Value:
    value, window = _input_and_window(node, x)
    padding, inside = window.before, torch.zeros(1, 1, *value.shape[2:])
    if not _torch_can_pad(window):
        value, padding = add_border(program, node, value, window, LOWEST), (0,) * len(padding)
        inside = F.pad(inside, border_sizes(window), value=LOWEST)
    options: dict[str, Any] = {"kernel_size": window.kernel, "stride": window.stride, "dilation": window.dilation}
    options["padding"] = padding
    func, work = _MAXIMA[len(padding)], math.prod(window.kernel)
    result = program.call(node, func, value, work=work, **options)
    if bool((func(inside, **options) < 0).any()):
        node.refuse(WINDOW_IN_PADDING)
    return result


@operation("AveragePool", f"ceil_mode count_include_pad {GEOMETRY}")
def average_pool(program: Program, node: Node, x: Operand) -> Value:
    value, window = _input_and_window(node, x)
    if any(dilation != 1 for dilation in window.dilation):
        node.refuse("has dilations, which are not supported for average pooling; export the network without them.")
    func, work, counted = _AVERAGES[len(window.kernel)], math.prod(window.kernel), node.integer("count_include_pad", 0)
    options: dict[str, Any] = {"kernel_size": window.kernel, "stride": window.stride}
    unrounded = read_window(node, value.shape[2:])
    if _torch_can_pad(window) and window == unrounded:
        options |= {"padding": window.before, "count_include_pad": bool(counted)}
        return program.call(node, func, value, work=work, **options)
    # The average over the whole window, divided by the fraction of the window that counts.
    averages = program.call(node, func, add_border(program, node, value, window, 0.0), work=work, **options)
    mask = torch.ones(1, 1, *value.shape[2:], dtype=program.dtype)
    mask = F.pad(mask, border_sizes(unrounded), value=float(bool(counted)))
    added = [a - b for a, b in zip(window.after, unrounded.after, strict=True)]  # padding of ceil_mode never counts
    fraction = func(F.pad(mask, [pad for size in reversed(added) for pad in (0, size)]), **options)[0]
    if bool((fraction == 0).any()):
        node.refuse(WINDOW_IN_PADDING)
    return program.call(node, torch.div, averages, fraction, shape=averages.shape)


def _input_and_window(node: Node, x: Operand) -> tuple[Value, Window]:
    value = dynamic(node, x)
    if not value.has_batch_axis or len(value.shape) - 2 not in _MAXIMA:
        _refuse_shape(node, value)
    window = read_window(node, value.shape[2:])
    return value, window.rounded_up(value.shape[2:]) if node.integer("ceil_mode", 0) else window


def _refuse_shape(node: Node, value: Value) -> NoReturn:
    node.refuse(f"pools a value of shape {value.shape}; expected (1, C, H, W) or (1, C, L).")


def _torch_can_pad(window: Window) -> bool:
    """Return whether the `padding` argument of torch's pooling can express the padding of this window."""
    return window.symmetric and all(2 * b <= k for b, k in zip(window.before, window.kernel, strict=True))


@operation("GlobalAveragePool")
def global_average_pool(program: Program, node: Node, x: Operand) -> Value:
    value = _feature_maps(node, x)
    return program.call(node, torch.mean, value, dim=tuple(range(2, len(value.shape))), keepdim=True)


@operation("GlobalMaxPool")
def global_max_pool(program: Program, node: Node, x: Operand) -> Value:
    value = _feature_maps(node, x)
    if len(value.shape) - 2 not in _MAXIMA:
        _refuse_shape(node, value)
    return program.call(node, _MAXIMA[len(value.shape) - 2], value, kernel_size=value.shape[2:])


def _feature_maps(node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    if not value.has_batch_axis or len(value.shape) < 3:
        _refuse_shape(node, value)
    return value


@operation("ReduceMean ReduceSum", "axes keepdims noop_with_empty_axes")
def reduce(program: Program, node: Node, x: Operand, axes: Operand = None) -> Value:
    value = dynamic(node, x)
    over, shape = shapes.reduced(node, value.shape, axes)
    if not over:
        return value
    dims = tuple(value.axis(node, axis) for axis in over)
    func = torch.mean if node.op == "ReduceMean" else torch.sum
    return program.call(node, func, value, dim=dims, keepdim=bool(node.integer("keepdims", 1)), shape=shape)
