"""What is added to a loss: by hand on small layers, where it is least, and that it is differentiable."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_problems import problem
from torch import nn

from advibp import Box, objectives
from advibp.bounds.graph.pre_activations import record_pre_activations
from advibp.objectives import Ball, Context, Settings
from advibp.objectives.regularizers import area, balance, instability, latent_pgd, shi_ibp, stable_pgd, tightness

torch.set_num_threads(1)
WEIGHED = Settings(regularizer=0.5, attack_steps=2)


def box(lower: list[float], upper: list[float]) -> Box:
    return Box.from_bounds(torch.tensor([lower], dtype=torch.float64), torch.tensor([upper], dtype=torch.float64))


def test_tightness_is_0_where_widths_stay_and_1_where_they_explode() -> None:
    narrow, wide = box([0.0, 0.0], [1.0, 1.0]), box([-1e9, 0.0], [1e9, 1.0])
    assert tightness(narrow, [narrow]) == 0
    assert tightness(narrow, [box([0.0, 0.0], [2.0, 2.0])]) == 0  # twice as wide: the tolerance
    assert tightness(narrow, [box([0.0, 0.0], [4.0, 4.0])]).item() == pytest.approx(0.5)
    assert tightness(narrow, [wide]).item() == pytest.approx(1, abs=1e-6)


def test_balance_is_0_where_both_kinds_are_alike() -> None:
    even = box([1.0, -3.0], [3.0, -1.0])
    odd = box([99.0, -1.5], [101.0, -0.5])
    assert balance([even]) == 0
    assert 0 < balance([odd]).item() <= 2
    assert balance([box([-1.0, -1.0], [1.0, 1.0])]) == 0  # nobody is sure, and nothing can be balanced


def test_instability_is_least_where_no_relu_can_switch() -> None:
    stable, unstable = box([5.0, -9.0], [9.0, -5.0]), box([-5.0, -5.0], [5.0, 5.0])
    assert instability([stable]).item() == pytest.approx(-2, abs=1e-9)
    assert instability([unstable]).item() == pytest.approx(2, abs=1e-9)
    assert instability([stable, unstable]).item() == pytest.approx(0, abs=1e-9)


def test_area_counts_crossing_neurons_alone() -> None:
    lower, upper = torch.tensor([[-1.0, 1.0, -3.0]]), torch.tensor([[2.0, 3.0, -1.0]])
    assert area(lower, upper) == 2
    assert area(lower.repeat(4, 1), upper.repeat(4, 1)) == 2  # a mean over the images


@settings(max_examples=10)
@given(st.integers(0, 1000), st.sampled_from(["FC 5", "Conv 3 2x2+1, FC 6"]))
def test_a_term_is_added_to_the_loss_it_belongs_to(seed: int, spec: str) -> None:
    net, x, y = problem(spec, seed)
    eps = 0.05
    early = Context(ramped=0.2, settings=WEIGHED)
    with record_pre_activations() as entering:
        net(Box.ball(x, eps))
    shi = shi_ibp(net, Ball(x, eps), y, context=early).loss
    term = 0.5 * 0.8 * (tightness(Box.ball(x, eps), entering) + balance(entering))
    torch.testing.assert_close(shi, objectives.ibp(net, Ball(x, eps), y).loss + term)
    assert (
        shi_ibp(net, Ball(x, eps), y, context=Context(settings=WEIGHED)).loss
        == objectives.ibp(net, Ball(x, eps), y).loss
    )  # it faded
    for objective, added in (
        (stable_pgd, instability(entering)),
        (latent_pgd, area(entering[0].lower, entering[0].upper)),
    ):
        torch.manual_seed(seed)
        plain = objectives.pgd(net, Ball(x, eps), y, context=early).loss
        torch.manual_seed(seed)
        loss = objective(net, Ball(x, eps), y, context=early).loss
        torch.testing.assert_close(loss, plain + 0.5 * added)
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(net.parameters())))


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_gradients_of_the_terms(seed: int) -> None:
    """By finite differences, in a layer's bounds."""
    generator = torch.Generator().manual_seed(seed)
    center = torch.randn(2, 6, generator=generator, dtype=torch.float64).mul_(2).requires_grad_()
    radius = torch.rand(2, 6, generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()
    given = Box(center=torch.zeros(2, 6, dtype=torch.float64), radius=0.1)
    for term in (
        lambda c, r: tightness(given, [Box(center=c, radius=r)]),
        lambda c, r: balance([Box(center=c, radius=r)]),
        lambda c, r: instability([Box(center=c, radius=r)]),
        lambda c, r: area(c - r, c + r),
    ):
        assert torch.autograd.gradcheck(term, (center, radius))


def test_networks_without_a_relu_have_no_term() -> None:
    net, x, y = nn.Sequential(nn.Flatten(), nn.Linear(25, 4)).double(), *problem("FC 5", 0)[1:]
    for objective in (shi_ibp, stable_pgd, latent_pgd):
        assert objective(net, Ball(x, 0.1), y, context=Context(ramped=0.0, settings=WEIGHED)).loss.isfinite()
