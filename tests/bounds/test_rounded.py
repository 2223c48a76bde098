"""Rounded: every evaluation in floating-point arithmetic lies inside, for every order of its sums."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from networks import network
from orders import outputs, random_order
from torch import Tensor, nn

from advibp.bounds import Box, LinearBounds
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding


def points_of(x: Tensor, eps: float, count: int) -> Tensor:
    """Return points (count B, ...) that lie exactly in the balls around x (B, ...). Half of them are corners."""
    noise = 2 * torch.rand(count, *x.shape) - 1
    noise[::2] = noise[::2].sign()
    points = (x + eps * noise).clamp(0, 1)
    away = (points.double() - x.double()).abs() > eps
    points = torch.where(away, x.expand_as(points), points)
    return points.flatten(0, 1)


def assert_inside(values: Tensor, lower: Tensor, upper: Tensor) -> None:
    """Check values (P, B, ...) against bounds (B, ...)."""
    values = values.double()
    assert bool((values >= lower.double()).all())
    assert bool((values <= upper.double()).all())


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_bounds_of_every_verifier_contain_every_evaluation(seed: int, dtype: torch.dtype) -> None:
    made = network(seed)
    net = made.net.to(dtype).eval()
    torch.manual_seed(seed)
    x = torch.rand(2, *made.shape, dtype=dtype)
    eps = [0.0, 1e-6, 0.05][seed % 3]
    inputs = Rounded.ball(x, eps)
    output = net(inputs)
    points = points_of(x, eps, 8).to(dtype)
    values = []
    with torch.no_grad():
        values.append(net(points.clone()))
        values += [outputs(net, points, random_order(order)) for order in range(4)]
    found = torch.stack(values).view(-1, len(x), values[0].shape[1])
    assert_inside(found, output.lower, output.upper)
    y = net(x.clone()).argmax(1)
    margins = found.gather(2, y.view(1, -1, 1).expand(len(found), -1, 1)).double() - found.double()
    assert_inside(margins, output.lower_margins(y), output.upper_margins(y))
    zonotope = net(inputs.zonotope())
    assert_inside(margins, zonotope.lower_margins(y), zonotope.upper_margins(y))
    with torch.no_grad():
        linear = LinearBounds(net, inputs)
        assert_inside(margins, linear.margins(y), torch.full_like(margins[0], math.inf))
        assert_inside(margins, linear.refine().margins(y), torch.full_like(margins[0], math.inf))
    if dtype == torch.float32:  # also with bounds in float64
        ends = (torch.minimum(x.double(), points.double().view(-1, *x.shape).amin(0)),
                torch.maximum(x.double(), points.double().view(-1, *x.shape).amax(0)))  # fmt: skip
        wide = Rounded.between(*ends, Rounding(torch.float32, torch.float64, doubled=True))
        with torch.no_grad():
            linear = LinearBounds(net, wide, wide=torch.float32).refine()
            assert_inside(margins, linear.margins(y), torch.full_like(margins[0], math.inf))


@pytest.mark.parametrize("eps", [0.1, 8 / 255, 1e-9, 0.0, 1.0])
def test_ball_contains_every_number_within_eps(eps: float) -> None:
    x = torch.rand(50)
    box = Rounded.ball(x[None], eps)
    for value, lower, upper in zip(x.tolist(), box.lower[0].tolist(), box.upper[0].tolist(), strict=True):
        ends = Fraction(value) - Fraction(eps), Fraction(value) + Fraction(eps)
        assert Fraction(lower) <= max(ends[0], 0)
        assert Fraction(upper) >= min(ends[1], 1)


OPERATIONS: dict[str, Any] = {
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "erf": torch.erf,
    "atan": torch.atan,
    "softplus": F.softplus,
    "softplus with beta": lambda x: F.softplus(x, beta=3.0),
    "elu": F.elu,
    "celu": lambda x: F.celu(x, 0.7),
    "selu": F.selu,
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "hardsigmoid": F.hardsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "square": torch.square,
    "abs": torch.abs,
    "scalar sum": lambda x: x + 0.1307,
    "scalar difference": lambda x: 0.1307 - x,
    "scalar product": lambda x: x * 0.3081,
    "scalar quotient": lambda x: (x - 0.1307) / 0.3081,
    "sum of dimensions": lambda x: x.view(-1, 5, 20).sum(1),
    "mean of dimensions": lambda x: x.view(-1, 20, 5).mean(1),
    "cumsum": lambda x: x.cumsum(1),
    "weighted sum": lambda x: torch.add(x, x * 3, alpha=-0.3),
    "pad": lambda x: F.pad(x, (1, 2), value=0.1),
    "average pooling": lambda x: F.avg_pool2d(x.view(-1, 1, 10, 10), 3, 2, 1),
    "adaptive pooling": lambda x: F.adaptive_avg_pool2d(x.view(-1, 1, 10, 10), (3, 4)),
    "bilinear": lambda x: F.interpolate(x.view(-1, 1, 10, 10), size=(17, 23), mode="bilinear"),
    "bilinear corners": lambda x: F.interpolate(
        x.view(-1, 1, 10, 10), size=(7, 9), mode="bilinear", align_corners=True
    ),
    "area": lambda x: F.interpolate(x.view(-1, 1, 10, 10), size=(4, 4), mode="area"),
    "nearest": lambda x: F.interpolate(x.view(-1, 1, 10, 10), scale_factor=2, mode="nearest"),
}


@pytest.mark.parametrize("scale", [1e-6, 1.0, 30.0])
@pytest.mark.parametrize("name", OPERATIONS)
def test_bounds_contain_float32_and_float64_results(name: str, scale: float) -> None:
    """At a point, the bounds contain the float32 result and also the float64 result."""
    x = scale * (2 * torch.rand(20, 100) - 1)
    with torch.no_grad():
        result = OPERATIONS[name](Rounded.ball(x, 0.0, None))
        single, double = OPERATIONS[name](x), OPERATIONS[name](x.double())
    assert_inside(torch.stack([single.double(), double]), result.lower, result.upper)


def test_batchnorm_by_both_formulas() -> None:
    norm = nn.BatchNorm2d(6).eval()
    with torch.no_grad():
        norm.running_mean.uniform_(-3, 3)
        norm.running_var.uniform_(1e-6, 2)
        norm.weight.uniform_(-2, 2)
        norm.bias.uniform_(-5, 5)
        x = torch.randn(8, 6, 5, 5)
        result = norm(Rounded.ball(x, 0.0, None))
        shape = (1, -1, 1, 1)
        mean, var, weight, bias = (t.view(shape) for t in (norm.running_mean, norm.running_var, norm.weight, norm.bias))
        alpha = weight * (1 / (var + norm.eps).sqrt())
        others = [norm(x), x * alpha + (bias - mean * alpha), (x - mean) * (var + norm.eps).rsqrt() * weight + bias]
    assert_inside(torch.stack(others), result.lower, result.upper)


def test_bounds_are_infinite_if_a_sum_may_overflow() -> None:
    layer = nn.Linear(3, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[3e38, 3e38, -3e38]]))
        result = layer(Rounded.ball(torch.ones(1, 3), 0.0, None))
    assert not float(result.lower) > -math.inf  # or NaN


def test_subnormal_numbers_may_be_flushed() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1e-40, 1.0]]))
        result = layer(Rounded.ball(torch.tensor([[1.0, 1e-40]]), 0.0, None))
    for value in (2e-40, 1e-40, 0.0):
        assert float(result.lower) <= value <= float(result.upper)


@pytest.mark.parametrize("name", ["half", "bfloat16"])
def test_low_precision_is_refused(name: str) -> None:
    with pytest.raises(UnsupportedOperation):
        getattr(Rounded.ball(torch.rand(1, 4), 0.1), name)()


def test_a_cast_to_float32_is_an_error_of_a_float64_network() -> None:
    x = torch.rand(3, 40, dtype=torch.float64)
    result = Rounded.ball(x, 0.0).float()
    assert result.rounding.network == torch.float32
    assert_inside(x.float()[None], result.lower, result.upper)


@pytest.mark.parametrize("name", ["sum", "mean", "cumsum"])
def test_a_sum_in_lower_precision_than_its_input_is_refused(name: str) -> None:
    ball = Rounded.ball(torch.rand(2, 3).double(), 0.1)
    with pytest.raises(UnsupportedOperation, match=r"returns torch.float32 .* cast its input: x.to\(torch.float32\)"):
        getattr(ball, name)(1, dtype=torch.float32)
    assert getattr(ball, name)(1, dtype=torch.float64).dtype == torch.float64


def test_a_sum_of_too_many_terms_is_refused() -> None:
    with pytest.raises(UnsupportedOperation, match="terms"):
        Rounding(torch.float32, torch.float32).total_sum(2**23)


def test_in_place_operations_change_the_set_itself() -> None:
    box = Rounded.ball(torch.rand(2, 5), 0.1)
    view = box.view(2, 5, 1)
    before = box.lower.clone()
    box -= 0.5
    box.relu_()
    assert bool((box.lower >= -1e-6).all())
    assert not torch.equal(box.lower, before)
    with pytest.raises(UnsupportedOperation, match="changed in place"):
        _ = view.lower


def test_rounded_bounds_contain_real_bounds() -> None:
    made = network(3)
    net = made.net.float().eval()
    x = torch.rand(4, *made.shape)
    with torch.no_grad():
        plain, rounded = net(Box.ball(x, 0.03)), net(Rounded.ball(x, 0.03))
    assert bool((rounded.lower <= plain.lower).all())
    assert bool((rounded.upper >= plain.upper).all())
    torch.testing.assert_close(rounded.lower, plain.lower, rtol=1e-3, atol=1e-3)
