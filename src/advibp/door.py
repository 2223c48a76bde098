"""The one door to a user's network: whatever it does to its input, the caller's data stay as they are.

A network may write to the tensor it is given, as `x -= mean; x /= std` does. Who uses its input again, and be it to
build a box around it, calls the network by `run`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def run(net: Callable[[T], R], x: T) -> R:
    """net(x) on a copy of x, a tensor (B, ...) or a set of them. Gradients flow through the copy to x."""
    return net(own(x))


def own(x: T) -> T:
    """A copy that a network may write to. A set never writes to its tensors, so that of a set shares them."""
    return x.clone() if isinstance(x, Tensor) else copy.copy(x)  # type: ignore[return-value]
