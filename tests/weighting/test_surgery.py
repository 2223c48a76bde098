"""Weights from the gradients of the step itself, against the formulas for two of them."""

from __future__ import annotations

import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from advibp import UserError
from advibp.weighting import combine
from advibp.weighting.surgery import mgda, pcgrad


def two(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 7, generator=generator, dtype=torch.float64)


@given(st.integers(0, 10_000))
def test_pcgrad_takes_from_each_what_points_against_the_other(seed: int) -> None:
    a, b = g = two(seed)
    p = a @ b
    weights = pcgrad().weights(gradients=g)
    want = a + b if p >= 0 else (a - p / (b @ b) * b) + (b - p / (a @ a) * a)
    torch.testing.assert_close(combine(weights, g, 0.0), want)
    assert weights.branch == ("agree" if p > 0 else "conflict")


@given(st.integers(0, 10_000))
def test_mgda_takes_the_shortest_vector_between_them(seed: int) -> None:
    a, b = g = two(seed)
    share = ((b @ (b - a)) / ((a - b) @ (a - b))).clamp(0, 1)
    found = combine(mgda().weights(gradients=g), g, 0.0)
    shortest = share * a + (1 - share) * b
    assert found.norm() <= shortest.norm() * 1.01 + 1e-9
    assert found @ a >= -1e-3 * a.norm() * found.norm()  # neither loss rises
    assert found @ b >= -1e-3 * b.norm() * found.norm()


def test_they_need_the_gradients() -> None:
    with pytest.raises(UserError, match="the step itself"):
        mgda().weights()


def test_without_torchjd_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchjd", None)
    with pytest.raises(UserError, match=r"pip install 'advibp\[torchjd\]'"):
        pcgrad()
