"""A network as a file tells it: plain data, whose attributes are checked as they are asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
from torch import Tensor

from advibp.errors import UserError

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One operation. An input that is left out has the name ""."""

    op: str
    name: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 0

    def __str__(self) -> str:
        return f"node {shown(self.name)} ({shown(self.op)[1:-1]})"

    def refuse(self, why: str) -> NoReturn:
        raise UserError(f"{self} {why}")

    def integer(self, name: str, default: int) -> int:
        found = self.attributes.get(name, default)
        return found if isinstance(found, int) else self._mistyped(name, "an integer")

    def number(self, name: str, default: float) -> float:
        found = self.attributes.get(name, default)
        return found if isinstance(found, float) else self._mistyped(name, "a number")

    def text(self, name: str, default: str) -> str:
        found = self.attributes.get(name, default)
        return found if isinstance(found, str) else self._mistyped(name, "a text")

    def integers(self, name: str) -> Shape | None:
        """None if the node does not have it."""
        found = self.attributes.get(name)
        if found is None or (isinstance(found, tuple) and all(isinstance(number, int) for number in found)):
            return found
        return self._mistyped(name, "a list of integers")

    def integers_at(self, name: str, operand: object) -> Shape | None:
        """A list of integers that older files have as an attribute, newer ones as a constant input."""
        return self.integers(name) if operand is None else self.whole(operand, name)

    def whole(self, operand: object, name: str) -> Shape:
        """The integers of a constant input."""
        values = self.constant(operand, name)
        if values.is_floating_point() or values.dim() > 1 or values.numel() > 64:
            self.refuse(f"needs a list of integers as its '{name}', not {values.dtype} of shape {tuple(values.shape)}.")
        return tuple(int(value) for value in values.reshape(-1).tolist())

    def constant(self, operand: object, name: str) -> Tensor:
        if not isinstance(operand, Tensor):
            self.refuse(f"needs a constant '{name}', which here is missing or depends on the input; export it again.")
        return operand

    def axis(self, axis: int, axes: int) -> int:
        """An axis that may be counted from the end, as one of 0 ... axes - 1."""
        if not -axes <= axis < axes:
            self.refuse(f"names axis {axis} of a value that has {axes}; the file is damaged, export it again.")
        return axis % axes

    def _mistyped(self, name: str, wanted: str) -> NoReturn:
        self.refuse(f"has an attribute '{name}' that is not {wanted}; the file is damaged, export it again.")


@dataclass(frozen=True)
class Graph:
    """Nodes in the order in which they run; constants by name; the one input and the one output.

    The input's shape is for one image: a symbolic batch axis is 1.
    """

    nodes: tuple[Node, ...]
    constants: dict[str, Tensor]
    input: str
    shape: Shape
    dtype: torch.dtype
    output: str


def shown(text: str) -> str:
    """A name from a file, safe to print."""
    return repr(text if len(text) <= 60 else f"{text[:57]}...")
