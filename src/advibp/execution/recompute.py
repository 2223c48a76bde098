"""Less memory for more time: what is within a group of layers is computed again in the backward pass.

A chain of n layers then keeps about sqrt(n) of its values at a time, plus those of the group that is being computed,
instead of n. It works on every `nn.Sequential` of a network; what else a network does is kept as usual.
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
    """The outermost chains with at least four children that hold weights; none with a forward of its own."""
    plain = type(net).forward is nn.Sequential.forward and "forward" not in vars(net)
    if isinstance(net, nn.Sequential) and plain and sum(_has_weights(child) for child in net) >= 4:
        return [net]
    return [chain for child in net.children() for chain in chains(child)]


def groups(chain: nn.Sequential) -> list[nn.Sequential]:
    """About sqrt(n) groups of the n children with weights, each with what follows them. Shares the children."""
    starts = [k for k, child in enumerate(chain) if _has_weights(child)]
    every = math.ceil(math.sqrt(len(starts)))
    ends = [0, *starts[every::every], len(chain)]
    return [nn.Sequential(*list(chain)[a:b]) for a, b in pairwise(ends)]


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


@contextmanager
def recomputing(net: Any, wanted: bool = True) -> Iterator[None]:
    """Passes that are made inside keep less for their backward pass, which must be made inside, too."""
    found = chains(net) if wanted and isinstance(net, nn.Module) else []
    for chain in found:
        chain.forward = _through(groups(chain))  # type: ignore[method-assign]
    try:
        yield
    finally:
        for chain in found:
            del chain.forward  # the class's own again


def _through(parts: list[nn.Sequential]) -> Any:
    def forward(value: Any) -> Any:
        if not torch.is_grad_enabled():
            for part in parts:
                value = part(value)
            return value
        for part in parts[:-1]:
            # A copy, for a layer may write to it, and what is computed again must begin with the same.
            value = checkpoint(lambda v, p=part: p(v.clone()), value, use_reentrant=False)
        return parts[-1](value)  # its values would be computed again at once

    return forward
