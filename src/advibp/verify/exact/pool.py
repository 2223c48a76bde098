"""The open subproblems of a branch and bound search, with a lower bound for each of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from advibp.bounds.linear.beta_crown import Subproblems
from advibp.bounds.linear.interval_splits import Intervals
from advibp.bounds.linear.part_bounds import Parts

#: Subproblems, one per row of their tensors: parts of the box, signs of ReLUs, or intervals of neurons.
P = TypeVar("P", Parts, Subproblems, Intervals)


@dataclass(frozen=True)
class Pool(Generic[P]):
    """Open subproblems.

    Attributes:
        parts: D subproblems, of one type throughout a search.
        bounds: lower bounds (D,) of their margins.
    """

    parts: P
    bounds: Tensor

    def __len__(self) -> int:
        return len(self.bounds)

    def take(self, some: Tensor | slice) -> Pool[P]:
        """Select some of the subproblems, by a mask (D,), indices or a slice."""
        return Pool(self.parts.take(some), self.bounds[some])

    def join(self, other: Pool[P]) -> Pool[P]:
        """Add the subproblems of another pool after these."""
        return Pool(self.parts.join([self.parts, other.parts]), torch.cat([self.bounds, other.bounds]))

    def partition(self, mask: Tensor) -> tuple[Pool[P], Pool[P]]:
        """The subproblems in the mask (D,), and the others."""
        return self.take(mask), self.take(~mask)

    def lowest(self, closed: float) -> float:
        """The lowest bound of the pool and of the closed subproblems."""
        return min(closed, float(self.bounds.min())) if len(self) else closed
