"""LatentZonotope: its points are DeepZ's; it is sound without projections, and close to the exact norms with many."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from networks import network
from small_nets import Lambda
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp import attacks
from advibp.bounds import Box, Zonotope
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.graph.cut import Cut, cuts
from advibp.bounds.graph.pre_activations import RELUS, record_pre_activations
from advibp.bounds.latent import LatentZonotope
from advibp.bounds.rules.zonotope_rules import _relax_piecewise, _relaxed
from advibp.errors import UserError
from advibp.execution.batchnorm import Population, Statistics

KINDS = ("fc", "conv", "batchnorm", "residual")  # the last one is recorded on a tape and accepts one batch size
IMAGES = 2
MANY = 10_000  # the estimate's relative error has a standard deviation of pi / 2 / sqrt(MANY), 1.6 %


@dataclass(frozen=True)
class Case:
    cut: Cut
    box: Box

    def latent(self, projections: int) -> LatentZonotope:
        return LatentZonotope(self.cut.before, self.cut.after, self.box, projections=projections)


def _case(seed: int, kind: str) -> Case:
    """A network with ReLUs, cut at one of its layers, and boxes so large that many neurons are unstable."""
    torch.manual_seed(seed)
    dice = random.Random(seed)
    while True:
        drawn = network(dice.randrange(10**6), kind)
        center = torch.rand(IMAGES, *drawn.shape, dtype=torch.float64)
        found, _ = cuts(drawn.net, center)
        if found:
            radius = torch.rand_like(center) * dice.choice([0.05, 0.5]) * (torch.rand_like(center) < 0.9)
            return Case(dice.choice(found), Box(center=center, radius=radius))


cases = st.builds(_case, st.integers(0, 10**6), st.sampled_from(KINDS))
few = st.sampled_from([0, 1, 2, 9])


class Explicit(TorchFunctionMode):
    """Inside this context the ReLUs of zonotopes are relaxed over given bounds, and record their inputs."""

    def __init__(self, bounds: list[tuple[Tensor, Tensor] | None]) -> None:
        super().__init__()
        self.bounds, self.entered = bounds, list[Zonotope]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in RELUS:
            return func(*args, **kwargs)
        ends = self.bounds[len(self.entered)]
        assert ends is not None
        zonotope = args[0]
        self.entered.append(zonotope.clone())
        relaxed = _relaxed(zonotope, *_relax_piecewise(*ends, 0.0))
        return zonotope._become(relaxed) if func.__name__ == "relu_" or kwargs.get("inplace") else relaxed


def explicit(case: Case, latent: LatentZonotope) -> tuple[Zonotope, list[Zonotope]]:
    """Return the latent set with its generators, and the pre-activations before it."""
    with torch.no_grad(), Explicit(latent.bounds) as mode:
        return case.cut.before(Zonotope.from_box(case.box)), mode.entered


def columns(case: Case, latent: LatentZonotope) -> Tensor:
    """Return which noise has generators: that of pixels that vary and of neurons that are unstable in some image."""
    widths = [case.box.radius, *(-(lower * upper).clamp(max=0) for lower, upper in filter(None, latent.bounds))]
    return torch.cat([width.flatten(1).sum(0) != 0 for width in widths])


def uniform(latent: LatentZonotope, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.empty(IMAGES, latent.symbols, dtype=dtype).uniform_(-1, 1)


def close(a: Tensor, b: Tensor) -> bool:
    return torch.allclose(a, b, rtol=1e-9, atol=1e-9 * float(1 + b.detach().abs().max()))


def labels() -> Tensor:
    return torch.randint(3, (IMAGES,))


# ---- points


@settings(max_examples=60)
@given(cases, few)
def test_points_equal_the_explicit_zonotope(case: Case, projections: int) -> None:
    latent = case.latent(projections)
    zonotope, _ = explicit(case, latent)
    e = uniform(latent)
    offset = torch.einsum("sb...,bs->b...", zonotope.generators, e[:, columns(case, latent)])
    point = latent.point(e)
    assert close(point, zonotope.center + offset)
    assert close(latent(e), case.cut.after(point.clone()))


def test_one_neuron_by_hand() -> None:
    """Over [-1, 3] the slope is 3/4 and the shift 3/8. The option relu_bounds of a zonotope gives the same."""
    box = Box.from_bounds(torch.tensor([[-1.0]]), torch.tensor([[3.0]]))
    latent = LatentZonotope(nn.ReLU(inplace=True), nn.Identity(), box, projections=0)
    assert latent.symbols == 2
    assert latent.point(torch.tensor([[0.5, -1.0]])).item() == pytest.approx(0.75 * 2 + 0.375 - 0.375)
    tight = (torch.tensor([[-0.5]]), torch.tensor([[1.0]]))
    latent.bounds[0] = tight
    hooked = F.relu(Zonotope.from_box(box, relu_bounds=lambda z: tight))
    with Explicit(latent.bounds):
        assert torch.equal(F.relu(Zonotope.from_box(box)).generators, hooked.generators)


@settings(max_examples=30)
@given(cases, few)
def test_attacks_return_points_of_the_zonotope(case: Case, projections: int) -> None:
    latent, y = case.latent(projections), labels()
    zonotope, _ = explicit(case, latent)
    zeros = case.box.center.new_zeros(IMAGES, latent.symbols)
    found = attacks.linf_pgd(latent, zeros, y, 1.0, within=None, steps=3, rel_stepsize=0.5, stop_on_success=False).x_adv
    for e in (found, attacks.linf_fgsm_random(latent, zeros, y, 1.0, within=None)):
        assert e.isfinite().all()
        assert (e.abs() <= 1).all()
        point = latent.point(e)
        slack = 1e-9 * (1 + point.abs())
        assert (point >= zonotope.lower - slack).all()
        assert (point <= zonotope.upper + slack).all()


@settings(max_examples=20)
@given(cases)
def test_one_step_is_optimal_if_the_rest_is_linear(case: Case) -> None:
    features = case.cut.before(case.box.center.clone()).flatten(1).shape[1]
    case = Case(Cut("", case.cut.before, nn.Sequential(nn.Flatten(), nn.Linear(features, 2)).double(), []), case.box)
    latent, y = case.latent(9), torch.randint(2, (IMAGES,))
    zonotope, _ = explicit(case, latent)
    zeros = case.box.center.new_zeros(IMAGES, latent.symbols)
    with torch.no_grad():
        logits = latent(attacks.linf_fgsm(latent, zeros, y, 1.0, within=None, loss="margin"))
        lowest = case.cut.after(zonotope).lower_margins(y)
    assert close(-attacks.attack_loss(logits, y, "margin"), lowest.gather(1, 1 - y[:, None])[:, 0])


# ---- bounds


@settings(max_examples=40)
@given(cases)
def test_sound_without_projections(case: Case) -> None:
    latent = case.latent(0)
    offset = torch.empty_like(case.box.center).uniform_(-1, 1)
    with record_pre_activations() as entered, torch.no_grad():
        truth = case.cut.before(case.box.center + case.box.radius * offset)
    noise = [offset]
    for z, ends in zip(entered, latent.bounds, strict=True):
        assert ends is not None
        lower, upper = ends
        slope = torch.where((lower < 0) & (upper > 0), upper / (upper - lower), (lower >= 0).double())
        shift = torch.where((lower < 0) & (upper > 0), -slope * lower / 2, 0.0)
        noise.append(torch.where(shift > 0, (z.relu() - slope * z - shift) / shift, 0.0))
    e = torch.cat([part.flatten(1) for part in noise], 1)
    assert (e.abs() <= 1 + 1e-6).all()
    assert close(latent.point(e), truth)


@settings(max_examples=40)
@given(cases, few)
def test_bounds_are_finite_and_within_interval_bounds(case: Case, projections: int) -> None:
    latent = case.latent(projections)
    with record_pre_activations() as boxes, torch.no_grad():
        case.cut.before(case.box.clone())
    for box, ends in zip(boxes, latent.bounds, strict=True):
        assert ends is not None
        lower, upper = ends
        assert (box.lower <= lower).all()
        assert (lower <= upper).all()
        assert (upper <= box.upper).all()
        if not projections:
            assert torch.equal(lower, box.lower)
            assert torch.equal(upper, box.upper)


def assert_near(bounds: tuple[Tensor, Tensor], zonotope: Zonotope, box: Box) -> None:
    """Check that bounds are those of a zonotope within a box, up to 10 % of its radius, where the box is unstable."""
    unknown, radius = (box.lower < 0) & (box.upper > 0), zonotope.radius
    for found, exact in zip(bounds, (zonotope.lower, zonotope.upper), strict=True):
        assert ((found - exact.clamp(box.lower, box.upper)).abs()[unknown] <= 0.1 * radius[unknown]).all()


@settings(max_examples=8)
@given(st.builds(_case, st.integers(0, 10**6), st.sampled_from(["fc", "few relus"])))
def test_many_projections_approximate_the_norms(case: Case) -> None:
    latent = case.latent(MANY)
    zonotope, entered = explicit(case, latent)
    with record_pre_activations() as boxes, torch.no_grad():
        hull = case.cut.before(case.box.clone())
    for ends, exact, box in zip(latent.bounds, entered, boxes, strict=True):
        assert ends is not None
        assert_near(ends, exact, box)
    after = nn.Sequential(nn.Flatten(), nn.Linear(hull.flatten(1).shape[1], 4), nn.ReLU()).double()
    following = LatentZonotope(case.cut.before, after, case.box, projections=MANY)
    zonotope, _ = explicit(case, following)
    with torch.no_grad():
        assert_near(following.next_pre_activation_bounds(), after[:2](zonotope), after[:2](hull))


# ---- gradients


@settings(max_examples=15)
@given(cases, few)
def test_gradient_in_the_noise(case: Case, projections: int) -> None:
    latent = case.latent(projections)
    weights = torch.randn_like(latent.point(uniform(latent)))
    e = uniform(latent).requires_grad_()
    assert torch.autograd.gradcheck(lambda e: (latent.point(e) * weights).sum().square(), e, fast_mode=True)


def head(case: Case) -> nn.Sequential:
    """Return some layers after a cut."""
    features = case.cut.before(case.box.center.clone()).flatten(1).shape[1]
    layers = [nn.Flatten(), nn.Linear(features, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Linear(5, 3)]
    return nn.Sequential(*layers).double().eval()


@settings(max_examples=15)
@given(cases, few)
@example(_case(5616, "batchnorm"), 1)  # constant features, whose bounds meet
def test_next_pre_activation_bounds_have_a_gradient(case: Case, projections: int) -> None:
    after = head(case)
    latent = LatentZonotope(case.cut.before, after, case.box, projections=projections)
    weight, numbers = after[1].weight, torch.arange(5)
    kept, direction = weight.detach().clone(), torch.randn_like(weight)

    def loss(t: float) -> Tensor:
        with torch.no_grad():
            weight.copy_(kept + t * direction)
        lower, upper = latent.next_pre_activation_bounds()
        return (lower * numbers).sum() + upper.square().sum()

    here = loss(0.0)
    (gradient,) = torch.autograd.grad(here, weight)
    right, left = ((loss(t) - here).item() / t for t in (1e-6, -1e-6))
    assume(right == pytest.approx(left, rel=1e-4, abs=1e-4))  # there is no derivative at a kink
    assert (gradient * direction).sum().item() == pytest.approx(right, rel=1e-3, abs=1e-3)


@given(cases)
def test_next_pre_activation_bounds_without_projections_are_intervals(case: Case) -> None:
    after = head(case)
    latent = LatentZonotope(case.cut.before, after, case.box, projections=0)
    lower, upper = latent.next_pre_activation_bounds()
    expected = after[:3](case.cut.before(case.box.clone()))
    assert torch.equal(lower, expected.lower)
    assert torch.equal(upper, expected.upper)


@settings(max_examples=20)
@given(cases)
def test_the_weights_before_the_cut_get_no_gradient(case: Case) -> None:
    after = head(case)
    latent = LatentZonotope(case.cut.before, after, case.box, projections=3)
    e = uniform(latent).requires_grad_()
    (latent(e).square().sum() + latent.next_pre_activation_bounds()[1].sum()).backward()
    assert all(p.grad is None for p in case.cut.frozen)
    assert all(p.grad is not None for p in after.parameters())
    assert e.grad is not None
    assert not latent.point(e.detach()).requires_grad


# ---- how networks may be written


def images(*shape: int) -> Box:
    return Box(center=torch.randn(IMAGES, *shape, dtype=torch.float64), radius=0.7)


SPELLINGS: list[Callable[[Any], Any]] = [
    nn.ReLU(inplace=True),
    torch.relu,
    torch.relu_,
    F.relu_,
    lambda x: x.relu(),
    lambda x: x.relu_(),
    lambda x: F.relu(x, True),
    lambda x: F.relu(x, inplace=True),
    lambda x: F.relu(input=x),
    lambda x: (x.relu_(), x)[1],  # the ReLU's return value is not used
]


@pytest.mark.parametrize("relu", SPELLINGS)
def test_every_spelling_of_relu_is_relaxed(relu: Callable[[Any], Any]) -> None:
    conv, other, box = nn.Conv2d(2, 3, 3).double(), nn.Conv2d(3, 2, 2).double(), images(2, 5, 5)
    kept = box.center.clone(), box.radius.clone()
    points = []
    for act in (F.relu, relu):
        before = nn.Sequential(conv, Lambda(act), other, Lambda(act))
        latent = LatentZonotope(before, nn.Identity(), box, generator=torch.Generator().manual_seed(5))
        e = torch.linspace(-1, 1, IMAGES * latent.symbols, dtype=torch.float64).view(IMAGES, -1).requires_grad_()
        point = latent.point(e)
        points.append((point, *torch.autograd.grad(point.square().sum(), e)))
    assert all(torch.equal(a, b) for a, b in zip(*points, strict=True))
    assert torch.equal(box.center, kept[0])
    assert torch.equal(box.radius, kept[1])


def test_relu_of_weights_is_not_relaxed() -> None:
    box, weight = images(4), nn.Parameter(torch.randn(4, 4, dtype=torch.float64))
    positive = weight.detach().clamp(min=0)
    latent = LatentZonotope(lambda x: F.relu(F.linear(x, F.relu(weight))), F.relu, box, projections=0)
    expected = LatentZonotope(lambda x: F.relu(F.linear(x, positive)), F.relu, box, projections=0)
    assert latent.bounds[0] is None
    assert latent.symbols == expected.symbols == 8
    e = uniform(latent).requires_grad_()
    assert torch.equal(latent.point(e), expected.point(e))
    latent.point(e).sum().backward()
    assert weight.grad is None


OTHERS = [nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(), nn.MaxPool2d(2), nn.Softplus(), nn.ReLU6(), Lambda(torch.abs)]


@pytest.mark.parametrize("layer", OTHERS, ids=str)
def test_other_activations_are_refused(layer: nn.Module) -> None:
    before, box = nn.Sequential(nn.Conv2d(2, 3, 2), layer, nn.ReLU()).double(), images(2, 4, 4)
    with pytest.raises(UnsupportedOperation, match=r"layer '1.*neither affine nor a ReLU; cut the network before it"):
        LatentZonotope(before, nn.Identity(), box)
    with pytest.raises(UnsupportedOperation, match="neither affine nor a ReLU"):
        LatentZonotope(nn.Identity(), before, box).next_pre_activation_bounds()
    lower, _ = LatentZonotope(
        nn.Identity(), nn.Sequential(nn.ReLU(), layer), box
    ).next_pre_activation_bounds()  # it may come later
    assert lower.shape == box.shape


def test_batchnorm_after_the_cut_ignores_noise() -> None:
    layer, box = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU()).double(), images(4)
    latent = LatentZonotope(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).double(), layer, box)
    with pytest.raises(UnsupportedOperation, match="BatchNorm in training mode"):
        latent.next_pre_activation_bounds()
    with Statistics(layer):
        layer(latent.point(uniform(latent)))
        kept = {name: buffer.clone() for name, buffer in layer.named_buffers()}
        lower, upper = latent.next_pre_activation_bounds()
    assert lower.isfinite().all()
    assert (lower <= upper).all()
    assert all(torch.equal(buffer, kept[name]) for name, buffer in layer.named_buffers())


def test_batchnorm_before_the_cut_may_be_frozen_by_its_caller() -> None:
    net, box = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()).double(), images(4)
    nn.init.normal_(net[1].bias)

    def before(x: Any) -> Any:
        with Population():
            return net(x)

    kept = net[1].running_mean.clone()
    latent = LatentZonotope(before, F.relu, box, projections=0)
    e = uniform(latent)
    found = latent.point(e)
    assert torch.equal(net[1].running_mean, kept)
    assert torch.equal(found, LatentZonotope(net.eval(), F.relu, box, projections=0).point(e))


def test_single_precision_stays_finite_in_deep_networks() -> None:
    torch.manual_seed(0)
    before = nn.Sequential(*(layer for _ in range(12) for layer in (nn.Linear(64, 64), nn.ReLU())))
    for parameter in before.parameters():
        parameter.data.mul_(4)
    latent = LatentZonotope(
        before, nn.Sequential(nn.Linear(64, 8), nn.ReLU()), Box(center=torch.randn(IMAGES, 64), radius=1.0)
    )
    assert all(end.isfinite().all() for ends in latent.bounds if ends for end in ends)
    point = latent.point(uniform(latent, torch.float32))
    assert point.dtype == torch.float32
    assert point.isfinite().all()
    assert all(end.isfinite().all() for end in latent.next_pre_activation_bounds())


def test_a_generator_makes_it_repeatable() -> None:
    before, box = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).double(), images(6)
    seeds = (1, 1, 2)
    made = [LatentZonotope(before, F.relu, box, generator=torch.Generator().manual_seed(seed)) for seed in seeds]
    first, second, third = (latent.next_pre_activation_bounds()[1] for latent in made)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


# ---- bad arguments


def test_bad_arguments_raise() -> None:
    before, box = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).double(), images(6)
    latent = LatentZonotope(before, nn.Linear(6, 3).double(), box)
    with pytest.raises(UserError, match=r"e must have the shape \(2, 12\), not \(1, 12\); linf_pgd drops rows"):
        latent.point(uniform(latent)[:1])
    assert latent.next_pre_activation_bounds() is None  # there is no ReLU after the cut
    with pytest.raises(UserError, match="projections must not be negative, got -1"):
        LatentZonotope(before, nn.Identity(), box, projections=-1)


@pytest.mark.parametrize("change", [-1, 1])
def test_network_with_varying_relus_is_refused(change: int) -> None:
    times = [2]

    def before(x: Any) -> Any:
        for _ in range(times[0]):
            x = F.relu(x - 0.1)
        return x

    latent = LatentZonotope(before, nn.Identity(), images(6))
    times[0] += change
    with pytest.raises(UserError, match=f"2 ReLUs ran on a box but {times[0]} on points"):
        latent.point(uniform(latent))
