"""Confidence intervals and McNemar's test."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from advibp.report.statistics import format_p, mcnemar, wilson


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


@given(st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_is_wilsons(counts: tuple[int, int]) -> None:
    count, images = counts
    low, high = wilson(count, images)
    expected = binomtest(count, images).proportion_ci(0.95, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= count / images <= high <= 1
    assert low < high


def test_the_interval_without_images_and_at_the_ends() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
