"""The mode of every layer, training or evaluation: restore it, and explain what it means for a training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd


@contextmanager
def preserve_modes(net: nn.Module) -> Iterator[None]:
    """Restore the mode of every layer on exit."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def is_dropout(module: nn.Module) -> bool:
    """Return whether a layer is dropout. It is off in training: bounds need a network that is not random."""
    return isinstance(module, _DropoutNd)


def mode_warnings(net: nn.Module) -> list[str]:
    """Return sentences about layers that are not trained in the way that a user may expect.

    Args:
        net: the network, before the training.
    """
    messages = []
    if any(is_dropout(module) and module.training and module.p for module in net.modules()):
        messages.append(
            "Dropout is off in this training, because bounds need a network that is not random; remove the Dropout "
            "layers, or put them in evaluation mode, to avoid this warning."
        )
    if not net.training and any(isinstance(m, _BatchNorm) and m.track_running_stats for m in net.modules()):
        messages.append(
            "The network is in evaluation mode, so its BatchNorm layers keep their statistics in this training; call "
            "net.train() first to train them, or put only the BatchNorm layers in evaluation mode to freeze them."
        )
    return messages
