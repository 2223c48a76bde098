"""TAPS: its connector by finite differences, its product rule, STAPS with lambda 1, and the ramp."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from loss_problems import gradients_of, problem
from torch import Tensor, nn

from advibp import Box, UserError, nets, objectives
from advibp.bounds.graph.cut import split
from advibp.objectives import Ball, Context, Settings
from advibp.objectives.taps import connect, latent_margins, scale_gradient

torch.set_num_threads(1)


def context(ramped: float = 1.0, **settings: float) -> Context:
    return Context(ramped=ramped, settings=Settings(attack_steps=3, **{"taps_layers": 3, **settings}))  # type: ignore[arg-type]


def stated(points: Tensor, at: tuple[Tensor, Tensor], lower: Tensor, upper: Tensor) -> Tensor:
    """The formula of the docstring: p moves with u in the upper half of [l, u] (`at`), and with l in the lower half."""
    middle = (at[0] + at[1]) / 2
    with_upper = (points - middle).clamp(min=0) / (at[1] - middle)
    with_lower = (middle - points).clamp(min=0) / (middle - at[0])
    return points + with_upper * (upper - at[1]) + with_lower * (lower - at[0])


def test_the_connector_agrees_with_finite_differences_of_its_formula() -> None:
    torch.manual_seed(0)
    lower = torch.randn(3, 7, dtype=torch.float64)
    upper = lower + torch.rand(3, 7, dtype=torch.float64) + 0.1
    points = torch.lerp(lower, upper, torch.rand(3, 7, dtype=torch.float64))
    points[0, 0], points[0, 1], points[0, 2] = lower[0, 0], upper[0, 1], (lower[0, 2] + upper[0, 2]) / 2
    weight = torch.randn(3, 7, dtype=torch.float64)
    low, high = lower.clone().requires_grad_(), upper.clone().requires_grad_()
    value = connect(points, (low + high) / 2, (high - low) / 2)
    torch.testing.assert_close(value.detach(), points)
    by_lower, by_upper = torch.autograd.grad((weight * value.sin()).sum(), (low, high))
    step = 1e-6
    for i in range(3):
        for j in range(7):
            for found, shift in ((by_lower, (step, 0.0)), (by_upper, (0.0, step))):
                moved = []
                for sign in (1, -1):
                    low, high = lower.clone(), upper.clone()
                    low[i, j] += sign * shift[0]
                    high[i, j] += sign * shift[1]
                    moved.append((weight * stated(points, (lower, upper), low, high).sin()).sum())
                assert float(found[i, j]) == pytest.approx(float(moved[0] - moved[1]) / (2 * step), abs=1e-6)


def test_a_point_of_a_flat_interval_moves_with_its_center() -> None:
    center, radius = torch.zeros(2, requires_grad=True), torch.zeros(2)
    (gradient,) = torch.autograd.grad(connect(torch.zeros(2), center, radius).sum(), center)
    assert gradient.tolist() == [1.0, 1.0]


def test_the_product_rule_with_a_scaled_factor() -> None:
    a, b = torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    value = scale_gradient(a, 4.0) * b
    assert float(value) == 6.0
    assert [float(g) for g in torch.autograd.grad(value, (a, b))] == [12.0, 2.0]


@pytest.mark.parametrize("spec", ["FC 8, FC 6", "Conv 3 2x2+1, FC 6"])
def test_staps_with_lambda_one_is_taps(spec: str) -> None:
    net, x, y = problem(spec, 1)
    found = []
    for objective in (objectives.taps, objectives.staps):
        torch.manual_seed(0)
        loss = objective(net, Ball(x, 0.1), y, context(sabr_lambda=1.0)).loss
        found.append((loss.detach(), *gradients_of(loss, net)))
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)


def test_the_ramp_is_ibp_and_sabr() -> None:
    net, x, y = problem("FC 8, FC 6", 2)
    now = context(ramped=0.5)
    assert torch.equal(objectives.taps(net, Ball(x, 0.1), y, now).loss, objectives.ibp(net, Ball(x, 0.1), y, now).loss)
    found = []
    for objective in (objectives.staps, objectives.sabr):
        torch.manual_seed(0)
        found.append(objective(net, Ball(x, 0.1), y, now).loss)
    assert torch.equal(*found)


def test_latent_margins_lie_between_those_of_the_box_and_of_any_point() -> None:
    net, x, y = problem("FC 8, FC 6", 3)
    cut = split(net, 3, x)
    latent = cut.before(Ball(x, 0.1).box())
    margins = latent_margins(cut.after, latent, y, 4, context())
    assert bool((margins.gather(1, y[:, None]) == 0).all())
    assert bool((margins >= cut.after(latent).lower_margins(y) - 1e-9).all())
    # Every column is the margin of its own class at a point of the latent box.
    weak = cut.after(latent.center)
    assert bool((margins <= weak.gather(1, y[:, None]) - weak + 1e-9).float().mean() > 0.8)


class Skips(nn.Module):
    """A network that is no Sequential, with a skip connection before its last layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third, self.last = (nn.Linear(25, 25) for _ in range(4))
        self.out = nn.Linear(25, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        h = F.relu(self.first(x))
        h = h + F.relu(self.second(h))
        h = F.relu(self.third(h))
        out: Tensor = self.out(F.relu(self.last(h)))
        return out


def test_a_module_that_is_no_sequential_is_recorded() -> None:
    """The recorded graph takes one class at a time; the same attack in one batch finds losses as high."""
    torch.manual_seed(0)
    net, x, y = Skips().double(), torch.rand(5, 1, 5, 5, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0])
    evaluation = objectives.taps(net, Ball(x, 0.1), y, context(taps_layers=3))
    gradients = gradients_of(evaluation.loss, net)
    assert all(bool(g.isfinite().all()) and bool(g.any()) for g in gradients)
    with pytest.raises(UserError, match="skip connection"):
        objectives.taps(net, Ball(x, 0.1), y, context(taps_layers=6))
    with pytest.raises(UserError, match="taps_layers"):
        objectives.taps(net, Ball(x, 0.1), y, context(taps_layers=100))


@pytest.mark.parametrize("layers", [5, 50])
def test_too_many_layers_are_refused(layers: int) -> None:
    net, x, y = problem("FC 8", 4)  # Flatten, Linear, ReLU, Linear
    with pytest.raises(UserError, match=f"last {layers} can't be attacked"):
        objectives.taps(net, Ball(x, 0.1), y, context(taps_layers=layers))


def test_the_split_counts_layers_as_the_field_does() -> None:
    net = nets.build("cnn7-narrow", (1, 28, 28), 10)
    behind = split(net, 4, torch.rand(2, 1, 28, 28)).after
    assert [type(layer).__name__ for layer in behind] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]


def test_the_gradient_reaches_both_parts() -> None:
    """Of the latent loss alone: through the points to g, and to h itself."""
    net, x, y = problem("FC 8, FC 6", 5)
    cut = split(net, 3, x)
    latent = cut.before(Box.ball(x, 0.1))
    margins = latent_margins(cut.after, latent, y, 4, context())
    gradients = torch.autograd.grad(F.cross_entropy(-margins, y), list(net.parameters()))
    assert all(bool(g.any()) for g in gradients)
