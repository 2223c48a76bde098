"""The problems' constants are what they are said to be, and the bounds hold where that is claimed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from advibp.reproduce.bias import RULES, measure, weigh
from advibp.reproduce.convergence import Agreement, Conflict
from advibp.weighting import compute_weights

PROBLEM, CLASH = Agreement(), Conflict()


def points(columns: int, count: int = 200, scale: float = 6.0) -> Tensor:
    random = torch.Generator().manual_seed(0)
    return scale * torch.randn(count, columns, generator=random, dtype=torch.float64)


def slope(loss: Tensor, theta: Tensor) -> Tensor:
    return torch.autograd.grad(loss.sum(), theta)[0]


def test_gradients_are_those_of_the_losses() -> None:
    theta = points(PROBLEM.d).requires_grad_()
    assert torch.allclose(PROBLEM.gradient(theta), slope(PROBLEM.loss(theta), theta))
    u = PROBLEM.b * theta
    abstract = ((theta - PROBLEM.center) ** 2 / 2 + u**2 / (2 * PROBLEM.mu) + PROBLEM.mu * PROBLEM.eps**2 / 2).sum(1)
    assert torch.allclose(PROBLEM.abstract_gradient(theta), slope(abstract, theta))
    assert bool((abstract >= PROBLEM.loss(theta)).all())  # it is an upper bound
    theta = points(1 + CLASH.d).requires_grad_()
    assert torch.allclose(CLASH.gradient(theta), slope(CLASH.loss(theta), theta))


def test_the_robust_loss_is_the_largest_over_perturbations() -> None:
    theta = points(PROBLEM.d, 20)
    xi = (2 * torch.rand(500, 1, PROBLEM.d, dtype=torch.float64) - 1) * PROBLEM.eps
    each = (theta - PROBLEM.center) ** 2 / 2 + PROBLEM.b * theta * xi - PROBLEM.mu * xi**2 / 2
    assert bool((each.sum(2).amax(0) <= PROBLEM.loss(theta) + 1e-9).all())
    best = PROBLEM.perturbation(theta)
    assert float(PROBLEM.fosc(theta, best).max()) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("problem", [PROBLEM, CLASH])
def test_the_lipschitz_constant_holds_and_is_reached(problem: Agreement | Conflict) -> None:
    columns = problem.d if isinstance(problem, Agreement) else 1 + problem.d
    a, b = points(columns).split(100)
    stretch = (problem.gradient(a) - problem.gradient(b)).norm(dim=1) / (a - b).norm(dim=1)
    assert float(stretch.max()) <= problem.L + 1e-9
    close = 0.1 * points(columns, 2)
    close[:, 0] = 0 if isinstance(problem, Conflict) else close[:, 0]
    one, two = problem.gradient(close)
    assert float((one - two).norm() / (close[0] - close[1]).norm()) == pytest.approx(problem.L)


def test_a_weak_attack_is_as_weak_as_it_says_and_no_weaker() -> None:
    problem, theta = Agreement(delta=0.5), points(PROBLEM.d)
    xi = problem.perturbation(theta)
    assert float(problem.fosc(theta, xi).max()) <= 0.5
    assert float(problem.fosc(theta, xi).mean()) > 0.4
    away = (problem.b * (xi - PROBLEM.perturbation(theta))).norm(dim=1)
    assert float(away.max()) <= problem.b * math.sqrt(problem.delta / problem.mu)  # the paper's lemma


def test_theorem_1_holds_where_it_is_proved_and_falls_with_t() -> None:
    measured = []
    for steps in (40, 200, 800):
        path = PROBLEM.run(steps, repetitions=10)
        assert path.premise == pytest.approx(1)
        assert path.average <= PROBLEM.proved(steps)
        if steps >= PROBLEM.least_steps():
            assert PROBLEM.bound(steps) == pytest.approx(PROBLEM.proved(steps))
        measured.append(path.average)
    assert measured == sorted(measured, reverse=True)
    assert PROBLEM.run(200, repetitions=10, moments=True).average <= PROBLEM.bound(200)
    weak = Agreement(delta=0.5)
    assert weak.run(40, repetitions=10).average <= weak.proved(40)


def test_theorem_1_as_printed_fails_where_we_say_so() -> None:
    quiet = Agreement(sigma=0.5)
    found = quiet.run(10, repetitions=10).average
    assert quiet.least_steps() > 10
    assert quiet.bound(10) < found <= quiet.proved(10)
    noisy = Agreement(sigma=1.0, abstract_noise=30.0)
    assert noisy.run(200, repetitions=10).average > max(noisy.bound(200), noisy.proved(200))


def test_theorem_2_is_vacuous_as_printed_and_holds_with_a_mean() -> None:
    bounds, measured = [], []
    for steps in (10, 40, 160):
        path = CLASH.run(steps, repetitions=10)
        assert path.premise == pytest.approx(1)
        assert float(path.losses.min()) > 1 / 2  # what the theorem asks
        assert path.average <= CLASH.with_a_mean(path) < CLASH.bound(path)
        bounds.append(CLASH.bound(path))
        measured.append(path.average)
    assert bounds == sorted(bounds)  # it grows with T
    assert measured == sorted(measured, reverse=True)
    far = Conflict(start=1.0).run(5, repetitions=10)
    assert far.average > 2  # the last line of the proof
    assert float(far.losses[-1]) > 1e6 * float(far.losses[0])


def test_conflict_is_everywhere() -> None:
    theta = points(1 + CLASH.d)
    assert bool(((CLASH.gradient(theta) * CLASH.robust_gradient(theta)).sum(1) <= 0).all())
    floor = CLASH.loss(theta) - CLASH.loss(theta).min()
    assert CLASH.Delta == pytest.approx(float(CLASH.loss(CLASH.first)) - CLASH._floor)
    assert bool((floor >= 0).all())
    assert bool((CLASH.loss(theta) >= CLASH._floor).all())


@pytest.mark.parametrize("strong", [True, False])
def test_weights_of_many_chains_are_algorithm_1s(strong: bool) -> None:
    random = torch.Generator().manual_seed(1)
    m = torch.randn(50, 2, 3, generator=random, dtype=torch.float64)
    v = 0.5 + torch.rand(50, 2, generator=random, dtype=torch.float64)
    for row, (adv, ibp), (one, two) in zip(weigh(m, v, strong=strong), m, v.tolist(), strict=True):
        numbers = float(adv @ ibp), float(adv @ adv), float(ibp @ ibp), one, two
        assert row.tolist() == pytest.approx(list(compute_weights(*numbers, strong=strong)[:3]))


def test_only_weights_from_the_past_are_unbiased() -> None:
    for k, rule in enumerate(RULES):
        found = measure(rule, chains=2000, steps=16, seed=k)
        if rule.from_past and not rule.regularizer:
            assert found.p > 1e-4
            assert found.share < 0.01
        else:
            assert found.p < 1e-6
            assert found.share > 0.01
