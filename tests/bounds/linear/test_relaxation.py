"""Relaxations: both lines enclose the activation over the whole interval."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from advibp.bounds.linear.relaxation import (
    ACTIVATIONS,
    LinearRelaxation,
    SShaped,
    is_unstable,
    leaky_relu,
    max_pool2d,
    relu,
)
from advibp.errors import UserError

FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[..., LinearRelaxation]]] = {
    "relu": (F.relu, relu),
    "leaky relu": (lambda x: F.leaky_relu(x, 0.2), lambda low, up: leaky_relu(low, up, 0.2)),
    "leaky relu by default": (F.leaky_relu, leaky_relu),
    "identity": (lambda x: x, lambda low, up: leaky_relu(low, up, 1.0)),
    "sigmoid": (torch.sigmoid, ACTIVATIONS[torch.sigmoid]),
    "tanh": (torch.tanh, ACTIVATIONS[Tensor.tanh]),
}
ends = st.one_of(
    st.floats(-3, 3),
    st.floats(-1e6, 1e6),
    st.floats(-1e-5, 1e-5),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-300, -1e-300, 5e-324, 20.0, -20.0, 1e30, -1e30, 1e200, -1e200]),
)


def assert_enclosed(f: Callable[[Tensor], Tensor], lines: LinearRelaxation, x: Tensor) -> None:
    shift = 0.0 if lines.lower_intercept is None else lines.lower_intercept
    below, above = lines.lower_slope * x + shift, lines.upper_slope * x + lines.upper_intercept
    for slope, line in ((lines.lower_slope, f(x) - below), (lines.upper_slope, above - f(x))):
        assert (line >= -1e-13 * (1 + slope * x.abs().max())).all()


def double(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def grid(lower: float, upper: float) -> Tensor:
    """Return points of an interval, dense at its ends and near 0."""
    shares = torch.cat([torch.linspace(0, 1, 2001), torch.logspace(-12, 0, 200), 1 - torch.logspace(-12, 0, 200)])
    near = torch.cat([torch.linspace(-8, 8, 801), torch.logspace(-9, 2, 200), -torch.logspace(-9, 2, 200)])
    return torch.cat([lower + shares.double() * (upper - lower), near.double()]).clamp(lower, upper)


@settings(max_examples=300)
@given(name=st.sampled_from(sorted(FUNCTIONS)), one=ends, other=ends)
@example("relu", -1e-300, 1e-300)
@example("relu", 0.0, 1.0)
@example("relu", -1.0, 0.0)
@example("tanh", -1e8, 1e8)
@example("sigmoid", 0.0, 0.0)
@example("tanh", 3.0, 3.0 + 1e-6)
def test_lines_enclose_their_activation(name: str, one: float, other: float) -> None:
    f, relaxed = FUNCTIONS[name]
    lower, upper = sorted((one, other))
    lines = relaxed(double(lower), double(upper))
    x = grid(lower, upper)
    assert_enclosed(f, lines, x)
    for share in torch.linspace(0, 1, 5, dtype=torch.float64):  # any slope in the range is sound
        if lines.curve is not None:
            slopes = torch.stack([share, (share * 1.7) % 1]).view(1, 2)
            assert_enclosed(f, lines.curve.with_slopes(slopes, double(lower), double(upper)), x)
        elif bool(lines.free):
            assert_enclosed(f, lines._replace(lower_slope=torch.lerp(*double(*lines.slope_range), share)), x)


@settings(max_examples=200)
@given(name=st.sampled_from(["sigmoid", "tanh"]), lower=st.floats(-8, 0), upper=st.floats(0, 8))
@example("tanh", -1.0, 1.0)
@example("sigmoid", -0.1, 8.0)
def test_lines_of_curves_are_nearly_as_tight_as_any(name: str, lower: float, upper: float) -> None:
    """The area between the lines is proportional to their distance in the middle. A grid of slopes is the reference."""
    lines, low, up = FUNCTIONS[name][1](double(lower), double(upper)), double(lower), double(upper)
    assert lines.curve is not None
    assert lines.lower_intercept is not None

    def ends(found: LinearRelaxation) -> tuple[Tensor, Tensor]:
        middle = (lower + upper) / 2
        return found.lower_slope * middle + found.lower_intercept, found.upper_slope * middle + found.upper_intercept

    slopes = torch.linspace(0, 1, 401, dtype=torch.float64).view(-1, 1, 1).expand(-1, 2, 1)
    least, most = ends(lines.curve.with_slopes(slopes, low.expand(401, 1), up.expand(401, 1)))
    at_middle = ends(lines)
    assert at_middle[1] - at_middle[0] <= 1.6 * (most.amin() - least.amax()) + 1e-3


@pytest.mark.parametrize("name", ["sigmoid", "tanh"])
@pytest.mark.parametrize("ends", [(-3.0, 2.0), (-0.5, 4.0), (0.5, 1.0), (-2.0, -1.0)])
def test_gradients_of_free_slopes_and_bounds(name: str, ends: tuple[float, float]) -> None:
    """The tangent point has no gradient, and the slope has; finite differences agree with that."""
    curve = FUNCTIONS[name][1]
    assert isinstance(curve, SShaped)

    def intercepts(slopes: Tensor, lower: Tensor, upper: Tensor) -> tuple[Tensor, ...]:
        return curve.with_slopes(slopes, lower, upper)[:4]

    slopes = torch.tensor([[0.3, 0.6]], dtype=torch.float64, requires_grad=True)
    lower, upper = (double(end).requires_grad_() for end in ends)
    assert torch.autograd.gradcheck(intercepts, (slopes, lower, upper))


@pytest.mark.parametrize("scale", [1e-300, 1e-9, 1.0, 1e9, 1e150])
def test_upper_line_of_relu_is_the_chord(scale: float) -> None:
    lower, upper = double(-2.0) * scale, double(0.5) * scale
    lines = leaky_relu(lower, upper, 0.25)
    for x in (lower, upper):
        torch.testing.assert_close(
            (lines.upper_slope * x + lines.upper_intercept) / scale, F.leaky_relu(x, 0.25) / scale
        )


@pytest.mark.parametrize("ends", [(-3e38, 3e38), (-2e38, 3e38), (-3e38, 1.0), (-1e-40, 1e-40)])
def test_relu_over_intervals_whose_width_overflows_or_is_subnormal(ends: tuple[float, float]) -> None:
    lower, upper = (torch.tensor([end]) for end in ends)
    lines = relu(lower, upper)
    x = grid(*ends)
    above = lines.upper_slope.double() * x + lines.upper_intercept.double()
    assert (above >= x.clamp(min=0) - 1e-6 * max(-ends[0], ends[1]) - 1e-39).all()  # rounding in float32


def test_gradients_of_stable_relus_are_0() -> None:
    """Also of one with l = u = 0, where the width of the interval is 0."""
    lower, upper = torch.tensor([0.0, 1.0, -2.0]).requires_grad_(), torch.tensor([0.0, 2.0, -1.0]).requires_grad_()
    lines = relu(lower, upper)
    total = 1e6 * lines.upper_slope.sum() - 1e6 * lines.upper_intercept.sum()
    assert all(torch.equal(g, torch.zeros(3)) for g in torch.autograd.grad(total, (lower, upper)))


@pytest.mark.parametrize(("lower", "upper", "slope"), [(-1.0, 1.5, 1.0), (-1.5, 1.0, 0.0), (-1.0, 1.0, 0.0)])
def test_lower_line_of_relu_has_the_smaller_area(lower: float, upper: float, slope: float) -> None:
    assert relu(double(lower), double(upper)).lower_slope.item() == slope


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("ends", [(torch.nan, torch.nan), (-torch.inf, torch.inf), (torch.nan, 1.0), (-1.0, torch.nan)])
def test_nan_and_infinite_bounds(name: str, ends: tuple[float, float]) -> None:
    """A neuron with NaN or infinite bounds must not count as inactive."""
    lines = FUNCTIONS[name][1](double(ends[0]), double(ends[1]))
    assert name == "identity" or not (lines.upper_slope * 5 + lines.upper_intercept < 5).any()
    assert is_unstable(double(ends[0]), double(ends[1])).all()


@pytest.mark.parametrize("slope", [-0.1, 1.5])
def test_unsupported_slopes_are_refused(slope: float) -> None:
    with pytest.raises(UserError, match="only for slopes from 0 to 1"):
        leaky_relu(double(-1), double(1), slope)


# ---- max pooling

POOLS: list[dict[str, Any]] = [
    {"kernel_size": 2},
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": (2, 3), "stride": (1, 2)},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": 1, "padding": (1, 0), "dilation": (1, 2)},
    {"kernel_size": 1},
    {"kernel_size": [2, 2], "stride": []},
]


@pytest.mark.parametrize("options", POOLS)
@pytest.mark.parametrize("width", [0.0, 0.1, 3.0])
def test_lines_enclose_max_pool(options: dict[str, Any], width: float) -> None:
    torch.manual_seed(0)
    lower = torch.randn(2, 3, 6, 5, dtype=torch.float64)
    upper = lower + width * torch.rand_like(lower) * (torch.rand_like(lower) < 0.8)
    windows = max_pool2d(lower, upper, **options)
    for corner in (0.0, 0.5, 1.0, *[None] * 60):
        share = torch.rand_like(lower) if corner is None else torch.full_like(lower, corner)
        x = lower + (share if corner is not None else share.round()) * (upper - lower)
        found = F.max_pool2d(x, **options)
        for row in range(4):  # a random row, carried back, is a lower bound
            a = torch.randn_like(found) if row else -torch.ones_like(found)
            flat = a.flatten(2).unsqueeze(2)
            back = windows.spread(flat.clamp(min=0) * windows.pick + flat.clamp(max=0) * windows.certain)
            rest = flat.clamp(max=0).squeeze(2) * windows.ceiling * (1 - windows.certain.sum(2))
            assert (back * x).sum() + rest.sum() <= (a * found).sum() + 1e-9
            if width == 0:
                torch.testing.assert_close((back * x).sum() + rest.sum(), (a * found).sum())


@pytest.mark.parametrize("options", [{"ceil_mode": True}, {"return_indices": True}])
def test_unsupported_pools_are_refused(options: dict[str, Any]) -> None:
    x = torch.zeros(1, 1, 5, 5)
    with pytest.raises(UserError, match="linear bounds only for"):
        max_pool2d(x, x, 2, **options)
    with pytest.raises(UserError, match=r"only for inputs \(B, C, H, W\)"):
        max_pool2d(x[0], x[0], 2)
