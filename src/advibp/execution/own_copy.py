"""Calls of a user's network on a copy of its input.

A network may write to the tensor that it is given, as `x -= mean; x /= std` does. Code that uses the input again calls
the network by `run_on_copy`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def run_on_copy(net: Callable[[T], R], x: T) -> R:
    """net(x) on a copy of x, a tensor (B, ...) or a set of them. Gradients flow through the copy to x."""
    return net(copied(x))


def copied(x: T) -> T:
    """A copy of x that a network may write to. The copy of a set shares its tensors, since sets never write to them."""
    return x.clone() if isinstance(x, Tensor) else copy.copy(x)  # type: ignore[return-value]
