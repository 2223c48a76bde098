"""Networks whose operations move or keep the elements of their input."""

from __future__ import annotations

from typing import Any

import torch
from small_nets import (
    cases,
)

from advibp.bounds import Box

#: What moves elements between images, or the axis of images: a Box may, a Zonotope refuses.
MOVING = ("conv2d unbatched", "matrix @ box", "broadcast by a constant", "iteration", "expand, repeat, roll")


def wide_box(*shape: int) -> Box:
    """Return a box with large radii, so that most neurons are unstable; some radii are 0."""
    center = torch.randn(shape, dtype=torch.float64)
    return Box(center=center, radius=torch.rand_like(center) * 1.5 * (torch.rand_like(center) < 0.9))


def staying(*tables: list[tuple[str, Any, tuple[int, ...]]]) -> list[Any]:
    return cases(*([row for row in table if row[0] not in MOVING] for table in tables))
