"""SABR: its box lies in the set, it is IBP with lambda 1, and the loss at the adversarial example with lambda 0."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loss_problems import gradients_of, problem

from advibp import Box, objectives
from advibp.bounds.shrinking import shrunk_relus
from advibp.objectives import Ball, Context, Settings, Shared
from advibp.objectives.sabr import small_box

torch.set_num_threads(1)
SPECS = ("FC 8, FC 6", "Conv 3 2x2+1, FC 6")


def context(share: float, **settings: float) -> Context:
    return Context(settings=Settings(sabr_lambda=share, attack_steps=3, **settings), shared=Shared())  # type: ignore[arg-type]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("eps", [0.0, 0.07, 0.4])
def test_lambda_one_is_ibp(spec: str, eps: float) -> None:
    net, x, y = problem(spec, 1)
    ours, theirs = (f(net, Ball(x, eps), y, context(1.0)).loss for f in (objectives.sabr, objectives.ibp))
    assert torch.equal(ours, theirs)
    for a, b in zip(gradients_of(ours, net), gradients_of(theirs, net), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("spec", SPECS)
def test_lambda_zero_is_the_loss_at_the_adversarial_example(spec: str) -> None:
    net, x, y = problem(spec, 2)
    now = context(0.0)
    ours = objectives.sabr(net, Ball(x, 0.1), y, now).loss
    assert now.shared is not None
    assert now.shared.x_adv is not None
    theirs = F.cross_entropy(net(now.shared.x_adv), y)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(gradients_of(ours, net), gradients_of(theirs, net), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.8, 1.0])
@pytest.mark.parametrize("eps", [0.05, 0.3, torch.linspace(0, 0.4, 25, dtype=torch.float64).view(1, 5, 5)])
def test_the_small_box_lies_in_the_set(share: float, eps: float | torch.Tensor) -> None:
    """Also where the set is cut at the range of pixels, and for a radius per feature."""
    net, x, y = problem("FC 6", 3)
    inputs = Ball(x, eps)
    box, (lower, upper) = small_box(net, inputs, y, context(share)), inputs.ends()
    assert bool((box.lower >= lower - 1e-12).all() and (box.upper <= upper + 1e-12).all())
    wanted = torch.minimum(torch.as_tensor(share * eps).expand_as(x), (upper - lower) / 2)
    torch.testing.assert_close(box.radius, wanted)


def test_the_loss_grows_with_lambda_around_one_point() -> None:
    """Nested boxes: the center of the smaller one is the projected center of the larger one."""
    net, x, y = problem("FC 8, FC 6", 4)
    shared = Shared(x_adv=x)
    losses = [
        float(
            objectives.sabr(net, Ball(x, 0.1, None), y, Context(settings=Settings(sabr_lambda=s), shared=shared)).loss
        )
        for s in (0.0, 0.2, 0.6, 1.0)
    ]
    assert losses == sorted(losses)


def test_the_attack_of_a_step_is_shared() -> None:
    net, x, y = problem("FC 8, FC 6", 5)
    now = context(0.5)
    objectives.attacked(net, Ball(x, 0.1), y, now)
    assert now.shared is not None
    first = now.shared.x_adv
    objectives.sabr(net, Ball(x, 0.1), y, now)
    assert now.shared.x_adv is first


def test_a_shared_attack_is_counted_once() -> None:
    lower, upper, now = objectives.attacked, objectives.sabr, context(0.5)
    assert objectives.joint_cost(lower, upper, now) == 3 + 2 * 3 + 6
    assert objectives.joint_cost(objectives.adversarial, upper, now) == 5 + 2 * 3 + 6


def test_more_restarts_attack_at_least_as_well() -> None:
    net, x, y = problem("Conv 3 2x2+1, FC 6", 6)
    torch.manual_seed(0)
    losses = []
    for restarts in (1, 8):
        torch.manual_seed(0)
        settings = Settings(attack_steps=2, attack_restarts=restarts)
        x_adv = objectives.adversarial_examples(net, Ball(x, 0.2), y, Context(settings=settings))
        assert bool(((x_adv - x).abs() <= 0.2 + 1e-12).all() and (x_adv >= 0).all() and (x_adv <= 1).all())
        losses.append(F.cross_entropy(net(x_adv), y, reduction="none"))
    assert bool((losses[1] >= losses[0] - 1e-12).all())


def test_shrinking_scales_unstable_relus_and_nothing_else() -> None:
    box = Box.from_bounds(torch.tensor([-1.0, 1.0, -3.0, 0.0]), torch.tensor([2.0, 3.0, -1.0, 2.0]))
    with shrunk_relus(0.5):
        for relu in (F.relu, torch.relu, lambda b: b.relu()):
            out = relu(box)
            assert out.upper.tolist() == [1.0, 3.0, 0.0, 2.0]
            assert out.lower.tolist() == [0.0, 1.0, 0.0, 0.0]
    assert F.relu(box).upper.tolist() == [2.0, 3.0, 0.0, 2.0]  # never outside of the context


def test_only_approximate_losses_are_shrunk() -> None:
    """The IBP loss stays a bound, whatever the settings are."""
    net, x, y = problem("FC 8, FC 6", 7)
    shrunk, plain = context(1.0, relu_shrink=0.5), context(1.0)
    assert torch.equal(*(objectives.ibp(net, Ball(x, 0.1), y, now).loss for now in (shrunk, plain)))
    assert objectives.sabr(net, Ball(x, 0.1), y, shrunk).loss < objectives.sabr(net, Ball(x, 0.1), y, plain).loss
