"""Rounding errors in a backward pass.

The result of every operation is perturbed by at most its rounding error e, so a row of coefficients A of this result
loses at most |A| e. The errors of the backward pass itself have the same form (docs/arithmetic.md).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advibp.bounds.graph.nodes import Node
from advibp.bounds.graph.tape import Tape
from advibp.bounds.linear.activations import dot
from advibp.bounds.linear.patches import Patches
from advibp.bounds.linear.transpose import rule_of
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding, size
from advibp.bounds.rules.rounding_errors import COPIES


class RoundingErrors:
    """The rounding errors of a recorded network, and of the backward pass through it.

    Args:
        tape: the recorded network.
        rounding: the arithmetic; None for real arithmetic, in which there are no errors.

    Attributes:
        of_nodes: errors (B, ...) of operations, by node. Exact operations have none.
        of_sums: errors (B, ...) of sums of coefficients, for values that several operations use, by node.
    """

    def __init__(self, tape: Tape, rounding: Rounding | None) -> None:
        self._tape, self._rounding = tape, rounding
        self.of_nodes: dict[int, Tensor] = {}
        self.of_sums: dict[int, Tensor] = {}

    def note(self, index: int, value: Rounded, uses: int) -> None:
        """Store the rounding error of the operation that computed a value, and of its transpose.

        If an error was stored before, for a larger set of values, the smaller of both counts.

        Args:
            index: the node.
            value: its value, which has the error of the operation.
            uses: how many operations use the value.
        """
        assert self._rounding is not None
        error = value.error
        if uses > 1:
            _store(self.of_sums, index, size(value.box) * (2 * self._rounding.w))
        copies = self._copies(self._tape.nodes[index], value)
        if copies > 1:  # the backward pass adds their coefficients
            sum_error = self._rounding.bounds_sum(copies)
            error = size(value.box) * sum_error if error is None else error * (1 + sum_error / (32 * self._rounding.w))
        if error is not None:
            _store(self.of_nodes, index, error)

    def _copies(self, node: Node, value: Rounded) -> int:
        """Return how often an elementwise operation or a copy uses an element of an operand, at most."""
        if node.func is None or rule_of(node) in ("affine", "linear", "matmul"):
            return 1
        count = max(1, value.center[0].numel())
        name = getattr(node.func, "__name__", "")
        picks = name in COPIES - {"clone", "flip", "roll"} or (name == "__getitem__" and not _basic(node.args[1]))
        if picks or rule_of(node) in ("pad", "interpolate"):  # padding may repeat one element many times
            return count
        shapes = [self._tape.nodes[ref].shape for ref in node.refs if self._tape.nodes[ref].from_input]
        return max([1, *(-(-count // max(1, shape[1:].numel())) for shape in shapes if shape is not None)])

    def loss(self, a: Any, error: Tensor | None, images: Tensor | slice) -> Tensor | float:
        """Return |A| e (R,): how much perturbations of at most e (B, ...) can lower rows A (R, ...).

        Args:
            a: rows, dense or patches.
            error: e (B, ...); None if there is none.
            images: the images of the rows, as indices (R,) or a slice.
        """
        if error is None:
            return 0.0
        assert self._rounding is not None
        if isinstance(a, Patches):
            row_error, a = a.gather(error, images).unsqueeze(1), a.a
        else:
            row_error = error[images].unsqueeze(1)
        share = 1 + 2 * self._rounding.bounds_sum(a[0].numel())
        return share * dot(a.abs().view(len(row_error), -1, *a.shape[1:]), row_error).flatten().double()


def _store(errors: dict[int, Tensor], index: int, error: Tensor) -> None:
    """Store the error (B, ...) of a node, or the smaller of it and the stored one. NaN is ignored."""
    errors[index] = torch.fmin(errors[index], error) if index in errors else error


def _basic(index: Any) -> bool:
    """Return whether an index selects no element twice."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or isinstance(part, (int, slice)) for part in parts)
