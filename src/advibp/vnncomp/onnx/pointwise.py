"""Convert elementwise nodes, with broadcasting, to torch calls."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.onnx_file import TYPES
from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.operations import PRODUCT_OF_VALUES, dynamic, operation
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value, item_shape_of

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Relu": F.relu,
    "Sigmoid": torch.sigmoid,
    "Tanh": torch.tanh,
    "Neg": torch.neg,
}


@operation("Relu Sigmoid Tanh Neg")
def unary(program: Program, node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    return program.call(node, _FUNCTIONS[node.op], value, shape=value.shape)


@operation("LeakyRelu", "alpha")
def leaky_relu(program: Program, node: Node, x: Operand) -> Value:
    value = dynamic(node, x)
    slope = node.number("alpha", 0.01)
    return program.call(node, F.leaky_relu, value, shape=value.shape, negative_slope=slope)


@operation("Clip", "min max")
def clip(program: Program, node: Node, x: Operand, low: Operand = None, high: Operand = None) -> Value:
    value = dynamic(node, x)
    ends = [_end(node, "min", low, -math.inf), _end(node, "max", high, math.inf)]
    if ends == [0.0, math.inf]:
        return program.call(node, F.relu, value, shape=value.shape)  # which has tighter bounds than clamp
    low_end, high_end = (end if math.isfinite(end) else None for end in ends)
    if low_end is high_end is None:
        return value
    return program.call(node, torch.clamp, value, shape=value.shape, min=low_end, max=high_end)


def _end(node: Node, name: str, operand: Operand, default: float) -> float:
    if operand is None:
        return node.number(name, default)
    end = node.constant(operand, name)
    return float(end) if end.numel() == 1 else node.refuse(f"needs one number as '{name}'; export it again.")


@operation("Identity")
def identity(program: Program, node: Node, x: Operand) -> Value:
    return dynamic(node, x)


@operation("Dropout", "ratio seed")
def dropout(program: Program, node: Node, x: Operand, ratio: Operand = None, training: Operand = None) -> Value:
    if training is not None and bool(node.constant(training, "training_mode")):
        node.refuse("is in training mode; export the network in evaluation mode.")
    return dynamic(node, x)


@operation("Cast", "to saturate round_mode")
def cast(program: Program, node: Node, x: Operand) -> Value:
    if TYPES.get(node.integer("to", 0)) != str(program.dtype).removeprefix("torch."):
        node.refuse(f"casts {program.dtype} values to another type; export the network in one type.")
    return dynamic(node, x)


@operation("Add")
def add(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    return _broadcast(program, node, torch.add, a, b)


@operation("Sub")
def sub(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    return _broadcast(program, node, torch.sub, a, b)


@operation("Mul")
def mul(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        node.refuse(PRODUCT_OF_VALUES)
    return _broadcast(program, node, torch.mul, a, b)


@operation("Div")
def div(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    if isinstance(b, Value):
        node.refuse("divides by a value that depends on the input, which has no bounds; divide by constants.")
    return _broadcast(program, node, torch.div, a, b)


def _broadcast(program: Program, node: Node, func: Callable[..., Any], a: Operand, b: Operand) -> Value:
    if a is None or b is None:
        node.refuse("has one input instead of two; the file is damaged, export it again.")
    shape = tuple(torch.broadcast_shapes(tuple(a.shape), tuple(b.shape)))
    if any(isinstance(value, Value) and value.has_batch_axis for value in (a, b)) and shape[0] != 1:
        node.refuse(
            f"repeats the batch axis: shapes {tuple(a.shape)} and {tuple(b.shape)} broadcast to {shape}; export it "
            "again for a batch of 1."
        )
    return program.call(node, func, *(_aligned(program, node, value, shape) for value in (a, b)), shape=shape)


def _aligned(program: Program, node: Node, value: Value | Tensor, shape: Shape) -> Value | Tensor:
    """Reshape an operand so that it broadcasts to `shape` (of the file) behind the batch axis."""
    item_shape = item_shape_of(shape)
    if isinstance(value, Tensor):
        constant = value.reshape(value.shape[1:]) if value.dim() > len(item_shape) else value
        if constant.is_floating_point():
            return constant
        node.refuse(f"has a constant of {constant.dtype} for values of {program.dtype}; export it again.")
    longer = (*[1] * (len(item_shape) - len(value.item_shape)), *value.item_shape)
    return program.reshape(node, value, (1, *longer))
