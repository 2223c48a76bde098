"""The graph of an ONNX file as plain data. The type of an attribute is checked when it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from advibp.errors import UserError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One operation. An omitted input has the name ""."""

    op: str
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 0

    def __str__(self) -> str:
        return f"node {quoted(self.name)} ({quoted(self.op)[1:-1]})"

    def refuse(self, problem: str) -> NoReturn:
        """Raise a UserError about this node."""
        raise UserError(f"{self} {problem}")

    def integer(self, name: str, default: int) -> int:
        """Return an integer attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, int) else self._refuse_type(name, "an integer")

    def number(self, name: str, default: float) -> float:
        """Return a float attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, float) else self._refuse_type(name, "a number")

    def text(self, name: str, default: str) -> str:
        """Return a string attribute."""
        value = self.attributes.get(name, default)
        return value if isinstance(value, str) else self._refuse_type(name, "a string")

    def integers(self, name: str) -> Shape | None:
        """Return an attribute that is a list of integers; None if the node does not have it."""
        value = self.attributes.get(name)
        if value is None or (isinstance(value, tuple) and all(isinstance(number, int) for number in value)):
            return value
        return self._refuse_type(name, "a list of integers")

    def integers_at(self, name: str, operand: object) -> Shape | None:
        """Return a list of integers that is an attribute in older opsets and a constant input in newer ones."""
        return self.integers(name) if operand is None else self.integers_of(operand, name)

    def integers_of(self, operand: object, name: str) -> Shape:
        """Return the integers of a constant input."""
        values = self.constant(operand, name)
        if values.is_floating_point() or values.dim() > 1 or values.numel() > 64:
            self.refuse(f"needs a list of integers as '{name}', not {values.dtype} of shape {tuple(values.shape)}.")
        return tuple(int(value) for value in values.reshape(-1).tolist())

    def constant(self, operand: object, name: str) -> Tensor:
        """Return an operand that must be constant."""
        if not isinstance(operand, Tensor):
            self.refuse(f"needs a constant '{name}', but it is missing or depends on the input; export it again.")
        return operand

    def axis(self, axis: int, axes: int) -> int:
        """Return an axis as one of 0 ... axes - 1; negative axes count from the end."""
        if not -axes <= axis < axes:
            self.refuse(f"refers to axis {axis} of a value with {axes} axes; the file is damaged, export it again.")
        return axis % axes

    def _refuse_type(self, name: str, expected: str) -> NoReturn:
        self.refuse(f"has an attribute '{name}' that is not {expected}; the file is damaged, export it again.")


@dataclass(frozen=True)
class Graph:
    """Nodes in execution order, constants by name, and the names of the input and the output.

    `shape` is the input's shape for a batch of one; a dynamic batch axis becomes 1.
    """

    nodes: tuple[Node, ...]
    constants: dict[str, Tensor]
    input: str
    shape: Shape
    dtype: torch.dtype
    output: str


def quoted(text: str) -> str:
    """Return a name from a file in quotes, shortened and safe to print."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
