"""Operations on rows of coefficients (R, ...) of a value: dense tensors, patches, or tuples of tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from advibp.bounds.graph.nodes import leaves_of, map_leaves
from advibp.bounds.linear.patches import Patches, add_rows


def add_any(a: Any, b: Any) -> Any:
    """Add rows of the same value, in any of the three forms."""
    if isinstance(a, Patches) or isinstance(b, Patches):
        return add_rows(a, b)
    others = leaves_of(b)
    return map_leaves(a, lambda x: x + next(others))


def count_coefficients(a: Any) -> int:
    """Return the number of stored coefficients of all rows."""
    return a.a.numel() if isinstance(a, Patches) else sum(leaf.numel() for leaf in leaves_of(a))


def with_negatives(
    pending: dict[int, Any], constant: Tensor, lost: Tensor, size: Tensor
) -> tuple[dict[int, Any], Tensor, Tensor, Tensor]:
    """Append the negatives of all rows.

    Args:
        pending: rows by node.
        constant: their constants (R,).
        lost: the effect of rounding errors on them (R,), which has no sign.
        size: the magnitude of the terms of their constants (R,).

    Returns:
        The same for 2 R rows.
    """
    rows = {
        ref: a.both_signs() if isinstance(a, Patches) else map_leaves(a, lambda t: torch.cat([t, -t]))
        for ref, a in pending.items()
    }
    return rows, torch.cat([constant, -constant]), lost.repeat(2), size.repeat(2)
