"""Bounds of subproblems: CROWN's on the whole box, sound in every subproblem, and exact if all signs are known."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import CLASSES, network
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.linear.beta_crown import SplitBounds, Subproblems
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import Kinks, UnstableRelus

KINDS = ("fc", "conv", "residual", "pooling", "batchnorm", "few relus")


def kinks_of(seed: int, kind: str, eps: float) -> Kinks:
    made = network(seed, kind)
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return Kinks(LinearBounds(made.net, Box.ball(x, eps)).refine())


def rows_of(seed: int, count: int) -> Tensor:
    return torch.randn(count, CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def inside(kinks: Kinks, count: int) -> Tensor:
    box = kinks.bounds.box
    return box.center + box.radius * (2 * torch.rand(count, *box.shape[1:], dtype=torch.float64) - 1)


def pre_activations(kinks: Kinks, points: Tensor) -> Tensor:
    """Return the pre-activations (P, V) of the kinks at some points; 0 for pooling windows."""
    values = torch.zeros(len(points), kinks.count, dtype=torch.float64)
    bounds = LinearBounds(kinks.bounds.net, Box(center=points, radius=0.0))
    for number, found in kinks.of.items():
        if isinstance(found, UnstableRelus):
            values[:, kinks.columns(number)] = bounds.intermediate_bounds[found.pre_activation][0].flatten(1)[
                :, found.elements
            ]
    return values


def random_subproblems(split: SplitBounds, signs: Tensor, seed: int) -> Subproblems:
    """Return subproblems with these signs and random parameters."""
    chance = torch.Generator().manual_seed(seed)
    whole = split.whole()
    parts = whole.take(torch.zeros(len(signs), dtype=torch.int64))._replace(signs=signs)
    slopes = torch.where(split.is_relu, torch.rand(signs.shape, generator=chance), parts.slopes)
    multipliers = torch.rand(signs.shape, generator=chance) * (signs != 0)
    return parts._replace(slopes=slopes, multipliers=multipliers)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), eps=st.sampled_from([0.05, 0.3]))
@torch.no_grad()
def test_bounds_of_the_whole_box_equal_crown(seed: int, kind: str, eps: float) -> None:
    kinks, rows = kinks_of(seed, kind, eps), rows_of(seed, 4)
    output = kinks.bounds.tape.output
    split = SplitBounds(kinks, [kinks.linear(output, row[None]) for row in rows])
    back = split.back(split.whole())
    torch.testing.assert_close(back.lower, kinks.bounds.lower(output, rows), rtol=1e-9, atol=1e-9)
    assert split.lowest(back.inputs).shape == back.inputs.shape


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), share=st.floats(0.1, 1))
@torch.no_grad()
def test_bounds_are_sound_in_the_subproblem(seed: int, kind: str, share: float) -> None:
    kinks, rows = kinks_of(seed, kind, 0.3), rows_of(seed, 2)
    torch.manual_seed(seed)
    points = inside(kinks, 300)
    values = pre_activations(kinks, points)
    split = SplitBounds(kinks, [kinks.linear(kinks.bounds.tape.output, rows)])
    # Subproblems around some of the points, so that they are not empty.
    chosen = (torch.rand(8, kinks.count) < share) & split.is_relu
    signs = (values[:8].sign() * chosen).to(torch.int8)
    parts = random_subproblems(split, signs, seed)
    within = (values * signs.unsqueeze(1) >= 0).all(2)  # (D, P)
    reached = (kinks.bounds.net(points) @ rows.T).amax(1).where(within, torch.inf).amin(1)
    before = split.back(parts).lower
    after, better = split.ascend(parts, steps=8, enough=torch.inf)
    assert (before <= after + 1e-9).all()
    assert (after <= reached + 1e-9).all()
    assert (split.back(better).lower <= reached + 1e-9).all()
    torch.testing.assert_close(
        split.back(better).lower, after, rtol=1e-4, atol=1e-4
    )  # parameters are stored in float32
    assert torch.equal(better.signs, signs)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000))
@torch.no_grad()
def test_known_signs_give_exact_bounds(seed: int) -> None:
    """If every sign is known and multipliers are 0, the bound is the minimum of an affine function over the box."""
    kinks, rows = kinks_of(seed, "few relus", 0.3), rows_of(seed, 1)
    points = inside(kinks, 1)
    split = SplitBounds(kinks, [kinks.linear(kinks.bounds.tape.output, rows)])
    parts = split.whole()._replace(signs=pre_activations(kinks, points).sign().to(torch.int8))
    assume(bool((parts.signs != 0).all()))
    back = split.back(parts)
    there = (kinks.bounds.net(points) @ rows.T).squeeze()
    center = split.lowest(torch.zeros_like(back.inputs))
    gap = (back.inputs * (points.flatten() - center)).sum() + (
        back.inputs.abs() * kinks.bounds.box.radius.flatten()
    ).sum()
    torch.testing.assert_close(back.lower.squeeze() + gap, there, rtol=1e-9, atol=1e-9)
    assert (split.losses(parts, back.kinks) == -1).all()


@torch.no_grad()
def test_multipliers_prove_an_empty_subproblem() -> None:
    """For x in [-1, 1] relu(x) and relu(-x - 1/2) cannot both be active, so the bound -1/2 of their sum increases."""
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1)).double()
    net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
    net[0].bias.copy_(torch.tensor([0.0, -0.5]))
    net[2].weight.fill_(1.0)
    net[2].bias.zero_()
    kinks = Kinks(LinearBounds(net, Box(center=torch.zeros(1, 1).double(), radius=1.0)))
    split = SplitBounds(kinks, [kinks.linear(kinks.bounds.tape.output, torch.ones(1, 1).double())])
    parts = split.whole()._replace(signs=torch.ones(1, 2, dtype=torch.int8))
    for _ in range(20):  # each call starts from the last parameters
        bounds, parts = split.ascend(parts, steps=20, enough=torch.inf)
    assert bounds.item() > 0
    assert (parts.multipliers > 0).all()


@torch.no_grad()
def test_mean_of_rows_bounds_their_maximum() -> None:
    """max(x, -x) >= 0 over [-1, 1], while each row alone has the bound -1."""
    net = nn.Sequential(nn.Linear(1, 1, bias=False)).double()
    net[0].weight.fill_(1.0)
    kinks = Kinks(LinearBounds(net, Box(center=torch.zeros(1, 1).double(), radius=1.0)))
    rows = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    split = SplitBounds(kinks, [kinks.linear(0, rows), kinks.linear(0, rows[:1])])
    bounds, _ = split.ascend(split.whole(), steps=20, enough=1.0)
    torch.testing.assert_close(bounds, torch.tensor([0.0, -1.0], dtype=torch.float64), atol=1e-6, rtol=0)


@torch.no_grad()
def test_split_gives_active_and_inactive_halves() -> None:
    kinks = kinks_of(3, "fc", 0.3)
    split = SplitBounds(kinks, [kinks.linear(kinks.bounds.tape.output, rows_of(3, 1))] * 2)
    halves = split.whole().split(torch.tensor([0, 2]))
    assert halves.signs[:, [0, 2]].tolist() == [[1, 0], [0, 1], [-1, 0], [0, -1]]
    assert halves.which.tolist() == [0, 1, 0, 1]
