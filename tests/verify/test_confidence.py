"""Confidence intervals are those of scipy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from advibp.verify.confidence import wilson


@given(
    counts=st.integers(1, 20_000).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))),
    confidence=st.sampled_from([0.9, 0.95, 0.99]),
)
def test_the_interval_is_wilsons(counts: tuple[int, int], confidence: float) -> None:
    count, images = counts
    low, high = wilson(count, images, confidence)
    expected = binomtest(count, images).proportion_ci(confidence, method="wilson")
    assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert 0 <= low <= count / images <= high <= 1
    assert low < high


def test_the_interval_without_images_and_at_the_ends() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    assert wilson(0, 10)[0] == 0.0
    assert wilson(10, 10)[1] == 1.0
