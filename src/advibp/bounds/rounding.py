"""The floating-point arithmetic of a network and of its bounds, and the rounding error of a sum.

A network in float32 does not compute the function that its weights define. Each operation adds an error, which depends
on the order of its sums and on whether products are fused with sums. For a sum of n products (Higham 2002, section 3.1)

    |fl(W x + b) - (W x + b)| <= gamma_(n+1) (|W| |x| + |b|),    gamma_k = k u / (1 - k u),    u = 2^-24 for float32

holds for every order, with and without fused multiply-add, because each product is rounded at most n + 1 times on its
way into the result. rules/rounding_errors.py has such a bound for every operation.

Bounds are also computed in floating-point arithmetic, with unit roundoff w. (u = w if a float32 network is bounded in
float32.) Every error therefore has two parts: that of the network (u) and that of the bounds (w). The second part
reserves some *room*: a set is wider than necessary by at least 32 w (|center| + radius). The next operation may lose
8 w (|center| + radius) of it to the rounding of its own first steps. docs/arithmetic.md has the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from advibp.bounds.box import Box
from advibp.bounds.domain import unsupported

#: How much wider than necessary a set is, in units w of its magnitude.
ROOM = 32


@dataclass(frozen=True)
class Rounding:
    """The arithmetic of a network, and the arithmetic in which its bounds are computed.

    Args:
        network: dtype of the network, float32 or float64.
        bounds: dtype in which bounds are computed, float32 or float64.
        doubled: whether the bounds are computed with a float64 copy of a float32 network. A cast to float32 in that
            copy then does not change the dtype of the bounds.
        branchless: whether the operations depend only on shapes and never on values, so that they can be recorded for
            one input and run for others. Labels and weights are then not checked: the same pass with
            branchless=False must run before. Default: False.

    Examples:
        >>> import torch
        >>> from advibp.bounds.rounding import Rounding
        >>> Rounding(torch.float32, torch.float64).u == 2**-24
        True
    """

    network: torch.dtype
    bounds: torch.dtype
    doubled: bool = False
    branchless: bool = False

    def __post_init__(self) -> None:
        for dtype in (self.network, self.bounds):
            if dtype not in (torch.float32, torch.float64):
                unsupported(
                    f"{dtype} has too little precision for a proof of what the network computes",
                    "convert the network to float32.",
                )

    @cached_property
    def u(self) -> float:
        """Unit roundoff of the network."""
        return torch.finfo(self.network).eps / 2

    @cached_property
    def w(self) -> float:
        """Unit roundoff of the bounds."""
        return torch.finfo(self.bounds).eps / 2

    @cached_property
    def tiny(self) -> float:
        """The smallest normal number of both dtypes. Smaller numbers may be flushed to zero."""
        return max(torch.finfo(self.network).tiny, torch.finfo(self.bounds).tiny)

    @cached_property
    def negligible(self) -> float:
        """A number whose product with u exceeds `tiny`. Magnitudes below it are rounded up to it."""
        return 4 * self.tiny / self.u

    @cached_property
    def largest(self) -> float:
        """Sums whose terms have magnitudes up to this in total cannot overflow, in any order."""
        return min(torch.finfo(self.network).max, torch.finfo(self.bounds).max) / 4

    def network_sum(self, terms: int) -> float:
        """Error of a sum of this many products in the network, relative to the sum of their magnitudes."""
        return _gamma(terms + 2, self.u)

    def bounds_sum(self, terms: int) -> float:
        """The same error in the bounds, including the room of the result."""
        return _gamma(terms + ROOM, self.w)

    def total_sum(self, terms: int, back: int = 0) -> float:
        """Error of a sum of products in the network and in the bounds, relative to the sum of their magnitudes.

        Args:
            terms: number of products.
            back: number of terms of the transposed operation, which linear bounds compute. Default: 0.
        """
        bounds_error = self.bounds_sum(max(terms, back))
        return (self.network_sum(terms) + 2 * bounds_error) * (1 + 4 * bounds_error)

    def elementwise(self, roundings: int) -> float:
        """Error of an elementwise operation with this many roundings, relative to the magnitude of its operands."""
        return (roundings * self.u + 2 * ROOM * self.w) * (1 + 64 * self.w)


def _gamma(count: int, unit: float) -> float:
    """Return gamma_count = count unit / (1 - count unit)."""
    if count * unit >= 0.5:
        unsupported(
            f"the rounding error of a sum of {count:,} terms has no bound in this arithmetic",
            "certify with arithmetic='real', which ignores rounding.",
        )
    return count * unit / (1 - count * unit)


def size(value: Any) -> Any:
    """Return the largest magnitude of each element: |center| + radius of a box, |x| of a constant."""
    if isinstance(value, Box):
        return value.center.abs().add_(value.radius)
    return value.double().abs() if isinstance(value, Tensor) and not value.is_floating_point() else abs(value)


def checked(rounding: Rounding, error: Tensor, share: float) -> Tensor:
    """Return infinite errors where a sum may overflow.

    Args:
        rounding: the arithmetic.
        error: upper bounds of the rounding errors of sums.
        share: error relative to the sum of the terms' magnitudes, so that sum is at most error / share.
    """
    limit = share * rounding.largest
    if rounding.branchless:
        return torch.where(error < limit, error, math.inf)
    if error.numel() and not bool(error.amax() < limit):
        return error.masked_fill(~(error < limit), math.inf)
    return error
