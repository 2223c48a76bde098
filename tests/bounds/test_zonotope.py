"""Zonotope: it contains sampled points in every direction, is exact for affine networks, and refuses the rest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from pooling_nets import MOVING, staying, wide_box
from programs import SETS_TOO, Program, programs
from small_nets import (
    AFFINE,
    CONSTANT,
    EXACT,
    INEXACT,
    TURNING,
    VIEWS,
    Lambda,
    Net,
    Residual,
    cases,
    extremes,
    members,
    nets,
    random_box,
    ready,
    settled,
)
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.graph.tape import Tape
from advibp.bounds.zonotope import Zonotope
from advibp.errors import UserError

Forward = Callable[[Any], Any]


def assert_holds(values: Tensor, zonotope: Zonotope, directions: int = 60) -> None:
    """Check that points (M, ...) lie in a zonotope (1, ...): within its bounds, and within its extent in random
    directions, which depends on the dependencies between elements.
    """
    count = zonotope[0:1].numel()
    random = torch.randn(count, directions, dtype=torch.float64)
    axes = torch.cat([torch.eye(count, dtype=torch.float64)[:, :400], random, random.sign()], 1)
    generators = zonotope.generators.flatten(2).squeeze(1) @ axes  # (S, D)
    center, rest = zonotope.center.flatten(1) @ axes, zonotope.rest.flatten(1) @ axes.abs()
    extent = generators.abs().sum(0) + rest
    distance = (values.flatten(1) @ axes - center).abs()
    assert (distance <= extent + 1e-9 * (1 + distance + extent)).all()


def run(net: Forward, zonotope: Zonotope) -> Zonotope:
    """Return net(zonotope). Networks that move elements between images are discarded."""
    try:
        return net(zonotope)
    except UnsupportedOperation as error:
        if "images of a Zonotope" not in str(error):
            raise
        reject()


def assert_sound(net: Forward, box: Box, count: int = 1000, **options: Any) -> Zonotope:
    with torch.no_grad():
        output = run(net, Zonotope.from_box(box, **options))
        assert_holds(net(members(box, count)), output)
    assert_holds(net(extremes(net, box)).detach(), output)
    return output


# ---- random networks


@settings(max_examples=60)
@given(nets(), st.sampled_from([random_box, wide_box]))
def test_bounds_contain_sampled_points(net: nn.Module, some_box: Callable[..., Box]) -> None:
    assert_sound(net, some_box(1, 2, 6, 6))


@settings(max_examples=30)
@given(nets(), st.sampled_from([0, 1, 5, 40]))
def test_bounds_contain_sampled_points_with_few_symbols(net: nn.Module, most: int) -> None:
    output = assert_sound(net, wide_box(1, 2, 6, 6), max_symbols=most)
    assert len(output.symbols) == len(output.generators) <= most
    assert output.max_symbols == most


@settings(max_examples=100)
@given(programs({name: SETS_TOO[name] for name in SETS_TOO.keys() - {"iterate", "transposed"}}, training=False))
def test_bounds_contain_sampled_points_of_programs(net: Program) -> None:
    box = wide_box(1, 8)
    try:
        output = net(Zonotope.from_box(box))
    except UnsupportedOperation as error:
        assert "changed in place through another view" in str(error)  # noqa: PT017
        reject()
    with torch.no_grad():
        assert_holds(net(members(box, 1000)), output.detach())


@settings(max_examples=30)
@given(nets())
def test_zero_radius_gives_the_concrete_output(net: nn.Module) -> None:
    x = torch.randn(3, 2, 6, 6, dtype=torch.float64)
    output = run(net, Zonotope.ball(x, 0.0, within=None))
    torch.testing.assert_close(output.center, net(x.clone()))
    assert not output.radius.any()


@settings(max_examples=30)
@given(nets())
def test_images_of_a_batch_are_independent(net: nn.Module) -> None:
    box = wide_box(3, 2, 6, 6)
    whole = run(net, Zonotope.from_box(box))
    for i in range(3):
        single = net(Zonotope.from_box(box[i : i + 1].clone()))
        torch.testing.assert_close(whole.lower[i], single.lower[0], rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(whole.upper[i], single.upper[0], rtol=1e-9, atol=1e-9)


@settings(max_examples=20)
@given(nets())
def test_replay_of_a_tape(net: nn.Module) -> None:
    box = random_box(2, 2, 6, 6)
    expected = run(net, Zonotope.from_box(box))
    replayed = Tape.record(net, box.center).replay(Zonotope.from_box(box))
    torch.testing.assert_close(replayed.lower, expected.lower)


# ---- affine chains


def exact_range(net: Forward, box: Box) -> tuple[Tensor, Tensor]:
    """f(c) +- |J| r, for an affine f."""
    output = net(box.center.clone())
    jacobian = torch.autograd.functional.jacobian(lambda x: net(x.clone()), box.center)
    radius = (jacobian.flatten(output.ndim).abs() @ box.radius.flatten()).view_as(output)
    return output.detach() - radius, output.detach() + radius


def assert_exact(net: Forward, box: Box, zonotope: Zonotope | None = None) -> None:
    output = net(zonotope or Zonotope.from_box(box))
    assert output.shape == net(box.center.clone()).shape
    torch.testing.assert_close((output.lower, output.upper), exact_range(net, box))


@pytest.mark.parametrize(("net", "shape"), staying(AFFINE, INEXACT))
def test_affine_layers_are_exact(net: Any, shape: tuple[int, ...]) -> None:
    assert_exact(ready(net), random_box(*shape))


@pytest.mark.parametrize(("net", "shape"), staying(AFFINE))
def test_affine_layers_without_symbols_equal_a_box(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output, expected = net(Zonotope.from_box(box, max_symbols=0)), net(box)
    assert output.generators.shape == (0, *expected.shape)
    torch.testing.assert_close((output.center, output.rest), (expected.center, expected.radius))


def affine_net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    block = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3), nn.Dropout())
    return settled(
        nn.Sequential(
            nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"),
            nn.BatchNorm2d(3),
            Lambda(lambda x: 0.3 - block.double().eval()(x) + x * 2),
            nn.AvgPool2d(2),
            Lambda(lambda x: torch.cat([x, x.flip(3)], 1) - x.mean((1, 2, 3), keepdim=True)),
            nn.Flatten(),
            nn.Linear(54, 7),
            nn.Linear(7, 4),
        )
    )


@pytest.mark.parametrize("seed", range(4))
def test_chains_of_affine_layers_are_exact(seed: int) -> None:
    assert_exact(affine_net(seed), random_box(2, 2, 6, 6))


@pytest.mark.parametrize("seed", range(4))
def test_limited_symbols_are_between_zonotope_and_box(seed: int) -> None:
    net, box = affine_net(seed), random_box(2, 2, 6, 6)
    radii = [net(Zonotope.from_box(box, max_symbols=most)).radius for most in (None, 60, 30, 5, 0)]
    for tight, loose in itertools.pairwise(radii):
        assert (tight <= loose + 1e-9).all()
    torch.testing.assert_close(radii[-1], net(box).radius)
    assert radii[0].sum() < 0.9 * radii[-1].sum()


def test_one_symbol_of_the_rest_is_the_difference_to_a_box() -> None:
    """The least important symbol becomes part of the rest first, only at its own pixel."""
    box = Box(center=torch.zeros(1, 3), radius=torch.tensor([[0.1, 0.3, 0.2]]))
    zonotope = Zonotope.from_box(box, max_symbols=2)
    torch.testing.assert_close(zonotope.rest, torch.tensor([[0.1, 0.0, 0.0]]))
    torch.testing.assert_close(zonotope.radius, box.radius)


# ---- symbols


def test_residual_sums_share_symbols() -> None:
    x = Zonotope.from_box(wide_box(2, 3, 4))
    for zero in (x - x, torch.sub(x, x), x.sub(2 * x, alpha=0.5), -x + x, x.flatten(1) - x.reshape(2, 12)):
        assert not zero.radius.any()
        assert not zero.center.any()
    for double in (x + x, torch.add(x, x), x.sub(x, alpha=-1)):
        torch.testing.assert_close((double.lower, double.upper), ((2 * x).lower, (2 * x).upper))
    y = F.relu(x)
    assert len(y.symbols) > len(x.symbols)
    for same in (x + (y - x), y - x + x, y - (x - x), torch.stack([y, x], 1).sum(1) - x):
        assert torch.equal(same.symbols, y.symbols)
        torch.testing.assert_close((same.lower, same.upper), (y.lower, y.upper))
    z = F.relu(-x)  # relu(x) - relu(-x) = x
    assert len((y + z).symbols) == len(y.symbols) + len(z.symbols) - len(x.symbols)


def test_two_balls_have_different_symbols() -> None:
    box = random_box(2, 3)
    x, y = Zonotope.from_box(box), Zonotope.from_box(box)
    torch.testing.assert_close((x - y).radius, 2 * box.radius)
    joined = torch.cat([x, y], 1)
    assert len(joined.symbols) == len(x.symbols) + len(y.symbols)
    torch.testing.assert_close(joined.radius, torch.cat([box.radius, box.radius], 1))


def test_symbol_limit_after_a_sum() -> None:
    boxes = random_box(1, 4), random_box(1, 4)
    x, y = (Zonotope.from_box(box, max_symbols=4) for box in boxes)
    for met in (x + y, torch.cat([x, y], 1)):
        assert len(met.symbols) == 4
        points = [members(box, 500) for box in boxes]
        assert_holds(sum(points) if met.shape == (1, 4) else torch.cat(points, 1), met)
    torch.testing.assert_close((x + y).radius, boxes[0].radius + boxes[1].radius)


def test_new_symbols_only_for_unstable_neurons() -> None:
    center, radius = torch.tensor([[2.0, -2.0, 0.1, 3.0], [2.0, -2.0, 2.0, 3.0]]), torch.tensor([1.0, 1.0, 1.0, 0.0])
    x = Zonotope.from_box(Box(center=center, radius=radius))
    assert len(x.symbols) == 3  # the last pixel can't vary
    y = F.relu(x)
    assert len(y.symbols) == 4
    assert not y.generators[-1, 1].any()  # stable in the second image
    assert torch.equal(y.center[1], torch.tensor([2.0, 0.0, 2.0, 3.0]))
    assert torch.equal(y.radius[1], torch.tensor([1.0, 0.0, 1.0, 0.0]))


# ---- single activations


@pytest.mark.parametrize(("net", "shape"), staying(EXACT, TURNING))
@pytest.mark.parametrize("most", [None, 3])
def test_every_activation_is_sound(net: Any, shape: tuple[int, ...], most: int | None) -> None:
    net, box = ready(net), wide_box(*shape)
    output = net(Zonotope.from_box(box, max_symbols=most))
    assert output.shape == net(box.center.clone()).shape
    for side in torch.rand(40, *shape, dtype=torch.float64) * 2 - 1:
        for offset in (side, side.sign()):
            values = net(box.center + offset * box.radius)
            assert (values >= output.lower - 1e-9).all()
            assert (values <= output.upper + 1e-9).all()


@given(st.floats(-3, -0.01), st.floats(0.01, 3), st.sampled_from([0.0, 0.1, -0.3, -1.0, 2.0]))
def test_relu_is_the_band_of_least_area(low: float, high: float, negative_slope: float) -> None:
    box = Box.from_bounds(torch.tensor([[low]], dtype=torch.float64), torch.tensor([[high]], dtype=torch.float64))
    output = F.leaky_relu(Zonotope.from_box(box), negative_slope)
    points = torch.tensor([[low], [0.0], [high]], dtype=torch.float64)  # the breakpoints of a piecewise linear function
    slopes = torch.linspace(-3, 3, 601, dtype=torch.float64)
    above = F.leaky_relu(points, negative_slope) - slopes * points
    widths = above.amax(0) - above.amin(0)
    assert 2 * output.generators[-1].item() <= widths.min() + 1e-9
    slope = output.generators[0] / box.radius
    band = F.leaky_relu(points, negative_slope) - (slope * (points - box.center) + output.center)
    torch.testing.assert_close(band.abs().amax(0, keepdim=True), output.generators[-1])


def test_relu_by_hand() -> None:
    """l, u = -1, 1.5: lambda = 0.6, mu = 0.3."""
    y = F.relu(Zonotope(torch.tensor([[0.25]]), torch.tensor([[[1.0]]]), 0.25))
    torch.testing.assert_close(y.center, torch.tensor([[0.45]]))
    torch.testing.assert_close(y.generators.flatten(), torch.tensor([0.6, 0.3]))
    torch.testing.assert_close(y.rest, torch.tensor([[0.15]]))
    torch.testing.assert_close((y.lower, y.upper), (torch.tensor([[-0.6]]), torch.tensor([[1.5]])))


def test_stable_relu_is_bit_identical() -> None:
    x = Zonotope(torch.tensor([[1e6, -3.0]]), torch.tensor([[[1e-3, 1.0]]]), 0.5)
    y = F.relu(x)
    assert y.center.tolist() == [[1e6, 0.0]]
    assert torch.equal(y.generators, x.generators * torch.tensor([1.0, 0.0]))
    assert y.rest.tolist() == [[0.5, 0.0]]


@pytest.mark.parametrize("func", [torch.sigmoid, torch.tanh])
def test_s_shaped_bands_touch_both_ends(func: Forward) -> None:
    box = wide_box(2, 30)
    output = func(Zonotope.from_box(box))
    torch.testing.assert_close((output.lower, output.upper), (func(box.lower), func(box.upper)))


# ---- option relu_bounds


def pre_activation_boxes(net: nn.Sequential, box: Box) -> list[Box]:
    boxes = []
    for layer in net:
        if isinstance(layer, nn.ReLU):
            boxes.append(box)
        box = layer(box)
    return boxes


@pytest.mark.parametrize("seed", range(5))
def test_relu_bounds_are_used_and_sound(seed: int) -> None:
    torch.manual_seed(seed)
    layers = [nn.Linear(5, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(inplace=False), nn.Linear(12, 3)]
    net, box = settled(nn.Sequential(*layers)), wide_box(1, 5)
    points = members(box, 4000)
    given, seen = iter(pre_activation_boxes(net, box)), []

    def relu_bounds(zonotope: Zonotope) -> tuple[Tensor, Tensor]:
        seen.append(zonotope.to_box())
        tighter = next(given)
        return tighter.lower, tighter.upper

    with torch.no_grad():
        output = net(Zonotope.from_box(box, relu_bounds=relu_bounds))
        assert_holds(net(points), output)
        assert [tuple(b.shape) for b in seen] == [(1, 12), (1, 12)]
        values = net[:3](points)
        tightest = net(Zonotope.from_box(box, relu_bounds=lambda z: (z.lower, z.lower + 1e9)))
        torch.testing.assert_close(tightest.radius, net(Zonotope.from_box(box)).radius)  # not tighter, so not used
    calls = iter([None, (values.amin(0, keepdim=True), values.amax(0, keepdim=True))])
    refined = net(Zonotope.from_box(box, relu_bounds=lambda z: next(calls)))
    assert refined.radius.sum() < net(Zonotope.from_box(box)).radius.sum()
    assert_holds(net(points).detach(), refined.detach())


def test_relu_bounds_decide_the_sign() -> None:
    x = Zonotope(torch.zeros(1, 3), torch.ones(1, 1, 3))
    bounds = torch.tensor([[0.0, -1.0, -0.5]]), torch.tensor([[2.0, -0.2, 0.5]])
    for relu in (F.relu, F.relu_, torch.relu):
        y = x.clone()
        y.relu_bounds = lambda z: bounds
        y = relu(y)
        torch.testing.assert_close(y.generators[0], torch.tensor([[1.0, 0.0, 0.5]]))
        torch.testing.assert_close(y.center, torch.tensor([[0.0, 0.0, 0.125]]))


def test_relu_bounds_of_another_shape_raise() -> None:
    x = Zonotope.ball(torch.rand(2, 3), 0.1, relu_bounds=lambda z: (z.lower[:1], z.upper[:1]))
    with pytest.raises(UserError, match=r"shape \(2, 3\), not \(1, 3\)"):
        x.relu()


# ---- margins


@settings(max_examples=30)
@given(nets(), st.integers(0, 3), st.sampled_from([None, 20]))
def test_margins_are_sound_and_no_looser_than_differences_of_bounds(net: nn.Module, label: int, most: Any) -> None:
    net.extend([nn.Flatten(), nn.LazyLinear(4).double()])
    net(torch.zeros(1, 2, 6, 6, dtype=torch.float64))
    box, y = wide_box(1, 2, 6, 6), torch.tensor([label])
    with torch.no_grad():
        output = run(net, Zonotope.from_box(box, max_symbols=most))
        margins, outputs = output.margins(y), net(members(box, 1000))
        assert_holds(outputs[:, y] - outputs, margins)
        assert torch.equal(output.lower_margins(y), margins.lower)
        assert margins.lower[0, y] == margins.upper[0, y] == 0
        assert (margins.lower >= output.lower[:, y] - output.upper - 1e-9)[0, torch.arange(4) != label].all()


def test_margins_of_affine_nets_are_exact() -> None:
    net, box, y = affine_net(0), random_box(5, 2, 6, 6), torch.tensor([0, 1, 2, 3, 0])
    margins = net(Zonotope.from_box(box)).margins(y)
    rows = torch.arange(5)
    expected = exact_range(lambda x: (z := net(x))[rows, y, None] - z, box)
    torch.testing.assert_close((margins.lower, margins.upper), expected)


def test_margins_need_outputs_and_labels() -> None:
    with pytest.raises(UserError, match=r"labels \(B,\), not \(2, 3, 4\)"):
        Zonotope.from_box(random_box(2, 3, 4)).margins(torch.tensor([0, 1]))


# ---- gradients


@pytest.mark.parametrize("most", [None, 0, 7])
@pytest.mark.parametrize("activation", [nn.ReLU(inplace=True), nn.LeakyReLU(0.2), nn.Sigmoid(), nn.Tanh(), nn.PReLU(2)])
def test_gradients_of_the_margins(activation: nn.Module, most: int | None) -> None:
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)
    residual = Residual(nn.Linear(8, 8), in_place=True)
    net = settled(nn.Sequential(conv, norm, activation, nn.Flatten(), residual, nn.Linear(8, 3)))
    y = torch.tensor([2, 0])
    x = torch.rand(2, 1, 3, 3, dtype=torch.float64)
    names, values = zip(*net.named_parameters(), strict=True)

    def lower_margins(*parameters: Tensor) -> Tensor:
        ball = Zonotope.ball(x, 0.1, max_symbols=most)
        return torch.func.functional_call(net, dict(zip(names, parameters, strict=True)), (ball,)).lower_margins(y)

    assert torch.autograd.gradcheck(lower_margins, values)


def test_gradients_flow_through_relu_bounds() -> None:
    torch.manual_seed(1)
    weight = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
    x = torch.rand(1, 6, dtype=torch.float64)

    def bounds(w: Tensor) -> tuple[Tensor, Tensor]:
        half = lambda z: (z.lower * 0.5 - 0.01, z.upper * 0.5 + 0.01)  # noqa: E731
        output = F.relu(F.linear(Zonotope.ball(x, 0.3, relu_bounds=half), w))
        return output.lower, output.upper

    assert torch.autograd.gradcheck(bounds, (weight,))


def test_detach_stops_the_gradient() -> None:
    output = nn.Linear(3, 2)(Zonotope.ball(torch.rand(1, 3), 0.1))
    assert output.requires_grad
    for cut in (output.detach(), output.data):
        assert not cut.requires_grad
        assert not cut.generators.requires_grad
        assert torch.equal(cut.lower, output.lower)


# ---- constructors and options


@given(st.integers(0, 1000), st.floats(0, 2))
def test_a_ball_is_intersected_with_its_range(seed: int, eps: float) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    for within in ((0.0, 1.0), (-0.5, torch.ones(4).double()), None):
        ball, box = Zonotope.ball(x, eps, within), Box.ball(x, eps, within)
        torch.testing.assert_close((ball.lower, ball.upper), (box.lower, box.upper))
        torch.testing.assert_close(ball.to_box().radius, box.radius)


def test_constructors_check_their_arguments() -> None:
    with pytest.raises(UserError, match="eps must be finite"):
        Zonotope.ball(torch.zeros(1, 2), math.nan)
    with pytest.raises(UserError, match="NaN or lies outside of"):
        Zonotope.ball(torch.full((1, 2), 200.0), 0.1)
    with pytest.raises(UserError, match="max_symbols must not be negative"):
        Zonotope.ball(torch.zeros(1, 2), 0.1, max_symbols=-1)
    with pytest.raises(UserError, match=r"generators \(S, B, ...\) of its dtype, not \(2, 3\)"):
        Zonotope(torch.zeros(2, 3), torch.zeros(4, 3))
    with pytest.raises(UserError, match="radius must be finite and not negative"):
        Zonotope(torch.zeros(2, 3), torch.zeros(4, 2, 3), -1.0)


def test_shape_dtype_and_device() -> None:
    zonotope = Zonotope.ball(torch.rand(2, 3, 4), 0.1)
    assert zonotope.shape == zonotope.size() == (2, 3, 4)
    assert (zonotope.size(1), zonotope.dim(), zonotope.ndim, zonotope.numel(), len(zonotope)) == (3, 3, 3, 24, 2)
    assert zonotope.dtype == torch.float32
    assert zonotope.double().generators.dtype == torch.float64
    assert (zonotope + torch.zeros(4, dtype=torch.float64)).generators.dtype == torch.float64
    assert zonotope.device == torch.device("cpu")
    assert isinstance(zonotope.new_zeros(3), Tensor)
    assert "(2, 3, 4), symbols=12" in repr(zonotope)
    assert not hasattr(zonotope, "grad_fn")


def test_autocast_does_not_round_the_bounds_and_inference_mode_works() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Unflatten(1, (2, 4)), nn.AvgPool1d(2), nn.Flatten())
    x, y = torch.rand(4, 5), torch.tensor([0, 1, 2, 0])
    plain = net(Zonotope.ball(x, 0.1)).lower_margins(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = net(Zonotope.ball(x, 0.1))
        assert output.dtype == output.generators.dtype == torch.float32
        assert torch.equal(output.lower_margins(y), plain)
    with torch.inference_mode():
        assert torch.equal(net(Zonotope.ball(x, 0.1)).lower_margins(y), plain)


# ---- in place


@pytest.mark.parametrize(
    "change",
    [
        *(F.relu_, torch.relu_, lambda x: F.relu(x, inplace=True), lambda x: F.leaky_relu_(x, 0.3)),
        *(lambda x: F.elu(x, inplace=True), lambda x: F.hardtanh_(x), lambda x: x.clamp_(0, 1), lambda x: x.sigmoid_()),
        *(lambda x: x.add_(CONSTANT, alpha=2), lambda x: x.__iadd__(CONSTANT), lambda x: x.__isub__(2)),
        *(lambda x: x.__imul__(-CONSTANT), lambda x: x.__itruediv__(-3), lambda x: x.neg_(), lambda x: x.abs_()),
    ],
)
def test_in_place_operations_change_the_zonotope_itself(change: Forward) -> None:
    box = wide_box(1, 5)
    zonotope = Zonotope.from_box(box)
    copy = zonotope.clone()
    assert change(zonotope) is zonotope
    assert_holds(change(members(box, 200)), zonotope)
    torch.testing.assert_close((copy.lower, copy.upper), (box.lower, box.upper))  # a clone is not a view


def test_adding_itself_in_place() -> None:
    box = random_box(2, 3)
    zonotope = Zonotope.from_box(box)
    zonotope -= zonotope
    assert not zonotope.radius.any()


@pytest.mark.parametrize("view", [view for i, view in enumerate(VIEWS) if i != len(VIEWS) - 1])
def test_out_of_date_view_raises(view: Forward) -> None:
    zonotope = Zonotope.from_box(random_box(2, 3, 4))
    part = view(zonotope)
    F.relu_(part)
    assert not part.center.isnan().any()
    for use in (F.relu, lambda x: x + 1, lambda x: x.lower, lambda x: torch.cat([x]), lambda x: x.generators):
        with pytest.raises(UnsupportedOperation, match="changed in place through another view"):
            use(zonotope)


def test_contiguous_and_dropout_in_evaluation_return_the_zonotope_itself() -> None:
    zonotope = Zonotope.from_box(random_box(2, 3))
    assert zonotope.contiguous() is zonotope
    assert zonotope.to(torch.float64) is zonotope
    assert F.dropout(zonotope, 0.5, training=False, inplace=True) is zonotope


# ---- unsupported operations


@pytest.mark.parametrize(("net", "shape"), cases([row for row in AFFINE if row[0] in MOVING]))
def test_moving_elements_between_images_raises(net: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedOperation, match="between the images of a Zonotope"):
        ready(net)(Zonotope.from_box(random_box(*shape)))


@pytest.mark.parametrize("batch", [2, 3])
@pytest.mark.parametrize(
    "move",
    [
        *(lambda x: x.T, lambda x: x.flatten(), lambda x: x.view(-1, 1), lambda x: x[:1], lambda x: x[0]),
        *(lambda x: x.sum(0), lambda x: x.mean(), lambda x: x.mean(0, keepdim=True), lambda x: x.cumsum(0)),
        *(lambda x: x.flip(0), lambda x: x.roll(1, 0), lambda x: x.chunk(2, 0), lambda x: x.unsqueeze(0)),
        *(lambda x: torch.stack([x, x]), lambda x: torch.cat([x, x]), lambda x: torch.stack([x, x, x])),
        *(lambda x: x.amax(0), lambda x: x.index_select(0, torch.tensor([1, 0])), lambda x: x.repeat(2, 1)),
        *(lambda x: x + torch.zeros(len(x), 1, 1), lambda x: x * torch.ones(3, 1, 1), lambda x: x[:1] + x),
        *(lambda x: torch.ones(len(x), len(x)).double() @ x, lambda x: x.unsqueeze(1) + x, lambda x: list(x)),
        *(lambda x: F.pad(x, (0, 0, 1, 0)), lambda x: x[:, 0] @ torch.ones(len(x)).double()),
        lambda x: torch.clamp(x, min=torch.zeros(len(x), 1, 1)),
    ],
)
def test_images_are_kept_apart(move: Forward, batch: int) -> None:
    """Images share names of symbols, so mixing them would be silently wrong."""
    with pytest.raises(UnsupportedOperation, match="between the images of a Zonotope"):
        move(Zonotope.from_box(random_box(batch, 3)))


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Softmax(1), r"torch.nn.functional.softmax has no rule for a Zonotope"),
        (nn.GELU(), "gelu has no rule for a Zonotope"),
        (nn.LayerNorm(6), "layer_norm has no rule"),
        (nn.BatchNorm1d(6), r"BatchNorm in training mode.* call net.eval\(\)"),
        (nn.Dropout(), r"dropout in training mode.* evaluation mode \(layer.eval\(\)"),
        (nn.MaxPool1d(2, return_indices=True), "return_indices"),
        (Lambda(lambda x: x if x else -x), "'bool' is undefined for a Zonotope"),
        (Lambda(lambda x: x > 0), "'gt' is undefined"),
        (Lambda(lambda x: x.item()), "'item' has no rule"),
        (Lambda(lambda x: x.nonsense), "'nonsense' has no rule"),
        (Lambda(lambda x: x * x), "product of two Zonotopes"),
        (Lambda(lambda x: x @ x.mT), "matrix product of two Zonotopes|between the images"),
        (Lambda(lambda x: 1 / x), "division by a Zonotope"),
        (Lambda(lambda x: torch.ones(6) / x), "division by a Zonotope"),
        (Lambda(lambda x: torch.exp(x, out=torch.zeros(6))), "torch.exp cannot write a Zonotope to out="),
        (Lambda(lambda x: F.linear(torch.zeros(1, 6), x)), "takes a Zonotope only as its input"),
        (Lambda(lambda x: torch.zeros(1, 6).add_(x)), "add_ cannot write a Zonotope into a tensor"),
        (Lambda(lambda x: x.__setitem__(0, 1)), "'setitem' is undefined"),
        (Lambda(lambda x: x.to(torch.int32)), "cannot be converted to torch.int32"),
        (Lambda(lambda x: torch.cat(x)), "needs a list or tuple|must be tuple"),
    ],
)
def test_unsupported_operations_raise_with_the_layer(layer: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"^layer 'features.2' \(\w+\): .*({words})"):
        Net(layer)(Zonotope.ball(torch.zeros(1, 6), 0.1, within=None))


@pytest.mark.parametrize(
    "mix",
    [
        lambda z, b: z + b,
        lambda z, b: b + z,
        lambda z, b: torch.add(z, b),
        lambda z, b: torch.cat([b, z], 1),
        lambda z, b: z.sub_(b),
        lambda z, b: torch.stack([z, b], 1),
    ],
)
def test_a_box_and_a_zonotope_do_not_mix(mix: Callable[[Any, Any], Any]) -> None:
    box = random_box(2, 3)
    with pytest.raises(UnsupportedOperation, match="another kind of set"):
        mix(Zonotope.from_box(box), box)
