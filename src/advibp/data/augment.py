"""Data augmentation of a batch: horizontal flips and random crops."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from advibp.errors import UserError


def augment(x: Tensor, *, flip: bool, crop: int, generator: torch.Generator, padding: str = "zeros") -> Tensor:
    """Flip each image horizontally with probability 1/2, and shift it by up to ``crop`` pixels in each direction.

    A shift is a crop of the image after padding it with ``crop`` rows and columns on every side. All (2 crop + 1)^2
    positions are equally likely.

    Args:
        x: Images of shape (B, C, H, W), on any device.
        flip: Whether images are flipped.
        crop: Maximum shift in pixels; 0 for none.
        generator: A generator on the CPU, so that a seed gives the same result on every device.
        padding: What the image is padded with, "zeros", or "edge", the nearest pixels.

    Returns:
        Images of the same shape, on the same device.

    Raises:
        UserError: If ``x`` is not a batch of images or ``crop`` is negative.
    """
    if x.dim() != 4:
        raise UserError(f"Images to augment have shape {tuple(x.shape)}; expected a batch (B, C, H, W).")
    if crop < 0:
        raise UserError(f"crop is {crop}; expected the maximum shift in pixels, 0 or more.")
    if not flip and not crop:
        return x
    batch, channels, height, width = x.shape
    padded_width = width + 2 * crop
    rows = _shifted_positions(batch, height, crop, generator)
    columns = _shifted_positions(batch, width, crop, generator)
    if flip:
        flipped = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(flipped, padded_width - 1 - columns, columns)
    # One index per pixel, shared by the channels, so that flip and crop are a single gather.
    source = (rows[:, :, None] * padded_width + columns[:, None, :]).flatten(1)[:, None].to(x.device)
    mode = "replicate" if padding == "edge" else "constant"
    padded = F.pad(x, (crop, crop, crop, crop), mode=mode).flatten(2)
    return padded.gather(2, source.expand(-1, channels, -1)).view(x.shape)


def _shifted_positions(batch: int, length: int, crop: int, generator: torch.Generator) -> Tensor:
    """Return the rows or columns of the padded images that are kept, shape (B, length)."""
    offset = torch.randint(2 * crop + 1, (batch, 1), generator=generator)
    return offset + torch.arange(length)
