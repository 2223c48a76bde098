"""Confidence intervals of shares of images."""

from __future__ import annotations

import math
from statistics import NormalDist


def wilson(count: int, images: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval for a share of images.

    It is an interval for the share among all images of the distribution that the images were drawn from. Unlike the
    normal approximation, it is never empty at 0 % or 100 %.

    Args:
        count: Number of images that count.
        images: Number of all images.
        confidence: Level of the interval, in (0, 1). Default: 0.95.

    Returns:
        Lower and upper end, as shares in [0, 1]. (0, 1) if there are no images.

    Examples:
        >>> low, high = wilson(950, 1000)
        >>> round(low, 3), round(high, 3)
        (0.935, 0.962)
    """
    if images <= 0:
        return 0.0, 1.0
    quantile = NormalDist().inv_cdf((1 + confidence) / 2)
    share, z = count / images, quantile**2 / images
    center = (share + z / 2) / (1 + z)
    half = quantile * math.sqrt(share * (1 - share) / images + z / (4 * images)) / (1 + z)
    # At 0 % and 100 % an end of the interval is the share itself, but for rounding.
    low, high = max(0.0, center - half), min(1.0, center + half)
    return (0.0 if count == 0 else low), (1.0 if count == images else high)
