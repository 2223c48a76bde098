"""A test of the difference of two networks."""

from __future__ import annotations

import math


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
