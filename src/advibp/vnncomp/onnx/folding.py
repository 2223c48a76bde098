"""Constant folding: compute nodes whose inputs are all constants while the file is loaded.

Exporters write shapes as small computations (Shape, Gather, Concat, Reshape) and may transpose weights. The size of
each result is checked before it is computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from advibp.vnncomp.onnx import shapes
from advibp.vnncomp.onnx.onnx_file import TYPES
from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.onnx_limits import MAX_ELEMENTS
from advibp.vnncomp.onnx.torch_program import Operand

Fold = Callable[..., Tensor]  # (node, *constants); an omitted constant is None


class Folding:
    """Computes constant nodes; all results together have at most MAX_ELEMENTS elements."""

    def __init__(self) -> None:
        self._remaining = MAX_ELEMENTS

    def supports(self, node: Node) -> bool:
        return node.op in _FOLDS

    def run(self, node: Node, operands: Sequence[Operand]) -> Tensor:
        """Return the node's result. Shape and Size also accept values that depend on the network's input."""
        self._spend(node, 1 if node.op in ("Constant", "Shape", "Size") else _elements(node, operands))
        return _FOLDS[node.op](node, *operands)

    def _spend(self, node: Node, count: int) -> None:
        self._remaining -= count
        if self._remaining < 0:
            node.refuse(f"is constant, and constant nodes have more than {MAX_ELEMENTS:,} elements in total: too many.")


def _elements(node: Node, operands: Sequence[Operand]) -> int:
    """Return an upper bound of the elements of the result and of the multiplications it takes."""
    sizes = [tuple(operand.shape) for operand in operands if operand is not None]
    if node.op in ("ConstantOfShape", "Expand"):
        shape = node.integers_of(operands[-1], "shape")
        if any(size < 0 for size in shape):
            node.refuse(f"has a constant of shape {shape}; the file is damaged, export it again.")
        return math.prod(torch.broadcast_shapes(shape, *sizes[:-1]))
    if node.op == "MatMul":
        if any(len(shape) > 2 for shape in sizes):
            node.refuse("multiplies constants with more than two axes, which is not supported.")
        return math.prod(sizes[0]) * math.prod(sizes[1][-1:])
    if node.op in ("Add", "Sub", "Mul", "Div", "Pow"):
        return math.prod(torch.broadcast_shapes(*sizes))
    if node.op == "Gather":
        return math.prod(sizes[1]) * (1 + math.prod(sizes[0]) // max(1, *sizes[0]))
    return sum(map(math.prod, sizes))


def _constant(node: Node) -> Tensor:
    names = ("value", "value_int", "value_ints", "value_float", "value_floats")
    values = [node.attributes[name] for name in names if name in node.attributes]
    if len(values) != 1:
        node.refuse("has no number or tensor of a supported type; export the network again.")
    value = values[0]
    if isinstance(value, Tensor):
        return value
    numbers = value if isinstance(value, tuple) else (value,)
    kind = torch.int64 if all(isinstance(number, int) for number in numbers) else torch.float32
    return torch.tensor(value, dtype=kind)


def _shape(node: Node, value: Any) -> Tensor:
    sizes = tuple(value.shape)
    end = node.attributes.get("end", len(sizes))
    return torch.tensor(sizes[node.integer("start", 0) : end if isinstance(end, int) else None], dtype=torch.int64)


def _size(node: Node, value: Any) -> Tensor:
    return torch.tensor(math.prod(value.shape))


def _cast(node: Node, value: Tensor) -> Tensor:
    kind = TYPES.get(node.integer("to", 0))
    if kind is None:
        node.refuse("casts a constant to a type that is not supported; export the network in float32.")
    return value.to(getattr(torch, kind))


def _constant_of_shape(node: Node, shape: Tensor) -> Tensor:
    value = node.attributes.get("value", torch.zeros(1))
    return value.reshape(()).expand(node.integers_of(shape, "shape")).contiguous()


def _expand(node: Node, value: Tensor, shape: Tensor) -> Tensor:
    return value.expand(torch.broadcast_shapes(value.shape, node.integers_of(shape, "shape"))).contiguous()


def _reshaping(target: Callable[..., Shape]) -> Fold:
    return lambda node, value, *arguments: value.reshape(target(node, tuple(value.shape), *arguments))


def _transpose(node: Node, value: Tensor) -> Tensor:
    return value.permute(shapes.permutation(node, tuple(value.shape)))


def _concat(node: Node, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.axis(node.integer("axis", 1), parts[0].dim()))


def _slice(node: Node, value: Tensor, *limits: Operand) -> Tensor:
    for axis, selected in shapes.ranges(node, tuple(value.shape), *limits).items():
        value = value.index_select(axis, shapes.indices(selected))
    return value


def _gather(node: Node, value: Tensor, indices: Tensor) -> Tensor:
    axis = node.axis(node.integer("axis", 0), value.dim())
    selected, layout = shapes.positions(node, value.shape[axis], indices)
    return value.index_select(axis, selected).reshape((*value.shape[:axis], *layout, *value.shape[axis + 1 :]))


def _div(node: Node, a: Tensor, b: Tensor) -> Tensor:
    if a.is_floating_point():
        return a / b
    if bool((b == 0).any()):
        node.refuse("divides integers by zero; the file is damaged, export it again.")
    return torch.div(a, b, rounding_mode="trunc")


def _same_kind(func: Callable[..., Tensor]) -> Fold:
    return lambda node, *values: func(*values)


_FOLDS: dict[str, Fold] = {
    "Add": _same_kind(torch.add),
    "Cast": _cast,
    "Concat": _concat,
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Div": _div,
    "Expand": _expand,
    "Flatten": _reshaping(shapes.flattened),
    "Gather": _gather,
    "Identity": _same_kind(torch.clone),
    "MatMul": _same_kind(torch.matmul),
    "Mul": _same_kind(torch.mul),
    "Neg": _same_kind(torch.neg),
    "Pow": _same_kind(torch.pow),
    "Reciprocal": _same_kind(torch.reciprocal),
    "Reshape": _reshaping(shapes.reshaped),
    "Shape": _shape,
    "Size": _size,
    "Slice": _slice,
    "Sqrt": _same_kind(torch.sqrt),
    "Squeeze": _reshaping(shapes.squeezed),
    "Sub": _same_kind(torch.sub),
    "Transpose": _transpose,
    "Unsqueeze": _reshaping(shapes.unsqueezed),
}
