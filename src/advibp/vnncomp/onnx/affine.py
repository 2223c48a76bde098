"""Convert Conv, Gemm, MatMul and BatchNormalization nodes to torch calls."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node
from advibp.vnncomp.onnx.onnx_limits import MAX_ELEMENTS
from advibp.vnncomp.onnx.operations import PRODUCT_OF_VALUES, dynamic, operation
from advibp.vnncomp.onnx.sliding import GEOMETRY, pad_for_convolution, read_window
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value, reshape

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}


@operation("Conv", f"group {GEOMETRY}")
def conv(program: Program, node: Node, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    value, kernel = dynamic(node, x), node.constant(weight, "W")
    func = _CONVOLUTIONS.get(kernel.dim() - 2)
    if func is None or not value.has_batch_axis or len(value.shape) != kernel.dim():
        node.refuse(
            f"has an input of shape {value.shape} and a kernel of shape {tuple(kernel.shape)}; expected an input of "
            "shape (1, C, H, W) or (1, C, L)."
        )
    window = read_window(node, value.shape[2:], tuple(kernel.shape[2:]))
    groups = node.integer("group", 1)
    if groups < 1 or value.shape[1] != kernel.shape[1] * groups or len(kernel) % groups:
        node.refuse(
            f"has {groups} groups of {kernel.shape[1]} channels, but its input has {value.shape[1]} channels; export "
            "the network again."
        )
    if bias is not None and node.constant(bias, "B").shape != kernel.shape[:1]:
        node.refuse(f"has {len(kernel)} filters but a different number of biases; export the network again.")
    work = math.prod(kernel.shape[1:])
    if math.prod(window.output(value.shape[2:])) * work > 2 * MAX_ELEMENTS:  # torch may copy all windows (im2col)
        node.refuse("needs too much memory; use a smaller kernel or a smaller image.")
    value, padding = pad_for_convolution(program, node, value, window)
    return program.call(
        node,
        func,
        value,
        kernel,
        bias,
        work=work,
        stride=window.stride,
        padding=padding,
        dilation=window.dilation,
        groups=groups,
    )


@operation("Gemm", "alpha beta transA transB")
def gemm(program: Program, node: Node, x: Operand, weight: Operand, bias: Operand = None) -> Value:
    """alpha x W + beta C."""
    value, matrix = dynamic(node, x), node.constant(weight, "B")
    if node.integer("transA", 0):
        node.refuse("transposes its input, including the batch axis; export the network without transA.")
    if len(value.shape) != 2 or matrix.dim() != 2:
        node.refuse(f"multiplies shapes {value.shape} and {tuple(matrix.shape)}; expected two axes in each.")
    matrix = matrix if node.integer("transB", 0) else matrix.T
    alpha, beta = node.number("alpha", 1.0), node.number("beta", 1.0)
    offset = None if bias is None else _per_output(node, node.constant(bias, "C") * beta, len(matrix))
    return _linear(program, node, value, matrix if alpha == 1 else matrix * alpha, offset)


def _per_output(node: Node, bias: Tensor, outputs: int) -> Tensor:
    """Return the bias with shape (outputs,)."""
    if bias.numel() not in (1, outputs) or tuple(bias.shape[:-1]) not in ((), (1,)):
        node.refuse(f"adds a constant of shape {tuple(bias.shape)}; expected shape ({outputs},).")
    return bias.reshape(-1).expand(outputs).contiguous()


def _linear(program: Program, node: Node, x: Value, weight: Tensor, bias: Tensor | None = None) -> Value:
    """Add a linear layer: x (..., J) and W (K, J) -> (..., K)."""
    shape = (*x.shape[:-1], len(weight))
    if x.shape == (1,):  # one number for each item: no batch axis, because the product sums over it
        x = program.call(node, reshape, x, shape=(1, 1), item_shape=(1,))
    return program.call(node, F.linear, x, weight.contiguous(), bias, shape=shape, work=weight.shape[1])


@operation("MatMul")
def matmul(program: Program, node: Node, a: Operand, b: Operand) -> Value:
    if isinstance(a, Value) and isinstance(b, Value):
        node.refuse(PRODUCT_OF_VALUES)
    if isinstance(a, Value):
        return _multiply_right(program, node, a, node.constant(b, "B"))
    return _multiply_left(program, node, node.constant(a, "A"), dynamic(node, b))


def _multiply_right(program: Program, node: Node, x: Value, factor: Tensor) -> Value:
    """Add x @ factor."""
    if factor.dim() == 1:
        column = _linear(program, node, x, factor[None])
        return program.reshape(node, column, x.shape[:-1])
    return _linear(program, node, x, _matrix(node, factor, x).T)


def _multiply_left(program: Program, node: Node, factor: Tensor, x: Value) -> Value:
    """Add factor @ x."""
    if len(x.shape) == 1:
        return _linear(program, node, x, _matrix(node, factor, x))
    if x.has_batch_axis and len(x.shape) == 2 and x.shape != (1, 1):
        node.refuse("sums over the batch axis, which is not supported.")
    matrix = _matrix(node, factor, x)
    shape = (*x.shape[:-2], len(matrix), x.shape[-1])
    if x.shape == (1, 1):  # a column of one number: no batch axis, because the product sums over it
        x = program.call(node, reshape, x, shape=(1, *x.shape), item_shape=x.shape)
    return program.call(node, torch.matmul, matrix, x, shape=shape, work=matrix.shape[1])


def _matrix(node: Node, factor: Tensor, x: Value) -> Tensor:
    """Return a constant factor as a matrix; leading axes of size 1 are removed."""
    if factor.dim() < 2 or math.prod(factor.shape[:-2]) != 1 or factor.dim() > max(2, len(x.shape)):
        node.refuse(f"has a constant factor of shape {tuple(factor.shape)}; expected a matrix.")
    return factor.reshape(factor.shape[-2:])


@operation("BatchNormalization", "epsilon momentum spatial training_mode")
def batch_norm(
    program: Program, node: Node, x: Operand, scale: Operand, bias: Operand, mean: Operand, variance: Operand
) -> Value:
    value = dynamic(node, x)
    if node.integer("training_mode", 0) or not node.integer("spatial", 1):
        node.refuse("uses statistics of the batch or of each pixel; export the network in evaluation mode.")
    operands = {"scale": scale, "B": bias, "mean": mean, "var": variance}
    gamma, beta, mu, sigma2 = (node.constant(operand, name) for name, operand in operands.items())
    channels = value.shape[1:2]
    if not value.has_batch_axis or not channels or any(t.shape != channels for t in (gamma, beta, mu, sigma2)):
        node.refuse(
            f"has an input of shape {value.shape}; expected (1, C, ...) and scale, bias, mean and variance of shape "
            "(C,)."
        )
    options: dict[str, Any] = {"training": False, "momentum": 0.0, "eps": node.number("epsilon", 1e-5)}
    return program.call(node, F.batch_norm, value, mu, sigma2, gamma, beta, **options)
