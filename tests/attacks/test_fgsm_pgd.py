"""FGSM, PGD and FOSC: inside the set, as strong as theory allows, and without a trace on the network."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import pairwise, product

import pytest
import torch
from attack_problems import Spy, problem, wrong
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import attacks
from advibp.attacks import attack_loss, feasible, fosc, linf_fgsm, linf_fgsm_random, linf_pgd

seeds = st.integers(0, 2**32 - 1)
radii = st.one_of(st.just(0.0), st.floats(1e-3, 1.5))
ranges = st.sampled_from([(0.0, 1.0), None, (-0.5, 2.0)])

ATTACKS: dict[str, Callable[..., Tensor]] = {
    "fgsm": linf_fgsm,
    "fgsm_random": linf_fgsm_random,
    "pgd": lambda *args, **options: linf_pgd(*args, steps=4, rel_stepsize=0.4, **options).x_adv,
    "pgd_on": lambda *args, **options: linf_pgd(*args, steps=4, restarts=2, stop_on_success=False, **options).x_adv,
}


def losses(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    with torch.no_grad():
        return attack_loss(net(x), y, "ce")


def vertices(lower: Tensor, upper: Tensor) -> Tensor:
    """All corners (2^n, n) of one box."""
    return torch.stack([torch.where(torch.tensor(c), upper, lower) for c in product((False, True), repeat=len(lower))])


# ------------------------------------------------------------------------------------ the feasible set


@pytest.mark.parametrize("name", ATTACKS)
@given(seed=seeds, eps=radii, within=ranges)
def test_every_attack_stays_in_the_ball_and_the_range(
    name: str, seed: int, eps: float, within: tuple[float, float] | None
) -> None:
    net, x, y = problem(seed)
    x_adv = ATTACKS[name](net, x, y, eps, within=within)
    lower, upper = feasible(x, eps, within)
    assert bool(((lower <= x_adv) & (x_adv <= upper)).all())
    assert float((x_adv - x).abs().max()) <= eps + 1e-15
    if within is not None:
        assert within[0] <= float(x_adv.min())
        assert float(x_adv.max()) <= within[1]


@pytest.mark.parametrize("name", ATTACKS)
@given(seed=seeds)
def test_a_latent_box_is_a_tensor_of_radii_and_no_range(name: str, seed: int) -> None:
    net, _, y = problem(seed)
    center = 3 * torch.randn(6, 4, dtype=torch.float64)
    radius = torch.rand(6, 4, dtype=torch.float64)
    radius[:, 0] = 0  # a neuron that is known exactly
    x_adv = ATTACKS[name](net, center, y, radius, within=None)
    assert bool(((x_adv - center).abs() <= radius + 1e-15).all())
    assert torch.equal(x_adv[:, 0], center[:, 0])


@given(seeds, radii)
def test_the_clean_image_is_feasible(seed: int, eps: float) -> None:
    _, x, _ = problem(seed)
    lower, upper = feasible(x, eps)
    assert bool(((lower <= x) & (x <= upper)).all())


# ------------------------------------------------------------------------------------ FGSM


@given(seeds, st.floats(1e-3, 1.0), ranges)
def test_fgsm_on_a_linear_model_is_the_worst_vertex(seed: int, eps: float, within: tuple[float, float] | None) -> None:
    """Two classes: the loss rises with one linear function, so no vertex of the set beats one signed step."""
    net, x, y = problem(seed, classes=2, linear=True)
    found = losses(net, linf_fgsm(net, x, y, eps, within=within), y)
    for i, (lower, upper) in enumerate(zip(*feasible(x, eps, within), strict=True)):
        corners = vertices(lower, upper)
        worst = losses(net, corners, y[i].expand(len(corners))).max()
        torch.testing.assert_close(found[i], worst)


@given(seeds, st.floats(0.1, 2.0))
def test_fgsm_steps_as_far_as_it_is_told(seed: int, step: float) -> None:
    net, x, y = problem(seed, linear=True)
    moved = (linf_fgsm(net, x, y, 0.1, rel_stepsize=step, within=None) - x).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.1 * min(step, 1.0)))


def test_random_start_and_a_step_of_five_quarters() -> None:
    """From U(-eps, eps) a step of 1.25 eps ends between 0.25 eps and eps on the side of the gradient; it reaches the
    end of the ball when the start was above -0.25 eps: with probability 5/8."""
    torch.manual_seed(0)
    net, n, eps = nn.Linear(4, 2).double(), 5000, 0.1
    x, y = torch.rand(n, 4, dtype=torch.float64), torch.zeros(n, dtype=torch.long)
    uphill = (net.weight[1] - net.weight[0]).detach().sign()
    moved = (linf_fgsm_random(net, x, y, eps, within=None) - x) * uphill / eps
    assert float(moved.min()) >= 0.25
    for ends in moved.T:  # each coordinate, whichever way its gradient points
        assert float((ends > 1 - 1e-9).double().mean()) == pytest.approx(5 / 8, abs=5 * math.sqrt(15 / 64 / n))
        inside = ends[ends < 1 - 1e-9]  # uniform on [0.25, 1)
        assert float(inside.mean()) == pytest.approx(0.625, abs=5 * 0.75 / math.sqrt(12 * len(inside)))


# ------------------------------------------------------------------------------------ PGD


@given(seeds, st.floats(0.01, 0.5), st.booleans(), st.booleans())
def test_pgd_is_never_worse_than_its_start(seed: int, eps: float, random_start: bool, stop: bool) -> None:
    net, x, y = problem(seed)
    spy = Spy(net)
    found = linf_pgd(spy, x, y, eps, steps=5, random_start=random_start, stop_on_success=stop)
    start = spy.seen[0]
    assert random_start or torch.equal(start, x)
    at_start = wrong(net, start, y)
    assert not bool((at_start & ~found.broken).any())
    # A misclassified point beats a correctly classified one, whatever their losses.
    comparable = at_start == found.broken
    assert bool((losses(net, found.x_adv, y) >= losses(net, start, y) - 1e-12)[comparable].all())


@given(seeds, st.floats(0.01, 0.5), st.booleans(), st.sampled_from(["ce", "margin"]), st.integers(1, 3))
def test_broken_is_to_return_a_misclassified_point(
    seed: int, eps: float, stop: bool, loss: attacks.LossName, restarts: int
) -> None:
    net, x, y = problem(seed)
    found = linf_pgd(net, x, y, eps, steps=5, rel_stepsize=0.4, stop_on_success=stop, loss=loss, restarts=restarts)
    assert torch.equal(found.broken, wrong(net, found.x_adv, y) if restarts else torch.zeros(len(x), dtype=torch.bool))


@given(seeds, st.floats(0.05, 0.5))
def test_the_best_of_all_iterates_is_returned(seed: int, eps: float) -> None:
    net, x, y = problem(seed)
    spy = Spy(net)
    found = linf_pgd(spy, x, y, eps, steps=6, rel_stepsize=0.5, restarts=2, stop_on_success=False)
    seen = torch.stack(spy.seen)
    values, hits = torch.stack([losses(net, s, y) for s in seen]), torch.stack([wrong(net, s, y) for s in seen])
    assert len(seen) == 2 * 7  # one look per step, and one at the last iterate
    assert torch.equal(found.broken, hits.any(0))
    among = torch.where(hits == hits.any(0), values, -torch.inf)
    torch.testing.assert_close(losses(net, found.x_adv, y), among.amax(0))


@given(seeds, st.floats(0.05, 0.5))
def test_broken_images_leave_the_batch(seed: int, eps: float) -> None:
    net, x, y = problem(seed)
    stopping, going = Spy(net), Spy(net)
    torch.manual_seed(seed)
    found = linf_pgd(stopping, x, y, eps, steps=8, rel_stepsize=0.3)
    torch.manual_seed(seed)
    searched = linf_pgd(going, x, y, eps, steps=8, rel_stepsize=0.3, stop_on_success=False)
    assert torch.equal(found.broken, searched.broken)
    # At each step those are left that no earlier iterate has broken.
    broken = torch.zeros(len(x), dtype=torch.bool)
    for k, iterates in enumerate(going.seen):
        shown = stopping.seen[k] if k < len(stopping.seen) else torch.empty(0, 4)
        assert len(shown) == int((~broken).sum())
        torch.testing.assert_close(shown.double(), iterates[~broken])
        broken |= wrong(net, iterates, y)
    # Those that never broke went the same way to the end.
    torch.testing.assert_close(found.x_adv[~found.broken], searched.x_adv[~found.broken])


@given(seeds, st.floats(0.01, 0.5), st.booleans())
def test_more_restarts_never_find_less(seed: int, eps: float, stop: bool) -> None:
    net, x, y = problem(seed)
    found = []
    for restarts in (1, 2, 4):
        torch.manual_seed(seed)  # the first restarts are then the same
        found.append(linf_pgd(net, x, y, eps, steps=3, restarts=restarts, stop_on_success=stop))
    for fewer, more in pairwise(found):
        assert not bool((fewer.broken & ~more.broken).any())
        same = fewer.broken == more.broken
        assert bool((losses(net, more.x_adv, y) >= losses(net, fewer.x_adv, y) - 1e-12)[same].all())


@pytest.mark.parametrize("loss", ["ce", "margin"])
@given(seed=seeds, eps=st.floats(0.01, 0.5), within=ranges)
def test_pgd_on_a_linear_model_ends_in_the_worst_vertex(
    loss: attacks.LossName, seed: int, eps: float, within: tuple[float, float] | None
) -> None:
    """Twenty steps of a tenth cross the ball from any start."""
    net, x, y = problem(seed, classes=2, linear=True)
    found = linf_pgd(net, x, y, eps, steps=21, loss=loss, stop_on_success=False, within=within)
    torch.testing.assert_close(losses(net, found.x_adv, y), losses(net, linf_fgsm(net, x, y, eps, within=within), y))


def test_a_misclassified_point_is_kept_though_its_loss_is_lower() -> None:
    """Three logits that nearly tie, the true one ahead, cost log 3; in the middle of the way two nearly tie, the true
    one behind, and cost log 2. The path climbs from x = 0 to x = 1."""

    def net(x: Tensor) -> Tensor:
        middle = (x > 0.3) & (x < 0.7)
        return torch.cat([0 * x, torch.where(middle, 0.01, -0.01) + 0.001 * x, torch.where(middle, -9.0, -0.01)], 1)

    x, y = torch.tensor([[0.0]]), torch.tensor([0])
    found = linf_pgd(net, x, y, 1.0, steps=5, rel_stepsize=0.2, random_start=False, stop_on_success=False)
    assert bool(found.broken)
    assert 0.3 < float(found.x_adv) < 0.7


@given(seeds)
def test_margin_loss_is_the_best_other_class(seed: int) -> None:
    torch.manual_seed(seed)
    logits, y = torch.randn(5, 4), torch.randint(4, (5,))
    for row, label, value in zip(logits.tolist(), y.tolist(), attack_loss(logits, y, "margin").tolist(), strict=True):
        assert value == pytest.approx(max(z for k, z in enumerate(row) if k != label) - row[label])
    torch.testing.assert_close(attack_loss(logits, y, "ce").mean(), nn.functional.cross_entropy(logits, y))


# ------------------------------------------------------------------------------------ no trace, no surprise


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_leave_network_images_and_graph_alone(name: str) -> None:
    net, x, y = problem(0)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    x_before = x.clone()
    loss = nn.functional.cross_entropy(net(x), y)
    expected = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
    x_adv = ATTACKS[name](net, x, y, 0.2)
    assert all(p.grad is None for p in net.parameters())
    assert not x_adv.requires_grad
    assert not x.requires_grad
    assert torch.equal(x, x_before)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert x_adv.data_ptr() != x.data_ptr()
    # The graph that was built before the attack still gives the same gradients.
    for g, e in zip(torch.autograd.grad(loss, list(net.parameters())), expected, strict=True):
        assert torch.equal(g, e)


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_climb_under_no_grad_too(name: str) -> None:
    net, x, y = problem(0)
    torch.manual_seed(1)
    expected = ATTACKS[name](net, x, y, 0.2)
    torch.manual_seed(1)
    with torch.no_grad():
        assert torch.equal(ATTACKS[name](net, x, y, 0.2), expected)


@pytest.mark.parametrize("name", ["fgsm_random", "pgd", "pgd_on"])
def test_the_global_seed_determines_an_attack(name: str) -> None:
    net, x, y = problem(0)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(ATTACKS[name](net, x, y, 0.2))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_without_a_random_start_no_randomness_is_used() -> None:
    net, x, y = problem(0)
    state = torch.random.get_rng_state()
    linf_fgsm(net, x, y, 0.1)
    linf_pgd(net, x, y, 0.1, steps=3, random_start=False)
    assert torch.equal(state, torch.random.get_rng_state())


# ------------------------------------------------------------------------------------ FOSC

grid = st.integers(-8, 8).map(lambda k: k / 8)
points = st.lists(grid, min_size=3, max_size=3).map(lambda c: torch.tensor(c, dtype=torch.float64))


@given(points, points, points, st.floats(0.01, 2))
def test_fosc_on_the_ball_is_the_papers_formula(x: Tensor, g: Tensor, at: Tensor, eps: float) -> None:
    x_adv = x + eps * at
    value = fosc(x_adv[None], g[None], *feasible(x[None], eps, None))
    torch.testing.assert_close(value, (eps * g.abs().sum() - (x_adv - x) @ g)[None])


@given(points, points, points, points)
def test_fosc_is_the_largest_gain_over_the_vertices(a: Tensor, b: Tensor, g: Tensor, share: Tensor) -> None:
    """A linear function on a box is largest at a corner: all eight are tried."""
    lower, upper = torch.minimum(a, b), torch.maximum(a, b)
    x_adv = lower + (upper - lower) * share.abs()
    value = fosc(x_adv[None], g[None], lower[None], upper[None])
    gains = (vertices(lower, upper) - x_adv) @ g
    torch.testing.assert_close(value[0], gains.max())
    assert float(value) >= 0
    # and nothing is left to gain where the maximum is
    best = vertices(lower, upper)[gains.argmax()]
    assert float(fosc(best[None], g[None], lower[None], upper[None])) == 0


@given(seeds, st.floats(0.01, 0.5))
def test_fosc_of_a_linear_model_vanishes_at_the_attack_and_counts_each_sample(seed: int, eps: float) -> None:
    net, x, y = problem(seed, classes=2, linear=True)
    x_adv = linf_fgsm(net, x, y, eps).requires_grad_()
    (g,) = torch.autograd.grad(attack_loss(net(x_adv), y, "ce").sum(), x_adv)
    assume(bool((g != 0).all()))
    value = fosc(x_adv.detach(), g, *feasible(x, eps))
    assert value.shape == (len(x),)
    assert torch.equal(value, torch.zeros_like(value))
    images = (len(x), 1, 2, 2)  # the shape of a sample plays no part
    lower, upper = feasible(x, eps)
    at_clean = fosc(x.reshape(images), g.reshape(images), lower.reshape(images), upper.reshape(images))
    torch.testing.assert_close(at_clean, torch.stack([(v - c) @ h for v, c, h in zip(x_adv, x, g, strict=True)]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.1, 8 / 255, 0.25, 1e-12, 1.0])
def test_the_inner_ball_lies_in_the_ball_of_real_numbers(eps: float, dtype: torch.dtype) -> None:
    """And its ends are the last numbers of their type inside."""
    x = torch.rand(200, dtype=dtype)
    x[:50] *= 1e-9
    lower, upper = attacks.inner_ball(x, eps)
    for value, low, high in zip(x.tolist(), lower.tolist(), upper.tolist(), strict=True):
        ends = max(Fraction(value) - Fraction(eps), Fraction(0)), min(Fraction(value) + Fraction(eps), Fraction(1))
        assert ends[0] <= Fraction(low) <= Fraction(high) <= ends[1]
        before, after = (torch.tensor(v, dtype=dtype).nextafter(torch.tensor(to, dtype=dtype)) for v, to in
                         ((low, -math.inf), (high, math.inf)))  # fmt: skip
        assert Fraction(before.item()) < ends[0]
        assert Fraction(after.item()) > ends[1]
