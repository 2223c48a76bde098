"""Labels that margins are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advibp.errors import UserError


def checked_labels(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Labels (B,) in int64 for outputs of `shape` (B, K): integers of any type from 0 to K - 1.

    The range is compared on the device, which waits for it; labels on the meta device have none.
    """
    if not isinstance(y, Tensor):
        raise UserError(f"labels are a {type(y).__name__}, but must be a tensor of integers of shape (B,).")
    if len(shape) != 2 or y.shape != shape[:1]:
        shapes = f"{tuple(shape)} and {tuple(y.shape)}"
        raise UserError(f"margins need outputs (B, K) and labels (B,), not {shapes}; flatten the outputs first.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise UserError(f"labels are of type {y.dtype}, but must be integers: the class of each image.")
    y = y.long()
    if not y.is_meta and not bool(((y >= 0) & (y < shape[1])).all()):
        raise UserError(f"labels go from {int(y.min())} to {int(y.max())}, but must lie from 0 to {shape[1] - 1}.")
    return y
