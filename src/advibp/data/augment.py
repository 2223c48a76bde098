"""Flips and crops of a whole batch at once: what a training image may look like tomorrow."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from advibp.errors import UserError


def augment(x: Tensor, *, flip: bool, crop: int, generator: torch.Generator) -> Tensor:
    """``x`` (B, C, H, W), each image flipped left-right with chance 1/2 and moved by up to ``crop`` pixels each way.

    Moving an image is cropping it out of itself padded with ``crop`` rows and columns of zeros on every side; all
    (2 crop + 1)^2 places are equally likely. ``generator`` lives on the CPU wherever ``x`` is, so that a seed means
    the same on every device; the result depends on ``x`` and the generator's state alone.
    """
    if x.dim() != 4:
        raise UserError(f"Images to augment have shape {tuple(x.shape)}; expected a batch (B, C, H, W).")
    if crop < 0:
        raise UserError(f"crop is {crop}; expected the number of pixels to move by, 0 or more.")
    if not flip and not crop:
        return x
    batch, channels, height, width = x.shape
    padded_width = width + 2 * crop
    rows = _moved(batch, height, crop, generator)
    columns = _moved(batch, width, crop, generator)
    if flip:
        flipped = torch.rand(batch, 1, generator=generator) < 0.5
        columns = torch.where(flipped, padded_width - 1 - columns, columns)
    # One index per pixel, shared by the channels: a flip and a crop are one gather, and no image is touched twice.
    source = (rows[:, :, None] * padded_width + columns[:, None, :]).flatten(1)[:, None].to(x.device)
    padded = F.pad(x, (crop, crop, crop, crop)).flatten(2)
    return padded.gather(2, source.expand(-1, channels, -1)).view(x.shape)


def _moved(batch: int, length: int, crop: int, generator: torch.Generator) -> Tensor:
    """(B, length): where in the padded image each line of the result comes from."""
    offset = torch.randint(2 * crop + 1, (batch, 1), generator=generator)
    return offset + torch.arange(length)
