"""P-values of McNemar's test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from advibp.report.statistics import format_p, mcnemar


@given(one=st.integers(0, 300), other=st.integers(0, 300))
def test_the_p_value_is_that_of_a_fair_coin(one: int, other: int) -> None:
    p = mcnemar(one, other)
    expected = binomtest(one, one + other).pvalue if one + other else 1.0
    assert p == pytest.approx(expected, rel=1e-9)
    assert p == mcnemar(other, one)


def test_p_values_by_hand_and_at_the_size_of_a_test_set() -> None:
    assert mcnemar(0, 5) == 2 / 2**5
    assert mcnemar(1, 4) == 2 * (1 + 5) / 2**5
    assert mcnemar(7, 7) == 1.0  # twice the lower half, the middle counted twice, is more than 1
    assert mcnemar(0, 10_000) == 0.0  # 2^-9999 is no float
    assert mcnemar(4_900, 5_100) == pytest.approx(binomtest(4_900, 10_000).pvalue, rel=1e-9)
    assert [format_p(p) for p in (0.0009, 0.0049, 0.25, 1.0)] == ["p < 0.001", "p = 0.005", "p = 0.25", "p = 1.00"]
