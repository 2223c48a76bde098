"""Bounds over parts of a box: below the network's values at points of each part, and CROWN's over the whole box."""

from __future__ import annotations

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from networks import network

from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.linear.part_bounds import PartBounds, Parts
from advibp.bounds.linear.reduced import Reduced
from advibp.verify.exact.question import Question

KINDS = ("fc", "conv", "residual", "pooling", "batchnorm", "smooth fc", "smooth conv", "functional")


def problem(seed: int, kind: str, eps: float, *, real: bool, single: bool) -> tuple[Question, PartBounds]:
    """Return a random network at a random image, and the bounds of its margins."""
    made = network(seed, kind)
    net = made.net.float() if single else made.net
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x.float() if single else x
    asked = Question.robustness(net, x, 0, eps, 3, real=real)
    bounds = asked.refined()
    assume(bounds is not None)
    assert bounds is not None
    kinks = Kinks(bounds, curves=True)
    functions = [kinks.linear(bounds.tape.output, *asked.conjunction(k)) for k in range(2)]
    return asked, PartBounds(Reduced(kinks), functions)


def whole(asked: Question, bounds: PartBounds) -> Parts:
    return bounds.whole(asked.lower.flatten(), asked.upper.flatten())


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    eps=st.floats(0.01, 0.4),
    real=st.booleans(),
    single=st.booleans(),
)
@torch.no_grad()
def test_bounds_of_parts_are_below_the_network(seed: int, kind: str, eps: float, real: bool, single: bool) -> None:
    asked, bounds = problem(seed, kind, eps, real=real, single=single)
    dice = torch.Generator().manual_seed(seed)
    parts = whole(asked, bounds)
    for _ in range(3):
        inputs = torch.randint(parts.low.shape[1], (len(parts.which),), generator=dice)
        parts, shares = bounds.refine(parts.halves(inputs))
        assert (shares >= 0).all()
        assert (shares.sum(2) < 1.001).all()
    found = bounds.functions(parts)
    slack = 1e-9 if real else 0.0
    for _ in range(8):
        share = torch.rand(parts.low.shape, generator=dice, dtype=torch.float64)
        share = torch.where(torch.rand(share.shape, generator=dice) < 0.3, share.round(), share)
        points, inside = asked._inside(torch.lerp(parts.low, parts.high, share).view(-1, *asked.lower.shape[1:]))
        x = points.double().flatten(1)
        inside = inside & (x >= parts.low).all(1) & (x <= parts.high).all(1)
        outputs = asked.net(points.clone()).double()
        for k in range(2):
            rows, offsets = asked.conjunction(k)
            mine = (parts.which == k) & inside
            values = (outputs @ rows.T + offsets)[mine, 0]
            assert (values >= found.lower[mine, 0] - slack - (1e-5 if real and single else 0.0)).all()
            line = (found.slopes[mine, 0] * x[mine]).sum(1) + found.constants[mine, 0]
            assert (values >= line - slack - (1e-5 if real and single else 0.0)).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), eps=st.floats(0.01, 0.4), real=st.booleans())
@torch.no_grad()
def test_the_whole_box_has_the_bounds_of_crown(seed: int, kind: str, eps: float, real: bool) -> None:
    asked, bounds = problem(seed, kind, eps, real=real, single=False)
    found = bounds.functions(whole(asked, bounds)).lower[:, 0]
    expected = torch.tensor(asked.refined_margins, dtype=torch.float64)
    assert torch.allclose(found, expected, rtol=1e-6, atol=1e-6)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), eps=st.floats(0.01, 0.4))
@torch.no_grad()
def test_parts_have_tighter_bounds(seed: int, kind: str, eps: float) -> None:
    asked, bounds = problem(seed, kind, eps, real=True, single=False)
    parts, _ = bounds.refine(whole(asked, bounds))
    halves, _ = bounds.refine(parts.halves(parts.widths.argmax(1)))
    twice = parts.take(torch.arange(len(halves.which)) % len(parts.which))
    assert (halves.lower >= twice.lower).all()
    assert (halves.upper <= twice.upper).all()
    assert torch.equal(halves.which, twice.which)


def test_halves_cover_a_part() -> None:
    parts = Parts(
        torch.tensor([0]),
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[1.0, 3.0]]),
        torch.zeros(1, 0),
        torch.zeros(1, 0),
    )
    halves = parts.halves(torch.tensor([1]))
    assert halves.low.tolist() == [[0.0, 1.0], [0.0, 2.0]]
    assert halves.high.tolist() == [[1.0, 2.0], [1.0, 3.0]]
