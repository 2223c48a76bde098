"""Halving the box: the verdicts of the exact margin, for every kind of network that has few inputs."""

from __future__ import annotations

import math

import pytest
import torch
from exact_questions import check, exact_margin, question
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.linear.part_bounds import FunctionBounds, Parts
from advibp.verify.exact.input_split import _cut, split_inputs
from advibp.verify.exact.question import PROVED, Question
from advibp.verify.exact.trace import Trace


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eps=st.floats(0.01, 0.5),
    kind=st.sampled_from(("few relus", "fc", "batchnorm")),
    batch=st.sampled_from([1, 7, 512]),
)
def test_the_answer_is_that_of_the_exact_margin(seed: int, eps: float, kind: str, batch: int) -> None:
    asked = question(seed, eps, kind)[0]
    assume(asked.lower.numel() <= 6)
    assume(Kinks(asked.bounds.refine()).count <= 60)
    exact = exact_margin(asked)
    assume(exact > -math.inf and abs(exact) > 1e-3)  # (a margin close to 0 takes many parts)
    check(asked, split_inputs(asked, batch=batch), exact)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), rows=st.integers(2, 3), shift=st.floats(-0.5, 0.5))
def test_conjunctions_of_several_rows(seed: int, rows: int, shift: float) -> None:
    """Unsafe is an intersection of half-spaces: the margin is the minimum of the largest row."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    unsafe = [(torch.randn(rows, 3).double(), shift + 0.3 * torch.randn(rows).double()) for _ in range(2)]
    asked = Question(net, torch.zeros(1, 2).double(), torch.ones(1, 2).double(), unsafe)
    exact = exact_margin(asked)
    assume(exact > -math.inf and abs(exact) > 1e-3)
    check(asked, split_inputs(asked), exact)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.05, 0.5), single=st.booleans(), group=st.sampled_from([1, 3]))
def test_groups_with_their_own_bounds_give_the_exact_answer(seed: int, eps: float, single: bool, group: int) -> None:
    """The network is reduced again over small groups after every few parts."""
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 10), nn.ReLU(), nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    asked = Question.robustness(net, x := torch.rand(1, 3).double(), int(net(x).argmax()), eps, 3)
    exact = exact_margin(asked)
    assume(exact > -math.inf and abs(exact) > 1e-3)
    if single:  # (the exact margin of a float32 network differs by rounding errors)
        asked = Question.robustness(net.float(), x.float(), int(net(x.float()).argmax()), eps, 3)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in (("_GROUP", group), ("_REGROUP_PARTS", 4), ("_REGROUP_TIME", 0.0)):
            patched.setattr(f"advibp.verify.exact.input_split.{name}", value)
        answer = split_inputs(asked, batch=4, seconds=5.0)
    assume(answer.in_time)
    assert answer.robust == (exact > 0)
    assert (answer.counterexample is not None) == (exact < 0)
    assert answer.margin <= exact + 1e-4


@pytest.mark.parametrize("activation", [nn.Sigmoid, nn.Tanh])
@pytest.mark.parametrize("single", [True, False])
def test_curves(activation: type[nn.Module], single: bool) -> None:
    """A network with curves has no exact margin, but a fine grid comes close."""
    decided = 0
    for seed in range(6):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(2, 8), activation(), nn.Linear(8, 8), activation(), nn.Linear(8, 2))
        for p in net.parameters():
            p.data *= 2
        net = net if single else net.double()
        side = torch.linspace(0, 1, 201, dtype=torch.float64)
        points = torch.cartesian_prod(side, side).to(next(net.parameters()).dtype)
        with torch.no_grad():
            values = net(points).double() @ torch.tensor([1.0, -1.0]).double()
        for offset in (-float(values.min()) + 0.02, -float(values.min()) - 0.02):
            unsafe = [(torch.tensor([[1.0, -1.0]]).double(), torch.tensor([offset]).double())]
            asked = Question(net, torch.zeros(1, 2).double(), torch.ones(1, 2).double(), unsafe)
            answer = split_inputs(asked)
            assert answer.robust == (offset > -float(values.min()))
            assert (answer.counterexample is not None) == (offset < -float(values.min()))
            assert answer.margin <= float(values.min()) + offset + 1e-9
            decided += 1
    assert decided == 12


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_cutting_keeps_every_point_at_which_all_rows_are_low(seed: int) -> None:
    dice = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=dice, dtype=torch.float64)

    low = normal(5, 3)
    parts = Parts(torch.zeros(5).long(), low, low + normal(5, 3).abs(), normal(5, 0), normal(5, 0))
    slopes, constants = normal(5, 2, 3), normal(5, 2)
    slopes = torch.where(torch.rand(slopes.shape, generator=dice) < 0.2, 0.0, slopes)
    smaller, empty = _cut(parts, FunctionBounds(constants, slopes, constants, normal(5, 2, 0)), PROVED)
    assert (smaller.low >= parts.low).all()
    assert (smaller.high <= parts.high).all()
    points = torch.lerp(parts.low, parts.high, torch.rand(200, 5, 3, generator=dice, dtype=torch.float64))
    kept = ((points.unsqueeze(2) * slopes).sum(3) + constants <= PROVED).all(2)  # (200, 5)
    inside = ((points >= smaller.low) & (points <= smaller.high)).all(2) & ~empty
    assert (inside | ~kept).all()


def test_time_limit_and_trace() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2)).double()
    with torch.no_grad():
        lowest = float((net(torch.rand(5000, 6).double()) @ torch.tensor([1.0, -1.0]).double()).min())
    unsafe = [(torch.tensor([[1.0, -1.0]]).double(), torch.tensor([-lowest + 0.01]).double())]
    asked, trace = Question(net, torch.zeros(1, 6).double(), torch.ones(1, 6).double(), unsafe), Trace()
    answer = split_inputs(asked, seconds=0.0, trace=trace)
    assert not answer.in_time
    assert not answer.robust
    asked = Question(net, torch.zeros(1, 6).double(), torch.ones(1, 6).double(), unsafe)
    later = split_inputs(asked, seconds=1.0, batch=16, trace=trace)
    assert later.margin >= answer.margin
    assert trace.summary()["progress"]


def test_margin_of_zero_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the margin is exactly 0 in a region, no part of it can be decided, and the search gives up."""
    monkeypatch.setattr("advibp.verify.exact.input_split._MOST_PARTS", 2000)
    net = nn.Sequential(nn.Linear(1, 1, bias=False), nn.ReLU(), nn.Linear(1, 1, bias=False)).double()
    for p in net.parameters():
        p.data.fill_(1.0)
    unsafe = [(torch.ones(1, 1).double(), torch.zeros(1).double())]  # relu(x) <= 0
    asked = Question(net, -torch.ones(1, 1).double(), torch.ones(1, 1).double(), unsafe, strict=True)
    answer = split_inputs(asked)
    assert answer.counterexample is None
    assert not answer.robust
