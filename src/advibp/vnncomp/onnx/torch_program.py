"""The list of torch calls that an `OnnxNet` runs.

Many files fix the batch size to 1, for example in the target shape (1, 784) of a Reshape. A program accepts any batch
size: a value of shape (1, *item_shape) or item_shape in the file has shape (B, *item_shape) here, and no call may mix
items. To check that, each call is run with an unusual batch size when it is added: on zeros that share one number in
memory if the result is small, otherwise on the meta device, whose first use takes two seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.onnx_limits import MAX_ELEMENTS, MAX_VALUES, MAX_WEIGHTS, MAX_WORK

_BATCH = 7  # batch size of the check; unlikely to occur in a file
_SMALL = 2**25  # elements of a call that is run with numbers
_ELEMENTWISE = (torch.relu, F.relu, torch.sigmoid, torch.tanh, F.leaky_relu, torch.add, torch.sub, torch.mul, torch.div)


@dataclass(frozen=True)
class Value:
    """A value that depends on the network's input: the result of the call with this number; 0 is the input itself.

    `shape` is the shape in the file. If it starts with 1, that axis is the batch axis; otherwise one is added.
    """

    number: int
    shape: Shape

    @property
    def has_batch_axis(self) -> bool:
        return self.shape[:1] == (1,)

    @property
    def item_shape(self) -> Shape:
        """Shape of one item of the batch."""
        return item_shape_of(self.shape)

    def axis(self, node: Node, axis: int) -> int:
        """Convert an axis of the file to an axis of the batched value. It must not be the batch axis."""
        positive = node.axis(axis, len(self.shape))
        if self.has_batch_axis and positive == 0:
            node.refuse(f"works along the batch axis of shape {self.shape}, which is not supported.")
        return positive if self.has_batch_axis else positive + 1


Operand = Value | Tensor | None


def item_shape_of(shape: Shape) -> Shape:
    return shape[1:] if shape[:1] == (1,) else shape


@dataclass(frozen=True)
class Call:
    """One call func(*operands, **options); `number` is the number of its result."""

    number: int
    name: str
    func: Callable[..., Any]
    operands: tuple[Operand, ...]
    options: dict[str, Any] = field(default_factory=dict)


class Program:
    """Builds a list of calls. All floating-point values have one dtype.

    Args:
        shape: shape of the input in the file.
        dtype: torch.float32 or torch.float64.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self.input, self.dtype = Value(0, shape), dtype
        self.calls: list[Call] = []
        self._stand_ins = [_zeros(torch.Size((_BATCH, *self.input.item_shape)), dtype)]
        self._remaining_weights, self._remaining_values, self._remaining_work = MAX_WEIGHTS, MAX_VALUES, MAX_WORK

    def call(
        self,
        node: Node,
        func: Callable[..., Any],
        *operands: Operand,
        shape: Shape | None = None,
        work: int = 1,
        **options: Any,
    ) -> Value:
        """Add a call and return its result.

        Args:
            node: the node that the call belongs to.
            func: a torch function.
            operands: positional arguments.
            shape: shape of the result in the file; by default (1, *item_shape).
            work: multiplications per element of the result.
            options: keyword arguments.
        """
        for operand in operands:
            if isinstance(operand, Tensor):
                self._check_constant(node, operand)
        result = _run(func, [self._stand_in(operand) for operand in operands], options)
        item_shape = tuple(result.shape[1:])
        shape = (1, *item_shape) if shape is None else shape
        if len(result) != _BATCH or item_shape not in (shape, item_shape_of(shape)):
            node.refuse(f"has a result of shape {item_shape}, but {shape} was expected; export it again.")
        self._spend(node, item_shape, work)
        value = Value(len(self.calls) + 1, shape)
        self.calls.append(Call(value.number, node.name, func, operands, options))
        self._stand_ins.append(_zeros(result.shape, result.dtype))
        if item_shape == value.item_shape:
            return value
        # The first axis of the result has size 1 and counts as a batch axis: remove it.
        return self.call(node, reshape, value, shape=shape, item_shape=value.item_shape)

    def _check_constant(self, node: Node, constant: Tensor) -> None:
        if constant.is_floating_point() and constant.dtype != self.dtype:
            node.refuse(f"has a constant of {constant.dtype} in a network of {self.dtype}; export it again.")
        self._remaining_weights -= constant.numel()
        if self._remaining_weights < 0:
            node.refuse(f"exceeds the limit of {MAX_WEIGHTS:,} weights in total, where a weight counts once per use.")

    def _stand_in(self, operand: Operand) -> Tensor | None:
        if isinstance(operand, Value):
            return self._stand_ins[operand.number]
        return operand

    def _spend(self, node: Node, item_shape: Shape, work: int) -> None:
        count = math.prod(item_shape)
        self._remaining_values -= count
        self._remaining_work -= count * work
        if not 0 < count <= MAX_ELEMENTS or self._remaining_values < 0 or self._remaining_work < 0:
            node.refuse(
                f"computes {count:,} elements with {count * work:,} multiplications for one input: none or too many."
            )

    def reshape(self, node: Node, x: Value, shape: Shape) -> Value:
        """Return x in another shape of the file. A batch axis stays in front, unless the result is a vector."""
        if self.input.has_batch_axis and x.has_batch_axis and shape[:1] != (1,) and len(shape) > 1:
            node.refuse(f"reshapes {x.shape} to {shape}, which does not keep the batch axis of size 1 in front.")
        item_shape = item_shape_of(shape)
        if math.prod(item_shape) != math.prod(x.item_shape):
            node.refuse(f"can't reshape {x.shape} to {shape}; export it again.")
        return (
            Value(x.number, shape)
            if item_shape == x.item_shape
            else self.call(node, reshape, x, shape=shape, item_shape=item_shape)
        )


def _zeros(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return zeros that take the memory of one number."""
    return torch.zeros((), dtype=dtype).expand(shape)


@torch.no_grad()
def _run(func: Callable[..., Any], operands: list[Tensor | None], options: dict[str, Any]) -> Any:
    """Run a call for the shape of its result."""
    if _most_elements(func, operands, options) > _SMALL:
        operands = [None if operand is None else operand.to("meta") for operand in operands]
    return func(*operands, **options)


def _most_elements(func: Callable[..., Any], operands: list[Tensor | None], options: dict[str, Any]) -> float:
    """Return an upper bound of the number of elements that a call computes, or stores meanwhile."""
    tensors = [operand for operand in operands if operand is not None]
    if func in _ELEMENTWISE or func is reshape:
        return math.prod(torch.broadcast_shapes(*(t.shape for t in tensors))) if func is not reshape else _size(tensors)
    if func is F.linear:
        return _size(tensors) + tensors[0].numel() // max(1, tensors[0].shape[-1]) * len(tensors[1])
    if func is F.conv2d:  # torch may copy all windows
        padding = options.get("padding", 0)
        sides = (padding, padding) if isinstance(padding, int) else padding
        if not all(isinstance(side, int) for side in sides):
            return math.inf
        places = math.prod(size + 2 * side + 1 for size, side in zip(tensors[0].shape[2:], sides, strict=True))
        return _BATCH * places * (len(tensors[1]) + tensors[1][0].numel())
    return math.inf


def _size(tensors: list[Tensor]) -> int:
    return sum(t.numel() for t in tensors)


def reshape(x: Tensor, item_shape: Shape) -> Tensor:
    """Reshape (B, ...) to (B, *item_shape)."""
    return x.reshape(x.shape[0], *item_shape)
