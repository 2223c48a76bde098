"""Search for the largest proved eps of images, with several radii in each pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

#: The radii of the first round, as shares of the largest one. Every round tries this many radii of each image.
FIRST_RADII = (0.004, 0.01, 0.025, 0.06, 0.12, 0.2, 0.3, 0.45)
#: Ratio of the radii of a round, while none is proved.
RATIO = 8.0
#: The search of an image ends without a proof when the smallest failed radius is below this number. If the largest
#: radius is below 1, the limit is this share of it.
SMALLEST = 1e-9


def search_radii(
    proves: Callable[[Tensor], Tensor], images: int, like: Tensor, tolerance: float, most: float = 1.0
) -> list[float]:
    """Find a large proved radius of each image.

    The radii of a round divide the interval between the largest proved and the smallest failed radius evenly. Margins
    as a function of eps have steps, where many neurons become unstable, so that interpolation does not need fewer
    rounds. If no radius is proved, the next ones are a geometric sequence towards 0.

    Args:
        proves: maps radii (B, R) to bools (B, R): which of them are proved.
        images: B.
        like: a tensor in the dtype and on the device of the radii.
        tolerance: the search of an image ends when the failed radius exceeds the proved one by at most this share.
        most: radii below this one are tried.

    Returns:
        B radii in [0, most), each of which was itself proved; 0 if none was.
    """
    count = len(FIRST_RADII)
    ends = [(0.0, most)] * images  # the largest proved and the smallest failed radius
    tried = [[share * most for share in FIRST_RADII] for _ in range(images)]
    while True:
        radii = torch.tensor(tried, dtype=like.dtype, device=like.device).view(images, count)
        before, ends = (
            ends,
            [
                _narrowed(*pair, row, holds)
                for pair, row, holds in zip(ends, radii.tolist(), proves(radii).tolist(), strict=True)
            ],
        )
        # Without progress the ends are neighboring numbers.
        searching = any(
            failed - proved > tolerance * failed
            and (proved > 0 or failed > SMALLEST * min(most, 1.0))
            and (proved, failed) != old
            for (proved, failed), old in zip(ends, before, strict=True)
        )
        if not searching:
            return [proved for proved, _ in ends]
        tried = [_between(*pair, count) for pair in ends]


def _narrowed(proved: float, failed: float, radii: list[float], holds: list[bool]) -> tuple[float, float]:
    """Return the largest proved and the smallest failed radius after a round."""
    tries = list(zip(radii, holds, strict=True))
    largest = max([proved, *(r for r, held in tries if held and r < failed)])
    return largest, min([failed, *(r for r, held in tries if not held and r > largest)])


def _between(proved: float, failed: float, count: int) -> list[float]:
    """Return the radii of the next round."""
    if proved == 0:
        return [failed * RATIO**-k for k in range(count, 0, -1)]
    return [proved + (failed - proved) * k / (count + 1) for k in range(1, count + 1)]
