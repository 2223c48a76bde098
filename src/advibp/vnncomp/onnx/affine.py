"""Convolutions, matrix products and BatchNorm, their weights laid out as torch wants them."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node
from advibp.vnncomp.onnx.onnx_limits import MOST_ELEMENTS
from advibp.vnncomp.onnx.operations import dynamic, operation
from advibp.vnncomp.onnx.sliding import GEOMETRY, padded, window
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}


@operation("Conv", f"group {GEOMETRY}")
def conv(program: Program, node: Node, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    value, kernel = dynamic(node, x), node.constant(weight, "W")
    func = _CONVOLUTIONS.get(kernel.dim() - 2)
    if func is None or not value.led or len(value.shape) != kernel.dim():
        node.refuse(f"convolves {value.shape} with {tuple(kernel.shape)}, and (1, C, H, W) or (1, C, L) was expected.")
    slides = window(node, value.shape[2:], tuple(kernel.shape[2:]))
    groups = node.integer("group", 1)
    if groups < 1 or value.shape[1] != kernel.shape[1] * groups or len(kernel) % groups:
        node.refuse(f"has {groups} groups of {kernel.shape[1]} channels, but {value.shape[1]} come in; export again.")
    if bias is not None and node.constant(bias, "B").shape != kernel.shape[:1]:
        node.refuse(f"has {len(kernel)} filters and another number of biases; the file is damaged, export it again.")
    work = math.prod(kernel.shape[1:])
    if math.prod(slides.output(value.shape[2:])) * work > 2 * MOST_ELEMENTS:  # torch may lay all windows out
        node.refuse("slides a kernel that is too large over an image that is too large; smaller ones are read.")
    value, padding = padded(program, node, value, slides)
    return program.call(
        node,
        func,
        value,
        kernel,
        bias,
        work=work,
        stride=slides.stride,
        padding=padding,
        dilation=slides.dilation,
        groups=groups,
    )


@operation("Gemm", "alpha beta transA transB")
def gemm(program: Program, node: Node, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    """alpha x W + beta C."""
    value, matrix = dynamic(node, x), node.constant(weight, "B")
    if node.integer("transA", 0):
        node.refuse("transposes its input, and with it the batch axis; export it without transA.")
    if len(value.shape) != 2 or matrix.dim() != 2:
        node.refuse(f"multiplies {value.shape} by {tuple(matrix.shape)}, and two axes each were expected.")
    matrix = matrix if node.integer("transB", 0) else matrix.T
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    offset = None if bias is None else _per_output(node, node.constant(bias, "C") * beta, len(matrix))
    return _linear(program, node, value, matrix if alpha == 1 else matrix * alpha, offset)


def _per_output(node: Node, bias: Tensor, outputs: int) -> Tensor:
    if bias.numel() not in (1, outputs) or tuple(bias.shape[:-1]) not in ((), (1,)):
        node.refuse(f"adds a constant of shape {tuple(bias.shape)}, and one of ({outputs},) was expected.")
    return bias.reshape(-1).expand(outputs).contiguous()


def _linear(program: Program, node: Node, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    """x (..., J) and W (K, J) -> (..., K)."""
    if x.led and len(x.shape) == 1:
        node.refuse("sums over the batch axis; only what keeps images apart is read.")
    shape = (*x.shape[:-1], len(weight))
    return program.call(node, F.linear, x, weight.contiguous(), bias, shape=shape, work=weight.shape[1])


@operation("MatMul")
def matmul(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        node.refuse("multiplies two values that both depend on the input, of which there are no bounds.")
    if isinstance(a, Value):
        return _from_right(program, node, a, node.constant(b, "B"))
    return _from_left(program, node, node.constant(a, "A"), dynamic(node, b))


def _from_right(program: Program, node: Node, x: Value, factor: Tensor) -> Value:
    if factor.dim() == 1:
        column = _linear(program, node, x, factor[None])
        return program.reshape(node, column, x.shape[:-1])
    return _linear(program, node, x, _matrix(node, factor, x).T)


def _from_left(program: Program, node: Node, factor: Tensor, x: Value) -> Value:
    if len(x.shape) == 1:
        return _linear(program, node, x, _matrix(node, factor, x))
    if x.led and len(x.shape) == 2:
        node.refuse("sums over the batch axis; only what keeps images apart is read.")
    matrix = _matrix(node, factor, x)
    shape = (*x.shape[:-2], len(matrix), x.shape[-1])
    return program.call(node, torch.matmul, matrix, x, shape=shape, work=matrix.shape[1])


def _matrix(node: Node, factor: Tensor, x: Value) -> Tensor:
    """A constant factor of two axes, and perhaps more in front that are 1 and change nothing."""
    if factor.dim() < 2 or math.prod(factor.shape[:-2]) != 1 or factor.dim() > max(2, len(x.shape)):
        node.refuse(f"has a constant factor of shape {tuple(factor.shape)}, and one of two axes was expected.")
    return factor.reshape(factor.shape[-2:])


@operation("BatchNormalization", "epsilon momentum spatial training_mode")
def batch_norm(
    program: Program, node: Node, x: Operand, scale: Operand, bias: Operand, mean: Operand, variance: Operand
) -> Value:
    value = dynamic(node, x)
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        node.refuse("takes its statistics from the batch, or per pixel; export the network in evaluation mode.")
    named = {"scale": scale, "B": bias, "mean": mean, "var": variance}
    weight, offset, center, spread = (node.constant(operand, name) for name, operand in named.items())
    channels = value.shape[1:2]
    if not value.led or not channels or any(t.shape != channels for t in (weight, offset, center, spread)):
        node.refuse(f"needs an input of (1, C, ...) and four numbers per channel, but the input is {value.shape}.")
    options: dict[str, Any] = {"training": False, "momentum": 0.0, "eps": node.number("epsilon", 1e-5)}
    return program.call(node, F.batch_norm, value, center, spread, weight, offset, **options)
