"""Subproblems with pre-activations in intervals: bounds that hold for their points, for any slopes and multipliers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds.linear.interval_splits import IntervalBounds, Intervals
from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.linear.reduced import Reduced
from advibp.verify.exact.question import Question

ACTIVATIONS = {
    "tanh": (nn.Tanh(), nn.Tanh()),
    "sigmoid": (nn.Sigmoid(), nn.Sigmoid()),
    "mixed": (nn.Tanh(), nn.LeakyReLU(0.1)),
    "relu first": (nn.ReLU(), nn.Sigmoid()),
}


def problem(
    seed: int, kind: str, *, real: bool = False, single: bool = False, scale: float = 2
) -> tuple[Question, IntervalBounds, Kinks]:
    """Return a question about a small network, its bounds, and its kinks."""
    torch.manual_seed(seed)
    first, second = ACTIVATIONS[kind]
    net = nn.Sequential(nn.Linear(3, 8), first, nn.Linear(8, 6), second, nn.Linear(6, 3)).double()
    for layer in net[0], net[2]:
        layer.weight.data *= scale
    if single:
        net = net.float()
    x = torch.rand(1, 3, dtype=next(net.parameters()).dtype)
    asked = Question.robustness(net, x, int(net(x).argmax()), 0.3, 3, real=real)
    bounds = asked.refined()
    assert bounds is not None
    kinks = Kinks(bounds, curves=True)
    functions = [kinks.linear(bounds.tape.output, *asked.conjunction(k)) for k in range(2)]
    return asked, IntervalBounds(Reduced(kinks), functions), kinks


def pre_activations(asked: Question, kinks: Kinks, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the pre-activations (n, V) of the kinks, and the bounded functions (n, F)."""
    net, values, found = asked.net, [], points.to(asked.dtype)
    with torch.no_grad():
        for layer in net.children():
            if not isinstance(layer, nn.Linear):
                values.append(found.double())
            found = layer(found)
    columns = [value[:, one.elements] for value, one in zip(values, kinks.of.values(), strict=True)]  # type: ignore[union-attr]
    rows = torch.cat([asked.conjunction(k)[0] for k in range(2)])
    return torch.cat(columns, 1), found.double() @ rows.T


def split_at_random(bounds: IntervalBounds, parts: Intervals, times: int) -> Intervals:
    """Split all subproblems several times, at random kinks that can be split."""
    for _ in range(times):
        scores = torch.rand(parts.lower.shape).masked_fill(~bounds.can_split(parts), -1.0)
        parts = bounds.split(parts, scores.argmax(1))
    return parts


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(sorted(ACTIVATIONS)), real=st.booleans(), single=st.booleans())
def test_bounds_hold_at_the_points_of_a_subproblem(seed: int, kind: str, real: bool, single: bool) -> None:
    asked, bounds, kinks = problem(seed, kind, real=real, single=single)
    parts = split_at_random(bounds, bounds.whole(), 4)
    were_split = bounds._were_split(parts)
    random = parts._replace(
        slopes=torch.rand_like(parts.slopes), multipliers=torch.randn_like(parts.multipliers) * were_split
    )
    ascended = bounds.single().ascend(parts, steps=5, enough=1e9)[1]
    points = torch.lerp(asked.lower, asked.upper, torch.rand(3000, 3).double())
    inside = asked._inside(points)[0]
    z, values = pre_activations(asked, kinks, inside)
    slack = 1e-5 if real and single else 1e-9 if real else 1e-12
    for each in (parts, random, ascended):
        lower = bounds.back(each).lower
        for k in range(len(lower)):
            among = ((z >= each.lower[k] + slack) & (z <= each.upper[k] - slack)).all(1)
            assert (values[among, int(each.which[k])] >= lower[k] - slack).all()


@pytest.mark.parametrize("kind", sorted(ACTIVATIONS))
def test_halves_cover_their_subproblem(kind: str) -> None:
    _, bounds, _ = problem(1, kind)
    parts = bounds.whole()
    scores = bounds.losses(parts, torch.ones_like(parts.multipliers).to(parts.lower))
    kink = scores.argmax(1)
    above, below = (bounds.split(parts, kink).take(half) for half in (slice(0, 2), slice(2, 4)))
    at = kink.unsqueeze(1)
    assert torch.equal(above.lower.gather(1, at), below.upper.gather(1, at))
    for half in (above, below):
        others = torch.ones_like(half.lower, dtype=torch.bool).scatter(1, at, False)
        assert torch.equal(half.lower[others], parts.lower[others])
        assert torch.equal(half.upper[others], parts.upper[others])
    assert torch.equal(above.upper, parts.upper)
    assert torch.equal(below.lower, parts.lower)
    assert bounds.depths(bounds.split(parts, kink)).tolist() == [1] * 4


def test_intervals_of_huge_numbers_are_not_split_for_ever() -> None:
    """The middle of an interval one unit in the last place wide is one of its ends."""
    _, bounds, _ = problem(0, "tanh")
    parts = bounds.whole()
    lower = torch.full_like(parts.lower, 1e9)
    assert not bounds.can_split(parts._replace(lower=lower, upper=lower.nextafter(2 * lower))).any()
    assert bounds.can_split(parts._replace(lower=lower, upper=lower + 100)).any()


@pytest.mark.parametrize("kind", ["tanh", "sigmoid", "mixed"])
def test_splits_and_optimization_raise_the_bounds(kind: str) -> None:
    _, bounds, _ = problem(3, kind, real=True, scale=6)
    whole, fast = bounds.whole(), bounds.single()
    before = bounds.back(whole).lower
    parts = fast.ascend(whole, steps=20, enough=1e9)[1]
    root = bounds.back(parts).lower
    for _ in range(5):
        parts = bounds.split(parts, bounds.losses(parts, bounds.back(parts).kinks).argmax(1))
    after = bounds.back(fast.ascend(parts, steps=20, enough=1e9)[1]).lower
    assert (root >= before - 1e-6).all()
    assert (after >= root[parts.which] - 1e-6).all()
    assert all(after[parts.which == k].mean() > root[k] + 1e-3 for k in range(2))
