"""Labels: check them, and read margins with them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from advibp.errors import UserError


def checked_labels(y: Tensor, shape: Sequence[int]) -> Tensor:
    """Check labels and return them as int64.

    The range check waits for the device. Labels on the meta device are not compared.

    Args:
        y: labels (B,), integers of any type from 0 to K - 1.
        shape: shape (B, K) of the outputs.
    """
    if not isinstance(y, Tensor):
        raise UserError(f"labels must be a tensor of integers of shape (B,), not a {type(y).__name__}.")
    if len(shape) != 2 or y.shape != shape[:1]:
        shapes = f"{tuple(shape)} and {tuple(y.shape)}"
        raise UserError(f"margins need outputs (B, K) and labels (B,), not {shapes}; flatten the outputs first.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise UserError(f"labels must be integers, the class of each image, not {y.dtype}.")
    y = y.long()
    if not y.is_meta and not bool(((y >= 0) & (y < shape[1])).all()):
        raise UserError(f"labels must be from 0 to {shape[1] - 1}, but range from {int(y.min())} to {int(y.max())}.")
    return y


def smallest_margin(margins: Tensor, y: Tensor) -> Tensor:
    """Return the smallest margin over the other classes than the label.

    Args:
        margins: lower bounds of z_y - z_k, (B, K).
        y: labels (B,).

    Returns:
        (B,). The label is proved if it is above 0.
    """
    return margins.scatter(1, y[:, None].long(), torch.inf).amin(1)
