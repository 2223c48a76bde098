"""Restore the mode of every layer, training or evaluation, after code that changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def preserve_modes(net: nn.Module) -> Iterator[None]:
    """Restore the mode of every layer on exit."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
