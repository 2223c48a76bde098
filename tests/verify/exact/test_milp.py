"""MILP: robust and falsified as the exact margin says, counterexamples that break the network, unknown in between."""

from __future__ import annotations

import pytest
import torch
from exact import exact_margins
from exact_questions import question
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from advibp.bounds.domain import UnsupportedOperation
from advibp.verify.exact.milp import milp
from advibp.verify.exact.question import PROVED, Question
from advibp.verify.verifiers import searches


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.01, 0.5))
def test_the_verdict_is_that_of_the_exact_margin(seed: int, eps: float) -> None:
    asked, label = question(seed, eps)
    margins = exact_margins(asked.net, asked.bounds.box, label)
    exact = float(torch.cat([margins[:label], margins[label + 1 :]]).min())
    assume(abs(exact) > 1e-4)
    answer = milp(asked)
    assert answer.in_time
    assert answer.robust == (exact > 0)
    assert (answer.counterexample is not None) == (exact < 0)
    assert answer.margin <= exact + 1e-6
    if answer.counterexample is not None:
        assert (answer.counterexample >= asked.lower).all()
        assert (answer.counterexample <= asked.upper).all()
        assert int(asked.net(answer.counterexample).argmax()) != label


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), kind=st.sampled_from(["residual", "pooling", "fc"]))
def test_without_time_the_margin_is_sound_and_the_image_undecided(seed: int, kind: str) -> None:
    asked, label = question(seed, 0.3, kind)
    answer = milp(asked, seconds=0.0)
    points = asked.lower + (asked.upper - asked.lower) * torch.rand(300, *asked.lower.shape[1:]).double()
    with torch.no_grad():
        output = asked.net(points)
    margins = (output[:, label : label + 1] - output).index_fill(1, torch.tensor(label), torch.inf)
    assert margins.min() >= answer.margin - 1e-9
    assert answer.counterexample is None
    assert answer.in_time == (answer.margin > PROVED)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_a_conjunction_holds_only_where_all_its_rows_do(seed: int) -> None:
    asked, _ = question(seed, 0.3)
    chance = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 3, generator=chance, dtype=torch.float64)
    points = asked.lower + (asked.upper - asked.lower) * torch.rand(200, *asked.lower.shape[1:]).double()
    with torch.no_grad():
        values = asked.net(points) @ rows.T
    # Shifted so that each row holds at some points; both at some, or at none.
    offsets = -values.quantile(0.3, dim=0)
    both = Question(asked.net, asked.lower, asked.upper, [(rows, offsets)])
    answer = milp(both)
    if bool((values + offsets <= -1e-4).all(1).any()):
        assert answer.counterexample is not None
    if answer.counterexample is not None:
        with torch.no_grad():
            # It was checked in exact arithmetic. This sum is rounded.
            assert (asked.net(answer.counterexample) @ rows.T + offsets <= 1e-12).all()


def test_a_conjunction_without_rows_holds_everywhere() -> None:
    asked, _ = question(1, 0.1)
    nothing = Question(asked.net, asked.lower, asked.upper, [(torch.zeros(0, 3), torch.zeros(0))])
    assert milp(nothing).counterexample is not None


def test_no_conjunctions_are_safe() -> None:
    asked, _ = question(1, 0.1)
    assert milp(asked.about([])).robust


def test_a_tie_is_neither_robust_nor_falsified() -> None:
    """z_0 = relu(x), z_1 = 0 over x in [-0.2, 0.2] around 0: the margin is exactly 0."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight.fill_(1.0)
        net[2].weight[0] = 1.0
    rows = torch.tensor([[1.0, -1.0]], dtype=torch.float64)
    ends = torch.tensor([[-0.2]], dtype=torch.float64), torch.tensor([[0.2]], dtype=torch.float64)
    answer = milp(Question(net, *ends, [(rows, torch.zeros(1).double())], strict=True))
    assert not answer.robust
    assert answer.counterexample is None
    assert answer.in_time


def test_a_float32_network_is_checked_in_its_own_precision() -> None:
    found = 0
    for seed in range(10):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 3))
        x = torch.rand(1, 4)
        label = int(net(x).argmax())
        broken = milp(Question.robustness(net, x, label, 0.9, 3)).counterexample
        if broken is not None:
            found += 1
            assert broken.dtype == torch.float32
            assert int(net(broken).argmax()) != label
    assert found > 0


def test_smooth_activations_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Sigmoid(), nn.Linear(3, 2))
    with pytest.raises(UnsupportedOperation, match="not piecewise linear"):
        milp(Question.robustness(net, torch.rand(1, 2), 0, 0.1, 2))


@pytest.mark.parametrize("search", list(searches()))
def test_an_image_that_float32_breaks_is_not_proved(search: str) -> None:
    """z_0 = relu(x + 2^24) - 2^24 is x, but 0 in float32; z_1 = 0.1. For x in [0.3, 0.5] the margin is 0.2, or -0.1."""
    net = nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 2))
    with torch.no_grad():
        for p, numbers in zip(net.parameters(), ([[1.0]], [2.0**24], [[1.0], [0.0]], [-(2.0**24), 0.1]), strict=True):
            p.copy_(torch.tensor(numbers))
    asked = Question.robustness(net, torch.tensor([[0.4]]), 0, 0.1, 2)
    assert int(net(asked.lower.float()).argmax()) == 1
    assert not searches()[search](asked, seconds=10).robust
