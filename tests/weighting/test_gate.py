"""The gate: c_t as the paper has it, or the quantile of FOSC that a share asks for."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advibp.weighting.gate import Gate


def always(t: float) -> float:
    return 1.0


def never() -> float:
    raise AssertionError("nothing is to be measured")


@given(st.floats(0, 10), st.floats(0.1, 300), st.floats(0, 1))
def test_a_number_falls_as_the_schedule_says(c_max: float, scale: float, share: float) -> None:
    gate = Gate(c_max, lambda t: share, scale)
    assert gate.threshold(0.0, never) == pytest.approx(c_max * scale * share)
    gate.observe(0.0, 1e-9)
    assert gate.level == pytest.approx(c_max * scale)


def test_auto_is_measured_once_and_not_scaled() -> None:
    gate = Gate("auto", always, scale=256)
    assert gate.threshold(0.0, lambda: 3.0) == gate.threshold(1.0, never) == 3.0


@pytest.mark.parametrize("c_max", ["auto", "30%"])
def test_a_dead_network_settles_nothing(c_max: str) -> None:
    gate = Gate(c_max, always)
    assert gate.threshold(0.0, lambda: math.inf) == 0.0
    assert gate.level is None
    assert gate.threshold(0.0, lambda: 2.0) == 2.0


@pytest.mark.parametrize("share", [0.05, 0.3, 0.8])
@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e4])
@pytest.mark.parametrize("first", [0.01, 100.0])
def test_a_share_opens_it_that_often_in_any_scale(share: float, unit: float, first: float) -> None:
    """Also if FOSC grows a hundredfold meanwhile, and if the first measurement is far off."""
    dice = random.Random(1)
    gate, opened = Gate(f"{100 * share:g}%", always), 0
    for k in range(8000):
        fosc = unit * 100 ** (k / 8000) * dice.lognormvariate(0, 0.5)
        strong = fosc <= gate.threshold(0.0, lambda: unit * first)
        gate.observe(0.0, fosc)
        opened += strong and k >= 2000
    assert opened / 6000 == pytest.approx(share, abs=0.03)


def test_the_share_falls_with_the_schedule_and_ends_at_never() -> None:
    dice, counts = random.Random(2), [0] * 5
    gate = Gate("50%", lambda t: max(0.0, 1 - t / 4))
    for k in range(10_000):
        t = 5 * k / 10_000
        fosc = dice.lognormvariate(0, 0.5)
        counts[int(t)] += fosc <= gate.threshold(t, lambda: 1.0)
        gate.observe(t, fosc)
    assert counts == sorted(counts, reverse=True)
    assert counts[0] / 2000 == pytest.approx(0.44, abs=0.04)
    assert counts[4] == 0


def test_infinite_fosc_moves_nothing() -> None:
    gate = Gate("50%", always)
    gate.threshold(0.0, lambda: 1.0)
    gate.observe(0.0, math.inf)
    assert gate.level == 1.0
