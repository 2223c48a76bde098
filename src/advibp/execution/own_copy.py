"""Run a user's network on a copy of its input.

A network may write to its input tensor, as `x -= mean; x /= std` does. Code that uses the input again calls the network
through `run_on_copy`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def run_on_copy(net: Callable[[T], R], x: T) -> R:
    """Return net(x) on a copy of x, a tensor (B, ...) or a set. Gradients flow through the copy to x."""
    return net(copied(x))


def copied(x: T) -> T:
    """Return a copy of x that a network may write to. A copied set shares its tensors, which sets never write to."""
    return x.clone() if isinstance(x, Tensor) else copy.copy(x)  # type: ignore[return-value]
