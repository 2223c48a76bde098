"""Search for the largest proved eps of images, with several radii in each pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: The radii of the first round. Every round tries this many radii of each image in one pass.
FIRST_RADII = (0.002, 0.01, 0.04, 0.12, 0.25, 0.5)
#: Distances of the radii of a later round from the interpolated root, as shares of the interval.
STEPS = (-1 / 8, -1 / 64, -1 / 512, 1 / 512, 1 / 64, 1 / 8)


def search_radii(margins: Callable[[Tensor], Tensor], images: int, like: Tensor, tolerance: float) -> Tensor:
    """Find a large proved radius of each image.

    The radii of a round surround the root of the margin, which is interpolated linearly between the largest proved and
    the smallest failed radius. If the interval does not become four times shorter, the next radii are evenly spaced.

    Args:
        margins: maps radii (B, R) to numbers (B, R) that are above 0 where the radius is proved.
        images: B.
        like: a tensor in the dtype and on the device of the radii.
        tolerance: the search of an image ends when its interval is this short.

    Returns:
        Radii (B,) in [0, 1), each of which was itself proved; 0 if none was.
    """
    rows = torch.arange(images, device=like.device)
    proved, failed = like.new_zeros(images), like.new_ones(images)
    above, below = like.new_full((images,), torch.nan), like.new_full((images,), torch.nan)
    tried = like.new_tensor(FIRST_RADII).expand(images, len(FIRST_RADII))
    width = failed - proved
    while True:
        found = margins(tried)
        holds = found > 0  # False for NaN
        best = torch.where(holds, tried, -1.0).argmax(1)
        better = holds[rows, best] & (tried[rows, best] > proved)
        proved = torch.where(better, tried[rows, best], proved)
        above = torch.where(better, found[rows, best], above)
        fails = ~holds & (tried > proved[:, None])
        first = torch.where(fails, tried, torch.inf).argmin(1)
        worse = fails[rows, first] & (tried[rows, first] < failed)
        failed = torch.where(worse, tried[rows, first], failed)
        below = torch.where(worse, found[rows, first], below)
        before, width = width, failed - proved
        # Without progress the ends are neighboring numbers.
        if not bool(((width > tolerance) & (better | worse)).any()):
            return proved
        even = torch.arange(1, len(FIRST_RADII) + 1, device=like.device) / (len(FIRST_RADII) + 1)
        root = (above / (above - below))[:, None] + like.new_tensor(STEPS)
        usable = root.isfinite().all(1) & (width < before / 4)
        share = torch.where(usable[:, None], root.clamp(1 / 1024, 1 - 1 / 1024), even)
        tried = torch.lerp(proved[:, None], failed[:, None], share.to(like.dtype))
