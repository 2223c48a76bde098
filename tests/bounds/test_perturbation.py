"""Perturbation: radii per feature and ranges, rounded outward for proofs and inward for attacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from advibp import Box, Perturbation, UserError
from advibp.bounds import Rounded
from advibp.bounds.perturbation import PIXELS

SIZES = st.sampled_from([1e-30, 1e-3, 0.1, 1.0, 3.0, 1e3, 1e6])
SHARES = st.sampled_from([0.0, 1e-7, 0.1, 1 / 3, 0.5, 0.7, 1.0, 3.7])
RANGES = st.sampled_from([(None, None), (0.0, 1.0), (-5.0, None), (None, 1e6), (-1e7, 1e7), (-0.1, 0.1), (0.1, 0.3)])


def inputs(seed: int, size: float, low: float | None, high: float | None) -> Tensor:
    """Two inputs of three features, within the range."""
    x = size * torch.randn(2, 3, generator=torch.Generator().manual_seed(seed))
    around = Perturbation(low, high).on(x)
    return x.clamp(around.low, around.high)


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 99), SIZES, st.lists(SHARES, min_size=3, max_size=3), RANGES, st.sampled_from([0.1, 0.3, 2.0, 5e3])
)
def test_proofs_cover_the_exact_set_and_attacks_stay_in_it(
    seed: int, size: float, shares: list[float], limits: tuple[float | None, float | None], eps: float
) -> None:
    if not any(shares):
        shares = [0.0, 0.0, 0.1]
    x = inputs(seed, size, *limits)
    around = Perturbation(*limits, scale=shares)
    lower, upper = around.inner_ends(x, eps)
    for points in (lower, upper, x):
        assert around.contains(x, points, eps).all()
    rounded, box = around.rounded(x, eps), around.box(x, eps)
    own = around.on(x)
    for row in range(len(x)):
        for k, share in enumerate(shares):
            radius = Fraction(eps) * Fraction(share)
            low, high = (torch.as_tensor(end).double().item() for end in (own.low, own.high))
            ends = Fraction(x[row, k].item()) - radius, Fraction(x[row, k].item()) + radius
            first = max(ends[0], Fraction(low)) if math.isfinite(low) else ends[0]
            last = min(ends[1], Fraction(high)) if math.isfinite(high) else ends[1]
            # The proved set contains the exact one, and the exact one contains the attacked one.
            assert rounded.lower[row, k].double().item() <= first <= last <= rounded.upper[row, k].double().item()
            assert first <= lower[row, k].item() <= upper[row, k].item() <= last
            # A box for real arithmetic covers the exact set up to the rounding of its ends.
            slack = Fraction(2.0**-22) * (abs(ends[0]) + abs(ends[1]) + radius)
            assert Fraction(box.center[row, k].item()) - Fraction(box.radius[row, k].item()) <= first + slack
            assert Fraction(box.center[row, k].item()) + Fraction(box.radius[row, k].item()) >= last - slack
    assert (lower <= upper).all()
    still = torch.tensor(shares) == 0
    assert torch.equal(lower[:, still], x[:, still])
    assert torch.equal(upper[:, still], x[:, still])


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=4))
def test_the_proved_radius_covers_the_radius_that_the_user_gave(radii: list[float]) -> None:
    eps, around = Perturbation.from_radii(radii, None, None)
    x = torch.zeros(1, len(radii))
    outer, inner = around.outer_radius(eps, x), around.inner_radius(eps, x)
    assert eps == max(radii)
    for given_radius, wide, narrow in zip(radii, outer.tolist(), inner.tolist(), strict=True):
        assert narrow <= given_radius <= wide
        assert wide <= given_radius * (1 + 1e-14)
        assert narrow >= given_radius * (1 - 1e-14)


def test_images_are_the_same_ball_as_before() -> None:
    x = torch.rand(2, 1, 3, 3)
    assert PIXELS.is_pixels
    assert PIXELS.within == (0.0, 1.0)
    assert PIXELS.state() == {}
    assert torch.equal(PIXELS.box(x, 0.1).radius, Box.ball(x, 0.1).radius)
    assert torch.equal(PIXELS.rounded(x, 0.1).radius, Rounded.ball(x, 0.1).radius)
    assert PIXELS.widest() == 1.0


def test_a_box_keeps_its_radius_around_large_values() -> None:
    x = torch.tensor([[1e6]])  # float32 has no number between 1e6 and 1e6 + 0.06
    for limits in ((None, None), (-1e9, 1e9), (0.0, None)):
        assert float(Perturbation(*limits).box(x, 1e-3).radius) >= 1e-3


def test_contains_is_exact() -> None:
    x, eps = torch.zeros(1, 1), 0.1
    nearest = torch.tensor([[0.1]])  # in float32, above 0.1
    assert not Perturbation(None, None).contains(x, nearest, eps).any()
    assert Perturbation(None, None).contains(x, nearest.nextafter(x), eps).all()
    assert not Perturbation(None, None).contains(x, torch.tensor([[math.nan]]), eps).any()
    assert not Perturbation(0.0, None).contains(x, torch.tensor([[-0.01]]), eps).any()


def test_distance_is_relative_to_the_scale() -> None:
    around = Perturbation(None, None, [1.0, 0.5, 0.0])
    x = torch.zeros(3, 3)
    points = torch.tensor([[0.1, 0.2, 0.0], [0.3, 0.1, 0.0], [0.0, 0.0, 1e-3]])
    assert around.distance(x, points).tolist() == pytest.approx([0.4, 0.3, math.inf])


def test_the_range_is_rounded_as_the_inputs_are() -> None:
    around = Perturbation(0.1, [0.3, 0.7]).on(torch.zeros(1, 2))
    x = torch.tensor([[0.1, 0.1], [0.3, 0.7]])
    assert ((x >= around.low) & (x <= around.high)).all()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"low": 1.0, "high": 0.0}, "above the highest"),
        ({"low": math.nan}, "NaN"),
        ({"low": math.inf, "high": None}, "empty"),
        ({"low": "zero"}, "must be a number"),
        ({"scale": [-1.0]}, "not negative"),
        ({"scale": [math.inf, 1.0]}, "finite"),
        ({"scale": [0.0, 0.0]}, "above 0"),
    ],
)
def test_wrong_arguments(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Perturbation(**arguments)  # type: ignore[arg-type]


def test_a_scale_of_another_shape_is_refused() -> None:
    with pytest.raises(UserError, match=r"shape \(3,\)"):
        Perturbation(scale=[1.0, 1.0, 1.0]).check_shape((2,))


def test_limits_are_float64_numbers() -> None:
    x = torch.tensor([[0.05]], dtype=torch.float64)
    around = Perturbation(0.0, 0.1)
    assert around.contains(x, torch.tensor([[0.1]], dtype=torch.float64), 1.0).tolist() == [True]
    assert around.contains(x, torch.tensor([[0.100000001]], dtype=torch.float64), 1.0).tolist() == [False]
    assert Perturbation(1e39, 1e40).low == 1e39


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Perturbation(0.1 + 1e-9, 0.1), "is empty"),
        (lambda: Perturbation([0.0, 0.0], [1.0, 1.0, 1.0]), "one number per element"),
        (lambda: Perturbation(0, 10**400), "must be a number"),
        (lambda: Perturbation.from_radii([1e-300, 1e30]), "similar size"),
    ],
)
def test_ranges_and_radii_that_are_refused(make: Callable[[], object], words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()
