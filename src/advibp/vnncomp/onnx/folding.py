"""Nodes whose inputs are all constants: computed once, when a file is read.

Exporters write shapes as small computations (Shape, Gather, Concat, Reshape), and weights that are transposed. A result
is made only after it was seen to be small enough.
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
from advibp.vnncomp.onnx.onnx_limits import MOST_ELEMENTS
from advibp.vnncomp.onnx.torch_program import Operand

Fold = Callable[..., Tensor]  # (node, *constants), of which those that were left out are None


class Folding:
    """Computes constants, up to a number of elements in all."""

    def __init__(self) -> None:
        self._left = MOST_ELEMENTS

    def knows(self, node: Node) -> bool:
        return node.op in _FOLDS

    def run(self, node: Node, operands: Sequence[Operand]) -> Tensor:
        """The node's result. Shape and Size have one for a value that depends on the input, too."""
        self._spend(node, 1 if node.op in ("Constant", "Shape", "Size") else _elements(node, operands))
        return _FOLDS[node.op](node, *operands)

    def _spend(self, node: Node, count: int) -> None:
        self._left -= count
        if self._left < 0:
            node.refuse(f"is constant, and all such have more than {MOST_ELEMENTS:,} numbers; smaller files are read.")


def _elements(node: Node, operands: Sequence[Operand]) -> int:
    """At most so many numbers, or multiplications, a result takes."""
    sizes = [tuple(operand.shape) for operand in operands if operand is not None]
    if node.op in ("ConstantOfShape", "Expand"):
        wanted = node.whole(operands[-1], "shape")
        if any(size < 0 for size in wanted):
            node.refuse(f"makes a constant of shape {wanted}; the file is damaged, export it again.")
        return math.prod(torch.broadcast_shapes(wanted, *sizes[:-1]))
    if node.op == "MatMul":
        if any(len(shape) > 2 for shape in sizes):
            node.refuse("multiplies constants of more than two axes, which is not read; export it again.")
        return math.prod(sizes[0]) * math.prod(sizes[1][-1:])
    if node.op in ("Add", "Sub", "Mul", "Div", "Pow"):
        return math.prod(torch.broadcast_shapes(*sizes))
    if node.op == "Gather":
        return math.prod(sizes[1]) * (1 + math.prod(sizes[0]) // max(1, *sizes[0]))
    return sum(map(math.prod, sizes))


def _constant(node: Node) -> Tensor:
    names = ("value", "value_int", "value_ints", "value_float", "value_floats")
    given = [node.attributes[name] for name in names if name in node.attributes]
    if len(given) != 1:
        node.refuse("holds no number or tensor of the kinds that are read; export it again.")
    value = given[0]
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
        node.refuse("turns a constant into a type that is not read; export the network in float32.")
    return value.to(getattr(torch, kind))


def _constant_of_shape(node: Node, shape: Tensor) -> Tensor:
    value = node.attributes.get("value", torch.zeros(1))
    return value.reshape(()).expand(node.whole(shape, "shape")).contiguous()


def _expand(node: Node, value: Tensor, shape: Tensor) -> Tensor:
    return value.expand(torch.broadcast_shapes(value.shape, node.whole(shape, "shape"))).contiguous()


def _reshaping(target: Callable[..., Shape]) -> Fold:
    return lambda node, value, *how: value.reshape(target(node, tuple(value.shape), *how))


def _transpose(node: Node, value: Tensor) -> Tensor:
    return value.permute(shapes.permutation(node, tuple(value.shape)))


def _concat(node: Node, *parts: Tensor) -> Tensor:
    return torch.cat(parts, node.axis(node.integer("axis", 1), parts[0].dim()))


def _slice(node: Node, value: Tensor, *limits: Operand) -> Tensor:
    for axis, taken in shapes.ranges(node, tuple(value.shape), *limits).items():
        value = value.index_select(axis, shapes.indices(taken))
    return value


def _gather(node: Node, value: Tensor, indices: Tensor) -> Tensor:
    axis = node.axis(node.integer("axis", 0), value.dim())
    taken, layout = shapes.positions(node, value.shape[axis], indices)
    found = value.index_select(axis, taken)
    return found.reshape((*value.shape[:axis], *layout, *value.shape[axis + 1 :]))


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
