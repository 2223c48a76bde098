"""The feasible set of an attack: the l_inf ball of radius eps around x, intersected with the range of valid inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advibp.bounds.ball_ends import feasible, inner_ball
from advibp.bounds.box import Range

__all__ = ["Range", "feasible", "inner_ball", "uniform_start"]


def uniform_start(
    x: Tensor, eps: Tensor | float, lower: Tensor, upper: Tensor, generators: Sequence[torch.Generator] | None = None
) -> Tensor:
    """Return a random point for each input: uniform in the ball, then clipped to [lower, upper].

    `generators`: one per input; None for torch's global generator.
    """
    if generators is None:
        noise = torch.empty_like(x).uniform_(-1, 1)
    else:
        shape = x.shape[1:]
        rows = [torch.empty(shape, dtype=x.dtype, device=g.device).uniform_(-1, 1, generator=g) for g in generators]
        noise = torch.stack(rows).to(x.device)
    radius = eps.to(x.dtype) if isinstance(eps, Tensor) else eps
    return torch.clamp(x + radius * noise, lower, upper)
