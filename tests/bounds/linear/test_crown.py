"""Linear bounds: they contain sampled points, are exact for affine networks, and refuse unsupported networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exact import exact_margins
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from networks import KINDS
from pooling_nets import MOVING, staying, wide_box
from programs import SETS_TOO, Program, programs
from small_nets import AFFINE, Lambda, Residual, assert_inside, extremes, members, nets, ready, settled
from some_margins import close, some
from torch import Tensor, nn

from advibp.bounds import Box, LinearBounds, crown, crown_ibp, intermediate
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.zonotope import Zonotope
from advibp.errors import UserError

Forward = Callable[[Any], Any]


def linear(net: Forward, box: Box, **options: Any) -> LinearBounds:
    """Return linear bounds. Networks that they refuse are discarded."""
    try:
        return LinearBounds(net if isinstance(net, nn.Module) else Lambda(net), box, **options)
    except UnsupportedOperation:
        reject()


def jacobian(net: Forward, x: Tensor) -> Tensor:
    """Return the Jacobian (outputs, inputs) of an affine network at one image (1, ...)."""
    return torch.autograd.functional.jacobian(lambda z: net(z).flatten(), x).flatten(1)


# ---- soundness; see also checks/soundness.py


@settings(max_examples=40)
@given(nets())
def test_bounds_contain_sampled_points(net: nn.Module) -> None:
    box = wide_box(1, 2, 6, 6)
    bounds = linear(net, box)
    points = torch.cat([members(box, 500), extremes(net, box)])
    with torch.no_grad():
        values = net(points.clone())
        assert_inside(values, bounds.output())
        assert_inside(values, bounds.refine().output())


@settings(max_examples=60)
@given(programs({name: SETS_TOO[name] for name in SETS_TOO.keys() - {"iterate", "transposed", "pool"}}, training=False))
def test_bounds_contain_sampled_points_of_programs(net: Program) -> None:
    box = wide_box(1, 8)
    bounds = linear(net, box)
    with torch.no_grad():
        values = net(members(box, 500))
        assert_inside(values, bounds.output())
        assert_inside(values, bounds.refine().output())


@settings(max_examples=15)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.4]))
def test_margins_are_at_most_exact(seed: int, eps: float) -> None:
    net, box, y = some(seed, 1, eps, "few relus")
    with torch.no_grad():
        exact = exact_margins(net, box, int(y)) + 1e-9
        bounds = LinearBounds(net, box)
        assert (net(box.clone()).lower_margins(y) <= exact).all()
        assert (net(Zonotope.from_box(box)).lower_margins(y) <= exact).all()
        assert (bounds.margins(y) <= exact).all()
        assert (bounds.refine().margins(y) <= exact).all()


@pytest.mark.parametrize("kind", KINDS)
def test_box_of_radius_zero_gives_the_output(kind: str) -> None:
    net, box, y = some(1, 3, 0.0, kind)
    with torch.no_grad():
        output = net(box.center.clone())
        close(LinearBounds(net, box).margins(y), output.gather(1, y[:, None]) - output)
        close(LinearBounds(net, box).output().center, output)


# ---- exact for affine networks


@pytest.mark.parametrize(("net", "shape"), staying(AFFINE))
@torch.no_grad()
def test_affine_layers_are_exact(net: Any, shape: tuple[int, ...]) -> None:
    box, forward = wide_box(*shape), ready(net)
    layer = forward if isinstance(forward, nn.Module) else Lambda(forward)
    try:
        slopes = jacobian(forward, box.center[:1])
    except RuntimeError:  # it accepts only batches of two
        with pytest.raises(UserError, match=r"accepts 2 images but not \d+ has no linear bounds"):
            LinearBounds(layer, box).output()
        return
    bounds = LinearBounds(layer, box).output()
    for i in range(len(box)):
        close(bounds.center[i].flatten(), forward(box.center[i : i + 1].clone()).flatten())
        close(bounds.radius[i].flatten(), slopes.abs() @ box.radius[i].flatten())


def test_chains_of_affine_layers_are_exact() -> None:
    """Intervals are not exact here. Linear bounds are, for any number of layers and for residual sums."""
    torch.manual_seed(0)
    conv = [nn.Conv2d(2, 4, 3, 2, 1, groups=2), nn.BatchNorm2d(4), nn.AvgPool2d(2), nn.Conv2d(4, 4, 1), nn.Flatten()]
    net = settled(nn.Sequential(*conv, Lambda(lambda x: x - 0.7 * x.flip(1)), nn.Linear(16, 3)))
    box, y = wide_box(2, 2, 8, 8), torch.tensor([2, 0])
    with torch.no_grad():
        bounds = LinearBounds(net, box)
        for i in range(2):
            slopes, z = jacobian(net, box.center[i : i + 1]), net(box.center[i : i + 1])[0]
            slopes = slopes[y[i]] - slopes
            close(bounds.margins(y)[i], z[y[i]] - z - slopes.abs() @ box.radius[i].flatten())
        assert bool((bounds.margins(y) > net(box).lower_margins(y) + 0.01).any())


# ---- comparison of bounds


def test_crown_can_be_looser_than_intervals() -> None:
    """ReLU over [-1, 1.5]: the lower line x has the minimum -1, while intervals give 0."""
    net, box = nn.Sequential(nn.ReLU(), nn.Linear(1, 2, bias=False)).double(), Box(center=double(0.25), radius=1.25)
    net[1].weight.data = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    y = torch.tensor([0])
    assert net(box).lower_margins(y)[0, 1] == 0
    assert LinearBounds(net, box).margins(y)[0, 1].item() == -1
    assert LinearBounds(net, box).output().lower[0, 0] == 0  # the better of both


def double(*numbers: float) -> Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


@settings(max_examples=30)
@given(st.integers(0, 10_000))
@torch.no_grad()
def test_refine_tightens(seed: int) -> None:
    net, box, _ = some(seed)
    bounds = crown_ibp(net, box)
    before, output = dict(bounds.intermediate_bounds), bounds.output()
    assert bounds.refine() is bounds
    assert bounds.intermediate_bounds.keys() == before.keys()
    for index, (lower, upper) in bounds.intermediate_bounds.items():
        # Bounds may cross by a rounding error, and are then swapped.
        old_lower, old_upper = before[index]
        assert (lower >= old_lower - 1e-12 * (1 + old_lower.abs())).all()
        assert (upper <= old_upper + 1e-12 * (1 + old_upper.abs())).all()
        assert (lower <= upper).all()
    interval = net(box.clone())
    for better, worse in ((output, interval), (bounds.output(), interval)):
        assert (better.lower >= worse.lower - 1e-12).all()
        assert (better.upper <= worse.upper + 1e-12).all()


@settings(max_examples=12)
@given(st.integers(0, 10_000))
@torch.no_grad()
def test_results_do_not_depend_on_chunks_or_batch(seed: int) -> None:
    net, box, y = some(seed)
    whole = crown(net, box)
    margins = whole.margins(y)
    for at_once in (1, 7) if seed % 4 == 0 else (7,):  # single rows are slow
        few = crown(net, box, at_once=at_once)
        close(few.margins(y), margins)
        close(few.intermediate_bounds, whole.intermediate_bounds)
        close(few.output().lower, whole.output().lower)
    for keep in ([2], [2, 0]):
        part = Box(center=box.center[keep], radius=box.radius[keep])
        close(crown(net, part).margins(y[keep]), margins[keep])
        close(whole.take(torch.tensor(keep)).margins(y[keep]), margins[keep])
        before = crown_ibp(net, box).take(torch.tensor(keep))
        close(before.margins(y[keep]), crown_ibp(net, part).margins(y[keep]))
        close(before.refine().margins(y[keep]), margins[keep])


def test_intermediate_bounds_have_names() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    found = dict(intermediate(crown(net, wide_box(2, 3))))
    assert list(found) == ["layer '0' (linear)", "layer '2' (linear)"]
    assert all(isinstance(box, Box) and box.shape == (2, 4) for box in found.values())


@torch.no_grad()
def test_shared_pre_activation_is_refined() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

    def net(x: Any) -> Any:
        z = second(F.relu(first(x)))
        return F.relu(z) - 2 * torch.tanh(z)

    box = wide_box(1, 4)
    bounds = LinearBounds(Lambda(net), box)
    before = bounds.output()
    after = bounds.refine().output()
    assert (after.radius < before.radius).all()
    assert_inside(net(members(box, 2000)), after)


# ---- regressions and edge cases


CASES: list[tuple[str, Forward, tuple[int, ...]]] = [
    ("relu in place", lambda x: F.relu_(x * 2 - 0.3) + x, (2, 5)),
    ("leaky relu in place", lambda x: F.leaky_relu(x - 0.1, 0.3, inplace=True), (2, 5)),
    ("the input itself in place", lambda x: F.relu_(x) - 0.5, (2, 5)),
    ("sum in place", lambda x: F.relu(x - 0.2).add_(x).relu_(), (2, 5)),
    ("a weight through relu", lambda x: F.linear(F.relu(x), F.relu(SQUARE)), (2, 5)),
    ("named arguments", lambda x: F.relu(input=F.linear(input=x, weight=SQUARE)), (2, 5)),
    ("linear on (B, T, J)", lambda x: F.relu(F.linear(x, SQUARE, BIAS)), (2, 5, 5)),
    ("one number an image", lambda x: F.relu(x.mean(1) + 0.1).unsqueeze(1) * BIAS, (2, 5)),
    ("detached", lambda x: F.relu(x.detach() @ SQUARE) + x.data, (2, 5)),
    ("without a gradient", lambda x: torch.no_grad()(lambda v: F.relu(v * 2 + 1))(x), (2, 5)),
    ("a constant that is written to later", lambda x: written_later(x), (2, 5)),
    ("of the batch's size", lambda x: torch.cat([F.relu(x), torch.ones(x.shape[0], 2).double()], 1), (2, 5)),
    ("split", lambda x: torch.cat([F.relu(p) for p in x.split([2, 3], 1)][::-1], 1) + x, (2, 5)),
    ("parts of parts", lambda x: x.unbind(1)[1].unsqueeze(1) - F.relu(x.chunk(2, 1)[0]), (2, 5)),
    ("transposed convolution", lambda x: F.relu(F.conv_transpose1d(x, SQUARE[:, :, None].repeat(1, 1, 2))), (2, 5, 3)),
    ("two affine layers", lambda x: F.relu((x @ SQUARE) @ SQUARE), (2, 5)),
    ("max pool with padding", lambda x: F.max_pool2d(x, 3, 2, 1), (2, 2, 5, 5)),
    ("half a conversion", lambda x: F.relu(x.float().double() - 0.1), (2, 5)),
]
SQUARE = torch.linspace(-1, 1, 25, dtype=torch.float64).view(5, 5).sin() + torch.eye(5).double() / 3
BIAS = torch.linspace(-1, 1, 5, dtype=torch.float64)


def written_later(x: Any) -> Any:
    shift = torch.zeros(5, dtype=torch.float64) + 0.5
    z = F.relu(x - shift)
    shift += 10
    return z + shift


@pytest.mark.parametrize(("net", "shape"), [pytest.param(net, shape, id=name) for name, net, shape in CASES])
def test_bounds_of_unusual_networks_are_sound(net: Forward, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    slack = 1e-6 if "float" in net.__code__.co_names else 0.0
    box = wide_box(*shape)
    bounds = LinearBounds(Lambda(net), box)
    for _ in range(2):
        output = bounds.output()
        widened = Box(center=output.center.detach(), radius=output.radius.detach() + slack)
        for i in range(len(box)):
            one = Box(center=box.center[i : i + 1], radius=box.radius[i : i + 1])
            points = members(one, 2 * (1000 // 2))
            with torch.no_grad():
                values = torch.cat([net(p.clone()) for p in points.split(2)])
            assert_inside(values, Box(center=widened.center[i : i + 1], radius=widened.radius[i : i + 1]))
        bounds.refine()


def test_overflow_gives_no_finite_margins() -> None:
    """NaN or infinite bounds must not become finite margins."""
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(1e25)
        for bounds in (LinearBounds(net, Box.ball(torch.rand(1, 2), 0.3)), crown(net, Box.ball(torch.rand(1, 2), 0.3))):
            margins = bounds.margins(torch.tensor([0]))
            assert not (margins[0, 1] > 0)


def test_autocast_does_not_round_the_bounds() -> None:
    net, box, y = some(1, kind="conv")
    net, box = net.float(), Box(center=box.center.float(), radius=box.radius.float())
    plain = crown(net, box).margins(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(crown(net, box).margins(y), plain)


# ---- gradients


@pytest.mark.parametrize("kind", ["fc", "conv", "residual", "pooling", "batchnorm", "smooth conv", "functional"])
def test_gradients_of_the_margins(kind: str) -> None:
    """They equal finite differences, also for operations that are carried back by autograd."""
    net, box, y = some(3, 2, 0.2, kind)
    names, values = zip(*net.named_parameters(), strict=True)

    class Called(nn.Module):
        def __init__(self, parameters: tuple[Tensor, ...]) -> None:
            super().__init__()
            self.given = dict(zip(names, parameters, strict=True))
            self.net = [net]

        def forward(self, x: Any) -> Any:
            return torch.func.functional_call(self.net[0], self.given, (x,))

    def margins(*parameters: Tensor) -> Tensor:
        return LinearBounds(Called(parameters), box).margins(y)

    assert torch.autograd.gradcheck(margins, values, fast_mode=True)


def test_gradients_through_average_pooling_batchnorm_and_refined_bounds() -> None:
    torch.manual_seed(0)
    net = settled(
        nn.Sequential(nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(2, 3))
    )
    box, y = Box.ball(torch.rand(2, 1, 3, 3).double(), 0.2), torch.tensor([2, 0])
    weight = net[0].weight

    def margins(w: Tensor) -> Tensor:
        with torch.no_grad():
            weight.copy_(w)
        return LinearBounds(net, box).refine().margins(y)

    found = torch.autograd.grad(LinearBounds(net, box).refine().margins(y).sum(), weight)[0]
    start = weight.detach().clone()
    for place in torch.eye(start.numel(), dtype=torch.float64)[:3]:
        step = 1e-6 * place.view_as(start)
        with torch.no_grad():
            slope = (margins(start + step).sum() - margins(start - step).sum()) / 2e-6
        torch.testing.assert_close((found * place.view_as(start)).sum(), slope, rtol=1e-5, atol=1e-6)


# ---- unsupported networks

NOISE = torch.linspace(-1, 1, 15, dtype=torch.float64).view(3, 5)


def through_a_view(x: Any) -> Any:
    y = x * 2
    F.relu_(y.view(-1, 5))
    return y + 1


def constant_through_a_view(x: Any) -> Any:
    shift = torch.zeros(5, dtype=torch.float64) + 0.5
    view = shift.view(1, 5)
    shift += 10
    return F.relu(x - view)


class Counting(nn.Module):
    """Writes to a buffer of its own between two uses of it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(5, dtype=torch.float64))

    def forward(self, x: Any) -> Any:
        z = F.relu(x + self.count)
        self.count.add_(1)
        return z + self.count


@pytest.mark.parametrize(
    ("net", "words"),
    [
        (lambda x: F.gelu(x), "gelu"),
        (lambda x: F.softplus(x), "softplus has no linear bounds"),
        (lambda x: x.abs(), "abs has no linear bounds"),
        (lambda x: F.leaky_relu(x, -0.2), "only for slopes from 0 to 1"),
        (lambda x: F.hardtanh(x), "hardtanh has no linear bounds"),
        (lambda x: x * x, "product of two"),
        (lambda x: F.max_pool1d(x.unsqueeze(1), 2).flatten(1), "no linear bounds"),
        (lambda x: F.max_pool2d(x.unsqueeze(1), (1, 2)).flatten(1), r"only for inputs \(B, C, H, W\)"),
        (lambda x: F.max_pool2d(x[:, None, None], (1, 2), ceil_mode=True).flatten(1), "ceil_mode"),
        (through_a_view, "in place"),
        (constant_through_a_view, "written in place through another view"),
        (Counting(), "written in place through another view"),
        (lambda x: x - x.mean(0), "between the images|axis 0"),
        (lambda x: x.flip(0), "between the images"),
        (lambda x: x.view(-1, 1), "between the images"),
        (lambda x: x + NOISE, "accepts 3 images but not"),
        (lambda x: (F.relu(x) * NOISE).mean(1, keepdim=True), "does not treat all images alike"),  # one row per image
        (lambda x: x * torch.arange(x.shape[0]).double().unsqueeze(1), "does not treat all images alike"),
        (lambda x: x * x.shape[0], "does not treat all images alike"),
        (lambda x: x + torch.rand(5).double(), "does not treat all images alike"),
        (lambda x: F.batch_norm(x, None, None, training=True), "BatchNorm in training"),
        (lambda x: F.dropout(x), "dropout in training"),
        (lambda x: x if x else -x, "can't be replayed"),
    ],
)
def test_unsupported_networks_are_refused(net: Forward, words: str) -> None:
    box = wide_box(3, 5)
    with pytest.raises(UserError, match=words):
        LinearBounds(Lambda(net), box).output()


@pytest.mark.parametrize("name", [name for name in MOVING if name != "matrix @ box"])
def test_moving_elements_between_images_is_refused(name: str) -> None:
    _, net, shape = next(row for row in AFFINE if row[0] == name)
    with pytest.raises(UserError, match="between the images"):
        LinearBounds(Lambda(ready(net)), wide_box(*shape))


def test_margins_need_outputs_and_labels() -> None:
    box = wide_box(2, 5)
    with pytest.raises(UserError, match=r"not \(2, 5\) and \(3,\)"):
        LinearBounds(nn.ReLU(), box).margins(torch.tensor([0, 1, 2]))
    with pytest.raises(UserError, match="flatten the outputs"):
        LinearBounds(nn.ReLU(), wide_box(2, 5, 1)).margins(torch.tensor([0, 1]))


def test_a_residual_network_that_writes_in_place() -> None:
    torch.manual_seed(0)
    net = settled(nn.Sequential(Residual(nn.Linear(5, 5), True), Residual(nn.Linear(5, 5), True), nn.Linear(5, 3)))
    same = settled(nn.Sequential(Residual(net[0].block, False), Residual(net[1].block, False), net[2]))
    box, y = wide_box(2, 5), torch.tensor([0, 1])
    close(crown(net, box).margins(y), crown(same, box).margins(y))


@pytest.mark.parametrize("gradients", [False, True])
def test_a_mean_over_a_batch_of_one_image_is_refused(gradients: bool) -> None:
    """It is the identity for one image, but would mix the rows of a backward pass."""
    layer = nn.Linear(3, 3).double().requires_grad_(False)

    class Centered(nn.Module):
        def forward(self, x: Any) -> Any:
            return F.relu(layer(x)) - layer(x).mean(0, keepdim=True)

    box = Box.ball(torch.rand(1, 3, dtype=torch.float64), 0.1)
    with torch.set_grad_enabled(gradients), pytest.raises(UserError, match="does not treat all images alike"):
        crown_ibp(Centered(), box).margins(torch.tensor([0]))
