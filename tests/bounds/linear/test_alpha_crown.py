"""alpha-CROWN: never below CROWN, and never above the exact margin, for any slopes."""

from __future__ import annotations

import pytest
import torch
from exact import exact_margins
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import KINDS, network
from some_margins import close, some
from torch import Tensor, nn

from advibp.bounds import Box, LinearBounds, crown
from advibp.bounds.linear.alpha_crown import alpha_margins
from advibp.bounds.linear.relaxation import LinearRelaxation


@settings(max_examples=12)
@given(st.integers(0, 10_000), st.sampled_from([0.1, 0.4]))
@torch.no_grad()
def test_margins_are_between_crown_and_exact(seed: int, eps: float) -> None:
    net, box, y = some(seed, 1, eps, "few relus")
    exact = exact_margins(net, box, int(y)) + 1e-9
    for bounds in (LinearBounds(net, box), crown(net, box)):
        before = bounds.margins(y)
        after = alpha_margins(bounds, y, steps=15)
        assert (after >= before).all()
        assert (after <= exact).all()
        assert after[0, y] == 0


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_never_below_crown_and_sound_at_attacked_points(kind: str) -> None:
    net, box, y = some(2, 3, 0.3, kind)
    bounds = crown(net, box)
    found = alpha_margins(bounds, y, steps=5)
    assert (found >= bounds.margins(y)).all()
    points = box.center + box.radius * (torch.rand(500, *box.shape, dtype=torch.float64) * 2 - 1).sign()
    output = net(points.flatten(0, 1)).unflatten(0, (500, 3))
    margins = output.gather(2, y.view(1, -1, 1).expand(500, -1, 1)) - output
    assert (margins >= found - 1e-9).all()


def random_slopes(lines: object, image: Tensor) -> Tensor:
    """Return random values of the free slopes, and CROWN's slopes of the other neurons."""
    assert isinstance(lines, LinearRelaxation)
    low, high = torch.tensor(lines.slope_range, dtype=torch.float64)
    slopes = torch.lerp(low, high, torch.rand_like(lines.free_slopes))
    return torch.where(lines.free, slopes, lines.free_slopes)[image]


@pytest.mark.parametrize("kind", ["smooth fc", "smooth conv"])
@pytest.mark.parametrize("seed", range(5))
@torch.no_grad()
def test_any_slopes_of_curves_are_sound(seed: int, kind: str) -> None:
    net, box, y = some(seed, 2, 0.4, kind)
    bounds = crown(net, box)
    rows, others, image = bounds.margin_rows(y)
    points = box.center + box.radius * (torch.rand(2000, *box.shape, dtype=torch.float64) * 2 - 1).sign()
    output = net(points.flatten(0, 1)).unflatten(0, (2000, 2))
    margins = (output.gather(2, y.view(1, -1, 1).expand(2000, -1, 1)) - output).amin(0)
    least = margins.gather(1, others).flatten() + 1e-9
    for _ in range(5):
        slopes = {index: random_slopes(bounds.relaxation(index), image) for index in bounds.activations}
        assert (bounds.lower(bounds.tape.output, rows, image, slopes) <= least).all()
    own = {index: bounds.relaxation(index).free_slopes[image] for index in bounds.activations}
    close(bounds.lower(bounds.tape.output, rows, image, own), bounds.lower(bounds.tape.output, rows))


@torch.no_grad()
def test_better_slopes_of_curves() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(4, 10),
        nn.Tanh(),
        nn.Linear(10, 10),
        nn.Sigmoid(),
        nn.Linear(10, 10),
        nn.LeakyReLU(),
        nn.Linear(10, 3),
    ).double()
    bounds, y = crown(net, Box.ball(torch.rand(2, 4).double(), 0.5)), torch.tensor([0, 2])
    before = bounds.margins(y)
    assert (alpha_margins(bounds, y)[before < 0] > before[before < 0]).all()


@settings(max_examples=12)
@given(st.integers(0, 10_000))
@torch.no_grad()
def test_any_slopes_in_range_are_sound(seed: int) -> None:
    net, box, y = some(seed, 1, 0.3, "few relus")
    bounds = crown(net, box)
    rows, others, image = bounds.margin_rows(y)
    exact = exact_margins(net, box, int(y))[others[0]] + 1e-9
    for _ in range(5):
        slopes = {index: random_slopes(bounds.relaxation(index), image) for index in bounds.activations}
        assert (bounds.lower(bounds.tape.output, rows, image, slopes) <= exact).all()


@torch.no_grad()
def test_better_slope_than_crown() -> None:
    """ReLU over [-1, 1.5]: slope 0 is best for the margin relu(x), and CROWN uses 1."""
    net = nn.Sequential(nn.ReLU(), nn.Linear(1, 2, bias=False)).double()
    net[1].weight.data = torch.tensor([[1.0], [0.0]], dtype=torch.float64)
    bounds = LinearBounds(net, Box(center=torch.full((1, 1), 0.25, dtype=torch.float64), radius=1.25))
    y = torch.tensor([0])
    assert bounds.margins(y)[0, 1] == -1
    assert alpha_margins(bounds, y)[0, 1].item() == pytest.approx(0, abs=1e-9)


@torch.no_grad()
def test_results_do_not_depend_on_chunks_or_batch() -> None:
    net, box, y = some(4, 3, 0.3, "conv")
    whole = alpha_margins(crown(net, box), y, steps=4)
    close(alpha_margins(crown(net, box, at_once=2), y, steps=4), whole)
    close(alpha_margins(crown(net, Box(center=box.center[1:2], radius=box.radius[1:2])), y[1:2], steps=4), whole[1:2])


@torch.no_grad()
def test_overflow_does_not_replace_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    net, box, y = some(0, 2, 0.3, "fc")
    bounds = crown(net, box)
    before, lower = bounds.margins(y), LinearBounds.lower

    def sometimes(
        self: LinearBounds, index: int, a: Tensor, image: Tensor | None = None, slopes: object = None
    ) -> Tensor:
        found = lower(self, index, a, image, slopes)  # type: ignore[arg-type]
        return found if image is None else found * torch.nan

    monkeypatch.setattr(LinearBounds, "lower", sometimes)
    assert torch.equal(alpha_margins(bounds, y, steps=3), before)


@torch.no_grad()
def test_networks_without_unstable_neurons_keep_their_margins() -> None:
    active = nn.Sequential(nn.ReLU(), nn.Linear(4, 3)).double()  # over [0, 1]
    for net in (nn.Sequential(nn.Linear(4, 3)).double(), active):
        bounds = crown(net, Box.ball(torch.rand(2, 4).double(), 0.3))
        y = torch.tensor([0, 2])
        assert torch.equal(alpha_margins(bounds, y), bounds.margins(y))


def test_weights_get_no_gradient_and_stay_as_they_are() -> None:
    found = network(4, "fc")
    before = {name: value.clone() for name, value in found.net.state_dict().items()}
    with torch.no_grad():
        alpha_margins(crown(found.net, Box.ball(torch.rand(2, *found.shape).double(), 0.3)), torch.tensor([0, 1]))
    assert all(p.grad is None for p in found.net.parameters())
    assert all(torch.equal(before[name], value) for name, value in found.net.state_dict().items())
