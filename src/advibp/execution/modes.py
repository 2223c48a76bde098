"""The mode of every layer, training or evaluation, is the user's: who changes it gives it back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes_kept(net: nn.Module) -> Iterator[None]:
    """Whatever happens inside, every layer is in the mode it came in afterwards."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
