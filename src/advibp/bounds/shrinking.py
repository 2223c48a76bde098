"""ReLU shrinking: smaller interval bounds for the training loss of SABR. They are not bounds any more.

Where the input [l, u] of a ReLU has l < 0 < u, the upper end of its output is multiplied by a factor below 1 (Müller et
al. 2023). This reduces the growth of the box from layer to layer.

The factor is a context variable: it holds for the thread that set it, until its context ends, and never for verifiers.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_factor: ContextVar[float] = ContextVar("factor", default=1.0)


@contextmanager
def shrunk_relus(factor: float) -> Iterator[None]:
    """Multiply the upper ends of unstable ReLUs by a factor, for boxes that run through them in this context.

    Args:
        factor: from 0 to 1; 1 changes nothing.

    Examples:
        >>> import torch
        >>> from advibp import Box
        >>> box = Box.from_bounds(torch.tensor([-1.0, 1.0]), torch.tensor([2.0, 3.0]))
        >>> with shrunk_relus(0.5):
        ...     torch.relu(box).upper
        tensor([1., 3.])
    """
    token = _factor.set(factor)
    try:
        yield
    finally:
        _factor.reset(token)


def shrink_factor() -> float:
    """Return the factor of the current context; 1 outside of `shrunk_relus`."""
    return _factor.get()
