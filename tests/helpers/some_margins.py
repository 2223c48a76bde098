"""Labels and rows of margins, and their comparison."""

from __future__ import annotations

from typing import Any

import torch
from networks import CLASSES, network
from torch import Tensor, nn

from advibp.bounds import Box


def some(seed: int, batch: int = 3, eps: float = 0.3, kind: str | None = None) -> tuple[nn.Module, Box, Tensor]:
    """Return a random network, a box of images, and labels."""
    found = network(seed, kind)
    torch.manual_seed(seed)
    x = torch.rand(batch, *found.shape, dtype=torch.float64)
    return found.net, Box.ball(x, eps * torch.rand_like(x)), torch.randint(CLASSES, (batch,))


def close(a: Any, b: Any) -> None:
    torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
