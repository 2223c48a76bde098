"""Decides in exact arithmetic whether C y + d <= 0, independent of the order of a sum.

Floating-point numbers are fractions, and so are their sums and products. Comparing them as fractions is slow, so
`candidates` first discards, in float64, points that are certainly not counterexamples.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

#: Twice the unit roundoff of float64, which covers the rounding errors of the error bound itself.
_UNIT = 2.0**-52


def candidates(outputs: Tensor, rows: Tensor, offsets: Tensor) -> Tensor:
    """Where C y + d <= 0 may hold, by float64 arithmetic with a bound of its rounding error.

    The computed value of a row differs from the exact one by at most gamma_(K+1) (|C| |y| + |d|), for any order of its
    sum (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), plus K + 1 times the smallest normal
    number for products that underflow.

    Args:
        outputs: y (B, K), float64.
        rows: C (R, K), float64.
        offsets: d (R,), float64.

    Returns:
        (B,) bool; False only where a row is above 0 in exact arithmetic, or an output is not finite. Without rows
        every finite output is a candidate.
    """
    values = outputs @ rows.T + offsets
    sizes = outputs.abs() @ rows.abs().T + offsets.abs()
    terms = rows.shape[1] + 2
    slack = terms * (_UNIT * sizes + torch.finfo(torch.float64).tiny)
    return ~(values > slack).any(1) & outputs.isfinite().all(1)  # (NaN, by overflow, is a candidate)


def holds(output: Tensor, rows: Tensor, offsets: Tensor, *, strict: bool = False) -> bool:
    """Whether C y + d <= 0 holds in exact arithmetic, in every row.

    Args:
        output: y (K,), of any floating-point type.
        rows: C (R, K).
        offsets: d (R,).
        strict: Whether < 0 is needed.
    """
    if not bool(output.isfinite().all()):
        return False
    y = _fractions(output)
    for row, offset in zip(rows, _fractions(offsets), strict=True):
        value = sum((c * z for c, z in zip(_fractions(row), y, strict=True) if c), offset)
        if value > 0 or (strict and value == 0):
            return False
    return True


def _fractions(values: Tensor) -> Sequence[Fraction]:
    """The values as fractions. The conversions to float64 and to fractions are exact."""
    return [Fraction(value) for value in values.detach().double().flatten().tolist()]
