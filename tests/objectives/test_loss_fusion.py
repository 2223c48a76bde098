"""The fused loss lies between the robust loss and the loss of IBP, for every network and set."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from loss_problems import problem
from torch import Tensor, nn

from advibp import Box, Recipe, UserError, attacks, objectives
from advibp.bounds import LinearBounds, Rounded, crown_ibp
from advibp.objectives import Ball, Context, Settings
from advibp.objectives.loss_fusion import _relative_slope, fused_loss

SPECS = ("FC 5", "FC 8, FC 6", "Conv 3 2x2+1, FC 6", "Conv 2 3x3+1, Conv 3 2x2+2")
FUSED = Context(ramped=0.0, settings=Settings(loss_fusion=True))
torch.set_num_threads(1)


def problems(test: Callable[..., None]) -> Callable[..., None]:
    radii = st.just(0.0) | st.floats(1e-9, 0.6)
    drawn = given(spec=st.sampled_from(SPECS), seed=st.integers(0, 10_000), eps=radii, size=st.sampled_from((0.3, 1.0)))
    return settings(max_examples=20)(drawn(test))


def sized(spec: str, seed: int, size: float) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a problem whose weights are multiplied by `size`: from narrow to wide intervals."""
    net, x, y = problem(spec, seed)
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(size)
    return net, x, y


def interval_loss(bounds: LinearBounds, y: Tensor) -> Tensor:
    return F.cross_entropy(-bounds.interval_margins(y), y, reduction="none")


def worst_of(net: Any, points: Tensor, y: Tensor) -> Tensor:
    """Return the largest loss (B,) at points (N, B, ...)."""
    return torch.stack([F.cross_entropy(net(x), y, reduction="none") for x in points]).amax(0)


@problems
@torch.no_grad()
def test_it_lies_between_the_robust_loss_and_that_of_ibp(spec: str, seed: int, eps: float, size: float) -> None:
    """At samples, at vertices, and at the points of PGD; for every weight of CROWN-IBP."""
    net, x, y = sized(spec, seed, size)
    shifts = 2 * torch.rand(60, *x.shape, generator=torch.Generator().manual_seed(seed), dtype=x.dtype) - 1
    shifts = eps * torch.cat([shifts[:30], shifts[30:].sign()])
    points = [(x + s).clamp(0, 1) for s in shifts]
    points.append(attacks.linf_pgd(net, x, y, eps, steps=10, rel_stepsize=0.25, stop_on_success=False).x_adv)
    robust = worst_of(net, torch.stack(points), y)
    bounds = crown_ibp(net, Box.ball(x, eps))
    last = by_intervals = interval_loss(bounds, y)
    for beta in (0.0, 0.3, 1.0):
        loss = fused_loss(bounds, y, beta)
        assert (loss >= robust - 1e-9 * (1 + robust)).all()
        assert (loss <= last + 1e-9 * (1 + last)).all()  # more of CROWN-IBP is tighter
        last = loss
        if beta == 0:
            torch.testing.assert_close(loss, by_intervals, rtol=1e-9, atol=1e-9)


@problems
@torch.no_grad()
def test_the_common_row_is_not_worse_than_the_margins_in_the_chords(
    spec: str, seed: int, eps: float, size: float
) -> None:
    """With CROWN-IBP's margins in place of the common row, the chords give a larger loss."""
    net, x, y = sized(spec, seed, size)
    bounds = crown_ibp(net, Box.ball(x, eps))
    box, margins = bounds.interval_margin_box(y), bounds.margins(y)
    width = box.upper - box.lower
    slope = torch.where(width > 1e-6, (torch.exp(-box.lower) - torch.exp(-box.upper)) / width, torch.exp(-box.upper))
    chords = torch.exp(-box.lower) - slope * (margins - box.lower)
    largest = torch.exp(-box.lower).sum(1)
    by_margins = torch.minimum(chords.sum(1), largest).clamp(min=0).log()
    assert (fused_loss(bounds, y) <= by_margins + 1e-6 * (1 + by_margins.abs())).all()


@pytest.mark.parametrize("seed", range(4))
@torch.no_grad()
def test_it_is_above_the_exact_loss_of_affine_networks(seed: int) -> None:
    """The loss of an affine network is convex, so its maximum is at a vertex. Narrow boxes: the bound is tight."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 3)).double()
    x, y = torch.rand(4, 6).double(), torch.randint(0, 3, (4,))
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=6))).double()
    for eps, tight in ((1.0, 1.0), (0.1, 0.02), (0.01, 2e-4)):
        box = Box(center=x, radius=eps)
        exact = worst_of(net, x + eps * signs[:, None], y)
        loss = fused_loss(crown_ibp(net, box), y)
        assert (loss >= exact - 1e-12).all()
        assert (loss <= exact + tight).all()


@torch.no_grad()
def test_two_classes_with_one_affine_layer_are_exact() -> None:
    """There is one margin, whose intervals are exact, and the largest loss is at the end of a chord."""
    torch.manual_seed(0)
    net = nn.Linear(5, 2).double()
    x, y = torch.rand(3, 5).double(), torch.tensor([0, 1, 1])
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=5))).double()
    exact = worst_of(net, x + 0.3 * signs[:, None], y)
    torch.testing.assert_close(fused_loss(crown_ibp(net, Box(center=x, radius=0.3)), y), exact)


@problems
@torch.no_grad()
def test_an_image_alone_has_the_same_loss(spec: str, seed: int, eps: float, size: float) -> None:
    net, x, y = sized(spec, seed, size)
    whole = fused_loss(crown_ibp(net, Box.ball(x, eps)), y)
    for i in (0, 3):
        alone = fused_loss(crown_ibp(net, Box.ball(x[i : i + 1], eps)), y[i : i + 1])
        torch.testing.assert_close(alone, whole[i : i + 1])


@pytest.mark.parametrize("factor", [1e-4, 1.0, 30.0, 1e4, 1e9])
@pytest.mark.parametrize("eps", [1e-6, 0.01, 0.4])
def test_large_logits_do_not_overflow(factor: float, eps: float) -> None:
    """In float32, where exp overflows at 89. The logits are up to about 1e9, and the intervals as wide."""
    net, x, y = problem("FC 8, FC 6", 2)
    net, x = net.float(), x.float()
    with torch.no_grad():
        net[-1].weight.mul_(factor)
    bounds = crown_ibp(net, Box.ball(x, eps))
    loss = fused_loss(bounds, y)
    at_center = F.cross_entropy(net(x), y, reduction="none")
    assert loss.isfinite().all()
    assert (loss >= at_center - 1e-5 * (1 + factor)).all()
    by_intervals = interval_loss(bounds, y)
    assert (loss <= by_intervals + 1e-5 * (1 + by_intervals)).all()
    assert all(g.isfinite().all() for g in torch.autograd.grad(loss.mean(), list(net.parameters())))


@torch.no_grad()
def test_overflow_gives_no_small_loss() -> None:
    """Bounds that are NaN or infinite must not become a finite loss below that at the center."""
    torch.manual_seed(0)
    for factor in (1e10, 1e13, 1e20, 1e25):
        net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        for p in net.parameters():
            p.mul_(factor)
        x = torch.rand(8, 2)
        y = net.double()(x.double()).argmin(1)  # every image is misclassified
        loss = fused_loss(crown_ibp(net.float(), Box.ball(x, 0.3)), y)
        at_center = F.cross_entropy(net.double()(x.double()), y, reduction="none")
        assert not (loss.double() < at_center * (1 - 1e-5)).any()


@pytest.mark.parametrize("spec", ["FC 8, FC 6", "Conv 2 3x3+1, Conv 3 2x2+2"])
@pytest.mark.parametrize(("eps", "beta"), [(0.0, 1.0), (1e-4, 1.0), (0.05, 1.0), (0.05, 0.4), (0.3, 1.0)])
def test_gradients_equal_finite_differences(spec: str, eps: float, beta: float) -> None:
    """Also through the slopes of the chords, which depend on the weights."""
    net, x, y = sized(spec, 3, 0.5)
    with torch.no_grad():
        for p in net.parameters():  # off the kinks of ReLU
            p.add_(0.02 * torch.randn(p.shape, generator=torch.Generator().manual_seed(1), dtype=p.dtype))
    params = list(net.parameters())
    box = Box.ball(x[:3], eps)

    def value() -> Tensor:
        return fused_loss(crown_ibp(net, box), y[:3], beta).mean()

    gradients = torch.autograd.grad(value(), params)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        steps = [torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                for p, step in zip(params, steps, strict=True):
                    p.add_(step, alpha=sign * 1e-6)
                ends.append(value())
                for p, step in zip(params, steps, strict=True):
                    p.sub_(step, alpha=sign * 1e-6)
        slope = sum((g * s).sum() for g, s in zip(gradients, steps, strict=True))
        torch.testing.assert_close(slope, (ends[0] - ends[1]) / 2e-6, rtol=1e-4, atol=1e-6)


@given(st.floats(0, 200))
@example(0.0)
@example(1e-2)
def test_the_slope_of_a_chord(width: float) -> None:
    """It is continuous, not above the exact slope, and has the right derivative."""
    w = torch.tensor(width, dtype=torch.float64, requires_grad=True)
    slope = _relative_slope(w)
    exact = 1.0 if width < 1e-12 else -float(torch.expm1(-w.detach())) / width
    assert exact - 1e-9 <= float(slope.detach()) <= exact + 1e-15
    (found,) = torch.autograd.grad(slope, w)
    # The derivative is the negative mean of t exp(-t w) over t in [0, 1].
    t = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    assert abs(float(found) + float((t * torch.exp(-t * width)).mean())) < 1e-6


def test_the_objective_uses_it_if_the_recipe_says_so() -> None:
    net, x, y = problem("FC 8, FC 6", 4)
    ball, bounds = Ball(x, 0.1), crown_ibp(net, Box.ball(x, 0.1))
    fused = objectives.crown_ibp(net, ball, y, FUSED).loss
    assert fused == fused_loss(bounds, y).mean()
    unfused = objectives.crown_ibp(net, ball, y, Context(ramped=0.0, settings=Settings(loss_fusion=False))).loss
    assert unfused == objectives.margin_loss(bounds.margins(y), y)
    half = objectives.crown_ibp(net, ball, y, Context(ramped=0.5, settings=Settings(loss_fusion=True))).loss
    assert half == fused_loss(bounds, y, 0.5).mean()
    by_ibp = objectives.crown_ibp(net, ball, y, Context(settings=Settings(loss_fusion=True))).loss
    assert by_ibp == objectives.ibp(net, ball, y).loss
    assert Settings.of(Recipe.load(method="crown-ibp", loss_fusion=True)).loss_fusion
    cost = objectives.cost_of
    assert cost(objectives.crown_ibp, FUSED, 10) == cost(objectives.crown_ibp, FUSED, 100)


def test_labels_of_any_integer_type_and_only_boxes() -> None:
    net, x, y = problem("FC 5", 0)
    bounds = crown_ibp(net, Box.ball(x, 0.1))
    assert torch.equal(fused_loss(bounds, y.to(torch.uint8)), fused_loss(bounds, y))
    with pytest.raises(UserError, match="labels must be from 0 to 3"):
        fused_loss(bounds, y + 4)
    rounded = LinearBounds(net, Rounded.ball(x, 0.1))
    with pytest.raises(UserError, match="Box"):
        fused_loss(rounded, y)
