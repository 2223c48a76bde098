"""L(x) and L_adv lie below the robust loss, L_IBP above it, and all meet where eps is 0."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from loss_problems import problem

from advibp import Box, Method, Recipe, objectives
from advibp.objectives import Ball, Settings

SPECS = ("FC 5", "FC 8, FC 6", "Conv 3 2x2+1, FC 6", "Conv 2 3x3+1, Conv 3 2x2+2")
torch.set_num_threads(1)


def problems(test: Callable[..., None]) -> Callable[..., None]:
    """Random networks, images and radii; few, for the machine is shared. Radii are 0 or more than a rounding error:
    the slope of a chord has no finite derivative over a range that is as short."""
    radii = st.just(0.0) | st.floats(1e-9, 0.6)
    drawn = given(spec=st.sampled_from(SPECS), seed=st.integers(0, 10_000), eps=radii)
    return settings(max_examples=25)(drawn(test))


@problems
def test_every_member_of_the_set_has_a_loss_below_the_abstract_one(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    torch.manual_seed(seed)
    regular, adversarial, abstract = (
        objective(net, Ball(x, eps), y).loss.item()
        for objective in (objectives.regular, objectives.adversarial, objectives.ibp)
    )
    anyone = F.cross_entropy(net((x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)), y).item()
    for below in (regular, adversarial, anyone):
        assert below <= abstract + 1e-9 * max(1.0, abstract)


@problems
def test_all_losses_agree_at_eps_zero(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    want = objectives.regular(net, Ball(x, 0.0), y).loss
    for objective in (objectives.adversarial, objectives.ibp):
        torch.testing.assert_close(objective(net, Ball(x, 0.0), y).loss, want, rtol=1e-10, atol=1e-10)


@problems
def test_the_abstract_loss_grows_with_eps(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    smaller, larger = (objectives.ibp(net, Ball(x, e), y).loss.item() for e in (eps / 2, eps))
    assert smaller <= larger + 1e-9 * max(1.0, larger)


@problems
def test_the_adversarial_point_lies_in_the_set_and_asks_for_its_gradient(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    loss, point = objectives.adversarial(net, Ball(x, eps), y, context=objectives.Context(wants_fosc=True))
    assert point is not None
    assert point.is_leaf
    assert point.requires_grad
    assert point.min() >= 0
    assert point.max() <= 1
    assert (point - x).abs().max() <= eps + 1e-12
    torch.testing.assert_close(loss, F.cross_entropy(net(point), y), rtol=0, atol=0)
    at_point, *at_weights = torch.autograd.grad(loss, [point, *net.parameters()])
    assert at_point.shape == x.shape
    assert all(g.isfinite().all() for g in at_weights)


@pytest.mark.parametrize("objective", [objectives.regular, objectives.ibp])
def test_only_an_attack_has_a_point(objective: objectives.Objective) -> None:
    net, x, y = problem("FC 5", 0)
    assert objective(net, Ball(x, 0.1), y, objectives.Context(wants_fosc=True)).point is None


@problems
def test_the_adversarial_loss_does_not_depend_on_what_else_is_wanted(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    losses = []
    for wants_fosc in (False, True):
        torch.manual_seed(seed)
        losses.append(
            objectives.adversarial(net, Ball(x, eps), y, context=objectives.Context(wants_fosc=wants_fosc)).loss
        )
    assert losses[0] == losses[1]
    for g, h in zip(*(torch.autograd.grad(loss, list(net.parameters())) for loss in losses), strict=True):
        torch.testing.assert_close(g, h, rtol=1e-12, atol=1e-12)


@problems
def test_crown_ibp_becomes_ibp_as_eps_is_ramped_up(spec: str, seed: int, eps: float) -> None:
    """Values and gradients; on the way it is an upper bound, too."""
    net, x, y = problem(spec, seed)
    params = list(net.parameters())
    losses = [objectives.ibp(net, Ball(x, eps), y).loss, objectives.crown_ibp(net, Ball(x, eps), y).loss]
    assert losses[0] == losses[1]
    for g, h in zip(*(torch.autograd.grad(loss, params) for loss in losses), strict=True):
        assert torch.equal(g, h)
    generator = torch.Generator().manual_seed(seed)
    shifts = eps * (2 * torch.rand(50, *x.shape, generator=generator, dtype=x.dtype) - 1)
    worst = torch.stack([F.cross_entropy(net((x + s).clamp(0, 1)), y, reduction="none") for s in shifts]).amax(0)
    for ramped in (0.0, 0.5, 0.9):
        loss = objectives.crown_ibp(net, Ball(x, eps), y, context=objectives.Context(ramped=ramped)).loss
        assert loss >= worst.mean() - 1e-9
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, params))


def test_objectives_leave_no_gradient_behind() -> None:
    net, x, y = problem("FC 5", 1)
    for objective in (objectives.regular, objectives.adversarial, objectives.ibp):
        objective(net, Ball(x, 0.1), y)
    assert all(p.grad is None for p in net.parameters())


@given(seed=st.integers(0, 10_000), shift=st.floats(-50, 50))
def test_margin_loss_of_exact_margins_is_the_cross_entropy(seed: int, shift: float) -> None:
    """CE(-(z_y - z_k), y) = CE(z, y), since cross-entropy does not see a common shift; larger margins lose less."""
    generator = torch.Generator().manual_seed(seed)
    logits = 5 * torch.randn(7, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 4, (7,), generator=generator)
    margins = logits.gather(1, y[:, None]) - logits
    want = F.cross_entropy(logits + shift, y)
    torch.testing.assert_close(objectives.margin_loss(margins, y), want, rtol=1e-9, atol=1e-9)
    larger = margins + torch.rand(7, 4, generator=generator).scatter(1, y[:, None], 0.0)
    assert objectives.margin_loss(larger, y) <= want + 1e-9


def test_the_abstract_loss_is_the_margin_loss_of_the_box() -> None:
    net, x, y = problem("Conv 3 2x2+1, FC 6", 3)
    margins = net(Box.ball(x, 0.2)).lower_margins(y)
    assert margins.gather(1, y[:, None]).abs().max() == 0
    assert objectives.ibp(net, Ball(x, 0.2), y).loss == objectives.margin_loss(margins, y)


@problems
def test_diffai_by_boxes_is_ibp_and_so_is_a_zonotope_without_symbols(spec: str, seed: int, eps: float) -> None:
    """Values and gradients; without biases that keep bounds from a ReLU's kink it would have two."""
    net, x, y = problem(spec, seed)
    params = list(net.parameters())
    with torch.no_grad():
        for p in params:
            p.add_(0.01 * torch.randn(p.shape, dtype=p.dtype, generator=torch.Generator().manual_seed(seed)))
    want = objectives.ibp(net, Ball(x, eps), y).loss
    wanted = torch.autograd.grad(want, params, retain_graph=True)
    for settings_of_it in (Settings(domain="box"), Settings(domain="hybrid", symbols=0)):
        loss = objectives.abstract(net, Ball(x, eps), y, context=objectives.Context(settings=settings_of_it)).loss
        torch.testing.assert_close(loss, want, rtol=1e-9, atol=1e-9)
        for g, h in zip(torch.autograd.grad(loss, params), wanted, strict=True):
            torch.testing.assert_close(g, h, rtol=1e-7, atol=1e-7)


@problems
def test_the_abstract_loss_of_every_domain_is_an_upper_bound(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    generator = torch.Generator().manual_seed(seed)
    shifts = eps * (2 * torch.rand(50, *x.shape, generator=generator, dtype=x.dtype) - 1).sign()
    worst = torch.stack([F.cross_entropy(net((x + s).clamp(0, 1)), y, reduction="none") for s in shifts]).amax(0)
    for chosen in (Settings(domain="hybrid", symbols=5), Settings(domain="deepz")):
        loss = objectives.abstract(net, Ball(x, eps), y, context=objectives.Context(settings=chosen)).loss
        assert loss >= worst.mean() - 1e-9
        assert all(g.isfinite().all() for g in torch.autograd.grad(loss, list(net.parameters())))


@problems
def test_a_little_of_crown_ibp_is_nearly_ibp(spec: str, seed: int, eps: float) -> None:
    """The mix itself, and not the way around it at its end; a share that is left after the ramp stays."""
    net, x, y = problem(spec, seed)
    params = list(net.parameters())
    want = objectives.ibp(net, Ball(x, eps), y).loss
    for now in (objectives.Context(ramped=1 - 1e-9), objectives.Context(settings=Settings(beta=1e-9))):
        loss = objectives.crown_ibp(net, Ball(x, eps), y, context=now).loss
        torch.testing.assert_close(loss, want, rtol=1e-5, atol=1e-5)
        for g, h in zip(
            torch.autograd.grad(loss, params), torch.autograd.grad(want, params, retain_graph=True), strict=True
        ):
            torch.testing.assert_close(g, h, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("ramped", "beta", "share"), [(0, 0, 1), (0.5, 0, 0.5), (1, 0, 0), (1, 0.25, 0.25), (0.5, 1, 1)]
)
def test_the_share_of_crown_ibp(ramped: float, beta: float, share: float) -> None:
    assert objectives.Context(ramped=ramped, settings=Settings(beta=beta)).beta == share


@problems
def test_every_attack_stays_in_the_set(spec: str, seed: int, eps: float) -> None:
    net, x, y = problem(spec, seed)
    now = objectives.Context(wants_fosc=True, settings=Settings(attack_steps=3))
    for objective in (objectives.fgsm, objectives.adversarial, objectives.pgd):
        loss, point = objective(net, Ball(x, eps), y, context=now)
        assert point is not None
        assert (point - x).abs().max() <= eps + 1e-12
        assert 0 <= point.min() <= point.max() <= 1
        torch.testing.assert_close(loss, F.cross_entropy(net(point), y))


def test_costs_are_told_and_grow_with_what_is_asked() -> None:
    cost, now = objectives.cost_of, objectives.Context
    assert cost(None) == 0
    assert cost(objectives.regular) < cost(objectives.adversarial) < cost(objectives.pgd)
    assert cost(objectives.pgd, now(settings=Settings(attack_steps=1))) == cost(objectives.adversarial)
    assert cost(objectives.crown_ibp) == cost(objectives.ibp) < cost(objectives.crown_ibp, now(ramped=0.5))
    assert cost(objectives.crown_ibp, now(ramped=0.5), 2) < cost(objectives.crown_ibp, now(ramped=0.5), 20)
    assert cost(lambda *args: None) == 3  # type: ignore[arg-type,return-value]


def test_the_signature_of_release_0_1_works_and_warns() -> None:
    net, x, y = problem("FC 5", 0)
    expected = objectives.ibp(net, Ball(x, 0.1, None), y).loss
    with pytest.warns(DeprecationWarning, match="Ball"):
        assert objectives.ibp(net, x, y, 0.1, within=None).loss == expected  # type: ignore[call-arg, arg-type]
    with pytest.warns(DeprecationWarning, match="Ball"):
        assert objectives.ibp(net, x, y, eps=0.1, within=None).loss == expected  # type: ignore[call-arg, arg-type]

    def user_objective(net, x, y, eps, within=(0.0, 1.0), now=None):  # type: ignore[no-untyped-def]
        assert now.ramped == 0.25
        return objectives.ibp(net, Ball(x, eps, within), y)

    with pytest.warns(DeprecationWarning, match="user_objective is defined"):
        method = Method(description="old", upper=user_objective)
    assert method.upper is not None
    assert method.upper(net, Ball(x, 0.1, None), y, objectives.Context(ramped=0.25)).loss == expected
    with pytest.warns(DeprecationWarning, match="objectives.Context"):
        assert objectives.Now is objectives.Context


def test_settings_are_read_from_a_recipe() -> None:
    recipe = Recipe(method="mip", attack_steps=3, regularizer=0.25)
    assert Settings.of(recipe) == Settings(attack_steps=3, regularizer=0.25)
    assert Settings.of(Recipe()) == Settings()
