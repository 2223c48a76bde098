"""Convert nodes that reshape, permute, join, slice or pad to torch calls. None may mix the items of a batch."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx import shapes
from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.operations import dynamic, operation
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

_SHAPES: dict[str, Any] = {
    "Reshape": shapes.reshaped,
    "Flatten": shapes.flattened,
    "Squeeze": shapes.squeezed,
    "Unsqueeze": shapes.unsqueezed,
}


@operation("Reshape", "allowzero")
@operation("Squeeze Unsqueeze", "axes")
@operation("Flatten", "axis")
def reshape(program: Program, node: Node, x: Operand, argument: Operand = None) -> Value:
    value = dynamic(node, x)
    target = (value.shape,) if node.op == "Flatten" else (value.shape, argument)
    return program.reshape(node, value, _SHAPES[node.op](node, *target))


@operation("Transpose", "perm")
def transpose(program: Program, node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    order = shapes.permutation(node, value.shape)
    shape = tuple(value.shape[axis] for axis in order)
    larger = [axis for axis in order if value.shape[axis] != 1]
    if larger == sorted(larger):  # only axes of size 1 move
        return program.reshape(node, value, shape)
    if value.has_batch_axis:
        if order[0] != 0:
            node.refuse(f"moves the batch axis of shape {value.shape}, which is not supported.")
        return program.call(node, torch.permute, value, dims=order)
    return program.call(node, torch.permute, value, dims=(0, *(axis + 1 for axis in order)), shape=shape)


@operation("Concat", "axis")
def concat(program: Program, node: Node, *parts: Operand) -> Value:
    present = [part for part in parts if part is not None]
    first = next(part for part in present if isinstance(part, Value))
    axis = node.axis(node.integer("axis", 1), len(first.shape))
    dim = first.axis(node, axis)
    if any(len(part.shape) != len(first.shape) for part in present):
        node.refuse("joins values with different numbers of axes; the file is damaged, export it again.")
    shape = list(first.shape)
    shape[axis] = sum(part.shape[axis] for part in present)
    batched = [_with_batch_axis(program, node, part, first.has_batch_axis) for part in present]
    fixed = tuple(i for i, part in enumerate(present) if isinstance(part, Tensor))
    return program.call(node, join, *batched, axis=dim, fixed=fixed, shape=tuple(shape))


def _with_batch_axis(program: Program, node: Node, part: Value | Tensor, has_batch_axis: bool) -> Value | Tensor:
    """Add a batch axis, unless the values have one in the file. A first axis of size 1 alone does not tell."""
    shape = tuple(part.shape) if has_batch_axis else (1, *part.shape)
    return part.reshape(shape) if isinstance(part, Tensor) else program.reshape(node, part, shape)


def join(*parts: Tensor, axis: int, fixed: tuple[int, ...]) -> Tensor:
    """Concatenate parts (B, ...); constant parts, whose positions are in `fixed`, are (1, ...)."""
    batch = next(part.shape[0] for i, part in enumerate(parts) if i not in fixed)
    expanded = [part.expand(batch, *part.shape[1:]) if i in fixed else part for i, part in enumerate(parts)]
    return torch.cat(expanded, axis)


@operation("Slice", "starts ends axes")
def cut(program: Program, node: Node, x: Operand, *limits: Operand) -> Value:
    value = dynamic(node, x)
    for axis, selected in shapes.ranges(node, value.shape, *limits).items():
        if selected != range(value.shape[axis]):
            value = _select(program, node, value, axis, shapes.indices(selected))
    return value


@operation("Gather", "axis")
def gather(program: Program, node: Node, x: Operand, indices: Operand) -> Value:
    value = dynamic(node, x)
    axis = node.axis(node.integer("axis", 0), len(value.shape))
    selected, layout = shapes.positions(node, value.shape[axis], indices)
    before, after = value.shape[:axis], value.shape[axis + 1 :]
    if not torch.equal(selected, torch.arange(value.shape[axis])):
        value = _select(program, node, value, axis, selected)
    return program.reshape(node, value, (*before, *layout, *after))


def _select(program: Program, node: Node, x: Value, axis: int, selected: Tensor) -> Value:
    """Select elements of an axis (of the file) by their indices (N,)."""
    if not len(selected):
        node.refuse("selects no elements; the file is damaged, export it again.")
    dim = x.axis(node, axis)
    shape = _resized(x.shape, axis, len(selected))
    start = int(selected[0])
    if torch.equal(selected, torch.arange(start, start + len(selected))):
        return program.call(node, torch.narrow, x, shape=shape, dim=dim, start=start, length=len(selected))
    return program.call(node, pick, x, selected, shape=shape, dim=dim)


def pick(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return torch.index_select(x, dim, index)


def _resized(shape: Shape, axis: int, size: int) -> Shape:
    return (*shape[:axis], size, *shape[axis + 1 :])


@operation("Pad", "mode pads value")
def pad(
    program: Program, node: Node, x: Operand, pads: Operand = None, number: Operand = None, axes: Operand = None
) -> Value:
    value = dynamic(node, x)
    if node.text("mode", "constant") != "constant":
        node.refuse("pads with copies of pixels, which is not supported; pad with a constant.")
    padded_axes = range(len(value.shape)) if axes is None else node.integers_of(axes, "axes")
    sizes = node.integers_at("pads", pads) or ()
    if len(sizes) != 2 * len(padded_axes) or any(abs(size) > 2**20 for size in sizes):
        node.refuse(f"has pads {sizes[:24]} for {len(padded_axes)} axes; the file is damaged, export it again.")
    fill = node.number("value", 0.0) if number is None else _finite_number(node, number)
    shapes.distinct(node, tuple(padded_axes), len(value.shape))
    pairs = dict(zip(padded_axes, zip(sizes, sizes[len(padded_axes) :], strict=False), strict=True))
    by_dim = {value.axis(node, axis): pair for axis, pair in pairs.items() if pair != (0, 0)}
    if not by_dim:
        return value
    flat = [size for dim in range(max(1, len(value.item_shape)), 0, -1) for size in by_dim.get(dim, (0, 0))]
    item_shape = list(value.item_shape)
    for dim, pair in by_dim.items():
        item_shape[dim - 1] += sum(pair)
    shape = (1, *item_shape) if value.has_batch_axis else tuple(item_shape)
    return program.call(node, F.pad, value, shape=shape, pad=tuple(flat), value=fill)


def _finite_number(node: Node, operand: Operand) -> float:
    number = node.constant(operand, "constant_value")
    if number.numel() != 1 or not math.isfinite(float(number)):
        node.refuse("does not pad with one finite number; export it again.")
    return float(number)
