"""Branch and bound: the verdicts of MILP, margins that are sound at any time, and a pool as small as asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from exact_questions import check, exact_margin, question
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact import branch_and_bound as module
from advibp.verify.exact.branch_and_bound import branch
from advibp.verify.exact.input_split import split_inputs
from advibp.verify.exact.milp import milp
from advibp.verify.exact.question import PROVED, Question

KINDS = ("few relus", "fc", "conv", "residual", "pooling", "batchnorm", "leaky")


def some(seed: int, eps: float, kind: str) -> Question:
    if kind != "leaky":
        return question(seed, eps, kind)[0]
    torch.manual_seed(seed)
    net = nn.Sequential(
        nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 6), nn.LeakyReLU(0.1), nn.Linear(6, 3)
    ).double()
    x = torch.rand(1, 3, dtype=torch.float64)
    return Question.robustness(net, x, int(net(x).argmax()), eps, 3)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eps=st.floats(0.01, 0.3),
    kind=st.sampled_from(KINDS),
    options=st.sampled_from([{}, {"leaf": 0}, {"leaf": 0, "batch": 3}, {"leaf": 2, "steps": 3}]),
)
def test_the_answer_is_that_of_the_exact_margin(seed: int, eps: float, kind: str, options: dict[str, Any]) -> None:
    asked = some(seed, eps, kind)
    assume(Kinks(asked.bounds.refine()).count <= 60)
    exact = exact_margin(asked)
    assume(exact > -math.inf)  # HiGHS may fail
    answer = branch(asked, **options)
    check(asked, answer, exact)
    if abs(exact) > 1e-4:
        assert milp(asked).robust == answer.robust


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), most_open=st.sampled_from([1, 2, 5]))
def test_the_pool_stays_small_and_the_answer_right(seed: int, most_open: int) -> None:
    asked = some(seed, 0.2, "fc")
    assume(Kinks(asked.bounds.refine()).count <= 30)
    sizes, one_round = [], module._Search._round

    def noted(self: Any, pool: Any) -> Any:
        sizes.append(len(pool.bounds))
        return one_round(self, pool)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module._Search, "_round", noted)
        answer = branch(asked, most_open=most_open, leaf=0, steps=2)
    exact = exact_margin(asked)
    assume(exact > -math.inf)
    check(asked, answer, exact)
    assert all(size <= max(most_open, len(asked.unsafe)) for size in sizes)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["few relus", "fc", "leaky"]), leaf=st.sampled_from([0, 10]))
def test_several_rows_agree_with_milp(seed: int, kind: str, leaf: int) -> None:
    asked = some(seed, 0.2, kind)
    assume(Kinks(asked.bounds.refine()).count <= 30)
    chance = torch.Generator().manual_seed(seed)
    points = (
        asked.lower + (asked.upper - asked.lower) * torch.rand(200, *asked.lower.shape[1:], generator=chance).double()
    )
    unsafe = []
    for count in (2, 1, 3):
        rows = torch.randn(count, 3, generator=chance, dtype=torch.float64)
        with torch.no_grad():
            values = asked.net(points) @ rows.T
        # Each row holds at about some of the points; all of them at some, or at none.
        unsafe.append((rows, -values.quantile(0.3 if count > 1 else 0.0, dim=0) + 0.05))
    both = Question(asked.net, asked.lower, asked.upper, unsafe)
    exact = exact_margin(both)
    assume(exact > -math.inf)
    answer = branch(both, leaf=leaf)
    check(both, answer, exact)
    if abs(exact) > 1e-4:
        assert (milp(both).counterexample is None) == (answer.counterexample is None)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), kind=st.sampled_from(KINDS), seconds=st.sampled_from([0.0, 0.02]))
def test_without_time_the_margin_is_sound(seed: int, kind: str, seconds: float) -> None:
    asked = some(seed, 0.3, kind)
    answer = branch(asked, seconds=seconds, leaf=0)
    roots = min(asked.linear_margin(k) for k in range(len(asked.unsafe)))
    torch.manual_seed(seed)
    points = asked.lower + (asked.upper - asked.lower) * torch.rand(300, *asked.lower.shape[1:]).double()
    with torch.no_grad():
        output = asked.net(points)
    reached = min(float((output @ rows.T + offsets).amax(1).min()) for rows, offsets in asked.unsafe)
    assert roots - 1e-9 <= answer.margin <= reached + 1e-9
    if seconds == 0:
        assert answer.counterexample is None
        assert answer.in_time == (answer.margin > PROVED)


def test_the_same_question_has_the_same_answer() -> None:
    first, second = (branch(some(11, 0.2, "fc"), leaf=0) for _ in range(2))
    assert first.margin == second.margin
    assert (first.counterexample is None) == (second.counterexample is None)


def test_a_tie_is_neither_robust_nor_falsified() -> None:
    """z_0 = relu(x), z_1 = 0 over x in [-0.2, 0.2]: the margin is exactly 0."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight.fill_(1.0)
        net[2].weight[0] = 1.0
    rows = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    ends = torch.tensor([[-0.2]], dtype=torch.float64), torch.tensor([[0.2]], dtype=torch.float64)
    answer = branch(Question(net, *ends, [(rows, torch.zeros(1).double())], strict=True), leaf=0)
    assert not answer.robust
    assert answer.counterexample is None
    assert answer.in_time


def test_no_conjunctions_are_safe_and_empty_conjunctions_always_hold() -> None:
    asked = some(1, 0.1, "fc")
    assert branch(asked.about([])).robust
    nothing = Question(asked.net, asked.lower, asked.upper, [(torch.zeros(0, 3), torch.zeros(0))])
    assert branch(nothing).counterexample is not None


def test_a_network_without_kinks_is_solved() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    x = torch.rand(1, 4, dtype=torch.float64)
    asked = Question.robustness(net, x, int(net(x).argmax()), 0.5, 3)
    check(asked, branch(asked), exact_margin(asked))


def test_a_float32_network_is_checked_in_its_own_precision() -> None:
    found = 0
    for seed in range(10):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
        x = torch.rand(1, 4)
        label = int(net(x).argmax())
        broken = branch(Question.robustness(net, x, label, 0.9, 3)).counterexample
        if broken is not None:
            found += 1
            assert broken.dtype == torch.float32
            assert int(net(broken).argmax()) != label
        assert all(p.grad is None for p in net.parameters())
    assert found > 0


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    eps=st.floats(0.05, 0.3),
    curve=st.sampled_from([nn.Tanh(), nn.Sigmoid()]),
    real=st.booleans(),
)
def test_curves_are_decided_as_by_halving_the_box(seed: int, eps: float, curve: nn.Module, real: bool) -> None:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(2, 8), curve, nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 5), curve, nn.Linear(5, 3))
    net = net.double()
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 2
    x = torch.rand(1, 2, dtype=torch.float64)
    asked = Question.robustness(net, x, int(net(x).argmax()), eps, 3, real=real)
    reference = split_inputs(asked, seconds=5)
    answer = branch(asked, seconds=5)
    assert not (answer.robust and reference.counterexample is not None)
    assert not (reference.robust and answer.counterexample is not None)
    for found in (answer, reference):
        if found.counterexample is not None:
            assert asked.broken_by(found.counterexample) is not None
    points = torch.lerp(asked.lower, asked.upper, torch.rand(2000, 2).double())
    with torch.no_grad():
        outputs = net(points)
    rows = torch.cat([rows for rows, _ in asked.unsafe])
    assert answer.margin <= float((outputs @ rows.T).min()) + 1e-9


def test_curves_together_with_max_pooling() -> None:
    decided = 0
    for seed in range(6):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Tanh(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(12, 3)).double()
        x = torch.rand(1, 1, 4, 4, dtype=torch.float64)
        for eps in (0.1, 0.3):
            asked = Question.robustness(net, x, int(net(x).argmax()), eps, 3)
            answer = branch(asked, seconds=3)
            decided += answer.robust or answer.counterexample is not None
            points = torch.lerp(asked.lower, asked.upper, torch.rand(500, *x.shape[1:]).double().round())
            with torch.no_grad():
                values = net(points) @ torch.cat([rows for rows, _ in asked.unsafe]).T
            assert answer.margin <= float(values.min()) + 1e-9
    assert decided > 6


def test_curves_in_many_dimensions_are_decided() -> None:
    """CROWN fails and input splitting is hopeless, but splits of neurons succeed."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(50, 20), nn.Tanh(), nn.Linear(20, 20), nn.Sigmoid(), nn.Linear(20, 3)).double()
    for layer in net.children():
        if isinstance(layer, nn.Linear):
            layer.weight.data *= 3
    x = torch.rand(1, 50, dtype=torch.float64)
    label = int(net(x).argmax())
    decided = 0
    for eps in (0.105, 0.11, 0.115):
        asked = Question.robustness(net, x, label, eps, 3)
        asked.refined()
        proved_by_crown = min(asked.refined_margins) > PROVED
        answer = branch(asked, seconds=10)
        decided += not proved_by_crown and (answer.robust or answer.counterexample is not None)
    assert decided > 0
