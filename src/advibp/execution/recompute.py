"""Activation checkpointing: recompute activations in the backward pass to save memory.

The children of an `nn.Sequential` with n layers are put into about sqrt(n) groups. Only the inputs of the groups, and
the activations of the group that is being computed, are kept in memory. Other modules keep all activations as usual.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def chains(net: nn.Module) -> list[nn.Sequential]:
    """Return the outermost plain `nn.Sequential` modules that have at least four children with weights."""
    plain = type(net).forward is nn.Sequential.forward and "forward" not in vars(net)
    if isinstance(net, nn.Sequential) and plain and sum(_has_weights(child) for child in net) >= 4:
        return [net]
    return [chain for child in net.children() for chain in chains(child)]


def groups(chain: nn.Sequential) -> list[nn.Sequential]:
    """Split n children with weights, and the layers after them, into about sqrt(n) groups. They share the children."""
    starts = [k for k, child in enumerate(chain) if _has_weights(child)]
    every = math.ceil(math.sqrt(len(starts)))
    ends = [0, *starts[every::every], len(chain)]
    return [nn.Sequential(*list(chain)[a:b]) for a, b in pairwise(ends)]


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


@contextmanager
def recompute_activations(net: Any, enabled: bool = True) -> Iterator[None]:
    """Recompute the activations of passes inside this context, whose backward passes must also be inside it."""
    sequentials = chains(net) if enabled and isinstance(net, nn.Module) else []
    for chain in sequentials:
        chain.forward = _through(groups(chain))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for chain in sequentials:
            del chain.forward  # the method of the class is visible again


def _through(parts: list[nn.Sequential]) -> Any:
    def forward(value: Any) -> Any:
        if not torch.is_grad_enabled():
            for part in parts:
                value = part(value)
            return value
        for part in parts[:-1]:
            # A copy: a layer may write to its input, and the second computation needs the same input.
            value = checkpoint(lambda v, p=part: p(v.clone()), value, use_reentrant=False)
        return parts[-1](value)  # recompute_activations the last group would save nothing

    return forward
