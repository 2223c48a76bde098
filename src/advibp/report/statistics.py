"""Statistics of shares of images: confidence intervals, and a test of the difference of two networks."""

from __future__ import annotations

import math

#: Quantile of the standard normal distribution for an interval of 95 %.
_Z = 1.959963984540054


def wilson(count: int, images: int) -> tuple[float, float]:
    """Wilson's score interval for a share of images, at a confidence of 95 %.

    It is an interval for the share among all images of the distribution that the images were drawn from. Unlike the
    normal approximation, it is never empty at 0 % or 100 %.

    Args:
        count: Number of images that count.
        images: Number of all images.

    Returns:
        Lower and upper end, as shares in [0, 1]. (0, 1) if there are no images.

    Examples:
        >>> low, high = wilson(950, 1000)
        >>> round(low, 3), round(high, 3)
        (0.935, 0.962)
    """
    if images <= 0:
        return 0.0, 1.0
    share, z = count / images, _Z**2 / images
    center = (share + z / 2) / (1 + z)
    half = _Z * math.sqrt(share * (1 - share) / images + z / (4 * images)) / (1 + z)
    # At 0 % and 100 % an end of the interval is the share itself, but for rounding.
    low, high = max(0.0, center - half), min(1.0, center + half)
    return (0.0 if count == 0 else low), (1.0 if count == images else high)


def mcnemar(one: int, other: int) -> float:
    """Two-sided exact p-value of McNemar's test.

    It is twice the lower tail of the binomial distribution with n = one + other and p = 1/2. The terms are integers:
    C(n, i - 1) = C(n, i) i / (n - i + 1).

    Args:
        one: Number of images that only the first network proves.
        other: Number of images that only the second network proves.
    """
    n, k = one + other, min(one, other)
    term = tail = math.comb(n, k)
    for i in range(k, 0, -1):
        term = term * i // (n - i + 1)
        tail += term
    return min(1.0, 2 * tail / 2**n)


def format_p(p: float) -> str:
    """Format a p-value, such as p = 0.023 or p < 0.001."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}" if p < 0.1 else f"p = {p:.2f}"
