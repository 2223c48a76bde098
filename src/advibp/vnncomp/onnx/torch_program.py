"""A straight line of torch calls, made from a graph: what an `OnnxNet` runs.

A file describes a network for one image, although its authors rarely meant it: shapes begin with a batch axis of 1, and
constants such as the target (1, 784) of a Reshape are written for it. A program computes what the file says of one
image, for every image of a batch. A value that has the shape (1, *rows) or rows in the file is (B, *rows) here, and no
call moves elements between images: each is tried at once, on tensors without numbers, for an odd number of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from advibp.vnncomp.onnx.onnx_graph import Node, Shape
from advibp.vnncomp.onnx.onnx_limits import MOST_ELEMENTS, MOST_VALUES, MOST_WEIGHTS, MOST_WORK

_IMAGES = 7  # that no batch axis of a file is likely to be


@dataclass(frozen=True)
class Value:
    """What depends on the network's input: the result of a call by its number, 0 for the input itself.

    `shape` is the file's. If it is led by a batch axis of 1, that axis holds the images here; if not, one is added.
    """

    number: int
    shape: Shape

    @property
    def led(self) -> bool:
        return self.shape[:1] == (1,)

    @property
    def rows(self) -> Shape:
        """The shape of one image's part."""
        return rows_of(self.shape)

    def axis(self, node: Node, axis: int) -> int:
        """An axis of the file as an axis here, which must not be that of the images."""
        found = node.axis(axis, len(self.shape))
        if self.led and found == 0:
            node.refuse(f"works along the batch axis of shape {self.shape}; only what keeps images apart is read.")
        return found if self.led else found + 1


Operand = Value | Tensor | None


def rows_of(shape: Shape) -> Shape:
    return shape[1:] if shape[:1] == (1,) else shape


@dataclass(frozen=True)
class Call:
    """func(*operands, **options)."""

    number: int
    name: str
    func: Callable[..., Any]
    operands: tuple[Operand, ...]
    options: dict[str, Any] = field(default_factory=dict)


class Program:
    """Calls in order. All floating-point numbers are of one dtype."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self.input, self.dtype = Value(0, shape), dtype
        self.calls: list[Call] = []
        self._stand_ins = [torch.empty(_IMAGES, *self.input.rows, dtype=dtype, device="meta")]
        self._weights_left, self._values_left, self._work_left = MOST_WEIGHTS, MOST_VALUES, MOST_WORK

    def call(
        self,
        node: Node,
        func: Callable[..., Any],
        *operands: Operand,
        shape: Shape | None = None,
        work: int = 1,
        **options: Any,
    ) -> Value:
        """One more call; `shape` is its result's in the file, by default one that is led by a batch axis; `work` is how
        many multiplications an element takes."""
        for operand in operands:
            if isinstance(operand, Tensor):
                self._check_constant(node, operand)
        result = func(*map(self._stand_in, operands), **options)
        rows = tuple(result.shape[1:])
        shape = (1, *rows) if shape is None else shape
        if len(result) != _IMAGES or rows not in (shape, rows_of(shape)):
            node.refuse(f"makes shape {rows} of an image, where {shape} was expected; export it again.")
        self._spend(node, rows, work)
        made = Value(len(self.calls) + 1, shape)
        self.calls.append(Call(made.number, node.name, func, operands, options))
        self._stand_ins.append(result)
        # An axis of size 1 has come to the front, where it counts as that of the images.
        return made if rows == made.rows else self.call(node, reshape, made, shape=shape, rows=made.rows)

    def _check_constant(self, node: Node, constant: Tensor) -> None:
        if constant.is_floating_point() and constant.dtype != self.dtype:
            node.refuse(f"has a constant of {constant.dtype} in a network of {self.dtype}; export it again.")
        self._weights_left -= constant.numel()
        if self._weights_left < 0:
            node.refuse(f"brings the weights, each as often as it is used, to more than {MOST_WEIGHTS:,}: too many.")

    def _stand_in(self, operand: Operand) -> Tensor | None:
        if isinstance(operand, Value):
            return self._stand_ins[operand.number]
        return None if operand is None else operand.to("meta")

    def _spend(self, node: Node, rows: Shape, work: int) -> None:
        count = math.prod(rows)
        self._values_left -= count
        self._work_left -= count * work
        if not 0 < count <= MOST_ELEMENTS or self._values_left < 0 or self._work_left < 0:
            node.refuse(f"makes {count:,} numbers of one image, by {count * work:,} multiplications: none or too many.")

    def reshape(self, node: Node, x: Value, shape: Shape) -> Value:
        """The same elements in another shape of the file. A batch axis stays, or goes where a vector is left; if the
        network's input has none, none is meant."""
        if self.input.led and x.led and shape[:1] != (1,) and len(shape) > 1:
            node.refuse(f"turns shape {x.shape} into {shape}, which has no batch axis of 1 in front, as it must have.")
        rows = rows_of(shape)
        if math.prod(rows) != math.prod(x.rows):
            node.refuse(f"can't turn shape {x.shape} into {shape}; export it again.")
        return Value(x.number, shape) if rows == x.rows else self.call(node, reshape, x, shape=shape, rows=rows)


def reshape(x: Tensor, rows: Shape) -> Tensor:
    """(B, ...) -> (B, *rows)."""
    return x.reshape(x.shape[0], *rows)
