"""Operations that lay elements out anew, or take some of them; the images stay apart."""

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
def reshape(program: Program, node: Node, x: Operand, how: Operand = None) -> Value:
    value = dynamic(node, x)
    target = (value.shape,) if node.op == "Flatten" else (value.shape, how)
    return program.reshape(node, value, _SHAPES[node.op](node, *target))


@operation("Transpose", "perm")
def transpose(program: Program, node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    order = shapes.permutation(node, value.shape)
    shape = tuple(value.shape[axis] for axis in order)
    real = [axis for axis in order if value.shape[axis] != 1]
    if real == sorted(real):  # axes of size 1 alone move
        return program.reshape(node, value, shape)
    if value.led:
        if order[0] != 0:
            node.refuse(f"moves the batch axis of shape {value.shape}; only what keeps images apart is read.")
        return program.call(node, torch.permute, value, dims=order)
    return program.call(node, torch.permute, value, dims=(0, *(axis + 1 for axis in order)), shape=shape)


@operation("Concat", "axis")
def concat(program: Program, node: Node, *parts: Operand) -> Value:
    given = [part for part in parts if part is not None]
    first = next(part for part in given if isinstance(part, Value))
    axis = node.axis(node.integer("axis", 1), len(first.shape))
    place = first.axis(node, axis)
    if any(len(part.shape) != len(first.shape) for part in given):
        node.refuse("joins values with different numbers of axes; the file is damaged, export it again.")
    shape = list(first.shape)
    shape[axis] = sum(part.shape[axis] for part in given)
    laid = [_laid_out(program, node, part, first.led) for part in given]
    fixed = tuple(i for i, part in enumerate(given) if isinstance(part, Tensor))
    return program.call(node, join, *laid, axis=place, fixed=fixed, shape=tuple(shape))


def _laid_out(program: Program, node: Node, part: Value | Tensor, led: bool) -> Value | Tensor:
    """A part with an axis for the images in front, even where an axis of size 1 looks like one."""
    shape = tuple(part.shape) if led else (1, *part.shape)
    return part.reshape(shape) if isinstance(part, Tensor) else program.reshape(node, part, shape)


def join(*parts: Tensor, axis: int, fixed: tuple[int, ...]) -> Tensor:
    """Parts (B, ...), of which those that are fixed are (1, ...)."""
    images = next(part.shape[0] for i, part in enumerate(parts) if i not in fixed)
    whole = [part.expand(images, *part.shape[1:]) if i in fixed else part for i, part in enumerate(parts)]
    return torch.cat(whole, axis)


@operation("Slice", "starts ends axes")
def cut(program: Program, node: Node, x: Operand, *limits: Operand) -> Value:
    value = dynamic(node, x)
    for axis, taken in shapes.ranges(node, value.shape, *limits).items():
        if taken != range(value.shape[axis]):
            value = _take(program, node, value, axis, shapes.indices(taken))
    return value


@operation("Gather", "axis")
def gather(program: Program, node: Node, x: Operand, indices: Operand) -> Value:
    value = dynamic(node, x)
    axis = node.axis(node.integer("axis", 0), len(value.shape))
    taken, layout = shapes.positions(node, value.shape[axis], indices)
    before, after = value.shape[:axis], value.shape[axis + 1 :]
    if not torch.equal(taken, torch.arange(value.shape[axis])):
        value = _take(program, node, value, axis, taken)
    return program.reshape(node, value, (*before, *layout, *after))


def _take(program: Program, node: Node, x: Value, axis: int, taken: Tensor) -> Value:
    """These elements of an axis of the file."""
    if not len(taken):
        node.refuse("takes no elements; the file is damaged, export it again.")
    place = x.axis(node, axis)
    shape = _resized(x.shape, axis, len(taken))
    start = int(taken[0])
    if torch.equal(taken, torch.arange(start, start + len(taken))):
        return program.call(node, torch.narrow, x, shape=shape, dim=place, start=start, length=len(taken))
    return program.call(node, pick, x, taken, shape=shape, dim=place)


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
        node.refuse("pads by copies of pixels, which is not read; pad by a constant.")
    named = range(len(value.shape)) if axes is None else node.whole(axes, "axes")
    sizes = node.integers_at("pads", pads) or ()
    if len(sizes) != 2 * len(named) or any(abs(size) > 2**20 for size in sizes):
        node.refuse(f"has pads {sizes[:24]} for {len(named)} axes; the file is damaged, export it again.")
    filling = node.number("value", 0.0) if number is None else _single(node, number)
    shapes.distinct(node, tuple(named), len(value.shape))
    borders = dict(zip(named, zip(sizes, sizes[len(named) :], strict=False), strict=True))
    found = {value.axis(node, axis): ends for axis, ends in borders.items() if ends != (0, 0)}
    if not found:
        return value
    flat = [size for axis in range(max(1, len(value.rows)), 0, -1) for size in found.get(axis, (0, 0))]
    shape = list(value.rows)
    for axis, ends in found.items():
        shape[axis - 1] += sum(ends)
    whole = (1, *shape) if value.led else tuple(shape)
    return program.call(node, F.pad, value, shape=whole, pad=tuple(flat), value=filling)


def _single(node: Node, operand: Operand) -> float:
    number = node.constant(operand, "constant_value")
    if number.numel() != 1 or not math.isfinite(float(number)):
        node.refuse("pads by something that is not one finite number; export it again.")
    return float(number)
