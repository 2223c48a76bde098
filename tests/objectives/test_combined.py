"""MTL-IBP, CC-IBP and EXP-IBP: their formulas, and that they are the adversarial and the IBP loss at their ends."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loss_problems import gradients_of, problem

from advibp import objectives
from advibp.objectives import Ball, Context, Objective, Settings, Shared

torch.set_num_threads(1)
ALL = (objectives.mtl_ibp, objectives.cc_ibp, objectives.exp_ibp)


def context(alpha: float, **settings: float) -> Context:
    return Context(settings=Settings(alpha=alpha, attack_steps=2, **settings), shared=Shared())  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ALL)
@pytest.mark.parametrize("spec", ["FC 8, FC 6", "Conv 3 2x2+1, FC 6"])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_the_ends_are_adversarial_training_and_ibp(objective: Objective, spec: str, alpha: float) -> None:
    net, x, y = problem(spec, 1)
    now = context(alpha)
    ours = objective(net, Ball(x, 0.1), y, now).loss
    assert now.shared is not None
    if alpha == 1:
        assert now.shared.x_adv is None  # no attack that has no weight
        theirs = objectives.ibp(net, Ball(x, 0.1), y).loss
    else:
        assert now.shared.x_adv is not None
        theirs = F.cross_entropy(net(now.shared.x_adv), y)
    torch.testing.assert_close(ours, theirs)
    for a, b in zip(gradients_of(ours, net), gradients_of(theirs, net), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("objective", ALL)
def test_the_ends_are_limits(objective: Objective) -> None:
    """The shortcuts at 0 and 1 agree with the formulas close to them, in value and gradient."""
    net, x, y = problem("FC 8, FC 6", 2)
    for end, near in ((0.0, 1e-9), (1.0, 1 - 1e-9)):
        found = []
        for alpha in (end, near):
            torch.manual_seed(0)
            loss = objective(net, Ball(x, 0.1), y, context(alpha)).loss
            found.append((loss.detach(), *gradients_of(loss, net)))
        for a, b in zip(*found, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.02, 0.5, 0.9])
def test_the_formulas(alpha: float) -> None:
    net, x, y = problem("Conv 3 2x2+1, FC 6", 3)
    torch.manual_seed(0)
    x_adv = objectives.adversarial_examples(net, Ball(x, 0.1), y, context(alpha))
    logits, margins = net(x_adv), net(Ball(x, 0.1).box()).lower_margins(y)
    below, above = (F.cross_entropy(z, y, reduction="none") for z in (logits, -margins))
    mixed = alpha * margins + (1 - alpha) * (logits.gather(1, y[:, None]) - logits)
    wanted = {
        objectives.mtl_ibp: (alpha * above + (1 - alpha) * below).mean(),
        objectives.exp_ibp: (alpha * above.log() + (1 - alpha) * below.log()).exp().mean(),
        objectives.cc_ibp: F.cross_entropy(-mixed, y),
    }
    for objective, theirs in wanted.items():
        torch.manual_seed(0)
        ours = objective(net, Ball(x, 0.1), y, context(alpha)).loss
        torch.testing.assert_close(ours, theirs)
        for a, b in zip(gradients_of(ours, net), gradients_of(theirs, net), strict=True):
            torch.testing.assert_close(a, b)


def test_the_losses_lie_between_their_ends() -> None:
    """By Jensen CC-IBP is at most MTL-IBP, and EXP-IBP too (arithmetic and geometric mean)."""
    net, x, y = problem("FC 8, FC 6", 4)
    losses = []
    for objective in ALL:
        torch.manual_seed(0)
        losses.append(float(objective(net, Ball(x, 0.1), y, context(0.3)).loss))
    mtl, cc, exp = losses
    assert cc <= mtl + 1e-12
    assert exp <= mtl + 1e-12


def test_exp_ibp_has_a_finite_gradient_where_a_loss_vanishes() -> None:
    net = torch.nn.Linear(2, 2).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1e4, 0.0], [0.0, 1e4]]))
    x, y = torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([0])
    loss = objectives.exp_ibp(net, Ball(x, 1e-3), y, context(0.5)).loss
    assert all(bool(g.isfinite().all()) for g in gradients_of(loss, net))


def test_the_attack_has_a_radius_of_its_own() -> None:
    net, x, y = problem("FC 8, FC 6", 5)
    now = context(0.5, attack_eps_factor=2.0)
    objectives.mtl_ibp(net, Ball(x, 0.1), y, now)
    assert now.shared is not None
    assert now.shared.x_adv is not None
    assert 0.1 + 1e-6 < float((now.shared.x_adv - x).abs().max()) <= 0.2 + 1e-12
