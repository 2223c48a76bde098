"""Programs: their minima are the network's, and their bounds hold whatever the solver says."""

from __future__ import annotations

import math
import time

import highspy
import numpy as np
import pytest
import torch
from exact import exact_margins
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import network
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.linear.crown import LinearBounds, crown
from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact.integer_program import Program, Split


def case(seed: int, kind: str, eps: float) -> tuple[nn.Module, Tensor, LinearBounds, int]:
    """A network, an image, its bounds by CROWN, and its class."""
    made = network(seed, kind)
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        return made.net, x, crown(made.net, Box.ball(x, eps, None)), int(made.net(x.clone()).argmax())


def margin_row(bounds: LinearBounds, label: int, other: int) -> Tensor:
    row = torch.zeros(1, 3, dtype=torch.float64)
    row[0, label] += 1
    row[0, other] -= 1
    return row


@settings(max_examples=12)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.02, 0.5))
def test_the_integer_program_finds_the_exact_margin_and_the_relaxed_one_is_below(seed: int, eps: float) -> None:
    net, _, bounds, label = case(seed, "few relus", eps)
    exact = exact_margins(net, bounds.box, label)
    kinks = Kinks(bounds)
    whole, relaxed = (Program(kinks, bounds.tape.output, integer=integer) for integer in (True, False))
    for other in range(3):
        if other != label:
            row = kinks.linear(bounds.tape.output, margin_row(bounds, label, other))
            found, below = whole.minimize(row), relaxed.minimize(row)
            # Rows are relaxed by the solver's tolerances, and the bound loses what those may be worth.
            assert found.lower <= float(exact[other]) + 1e-9
            assert abs(found.claimed - float(exact[other])) < 1e-4
            assert below.lower <= found.claimed + 1e-6
            linear = float(bounds.lower(bounds.tape.output, margin_row(bounds, label, other)))
            assert below.lower >= linear - 1e-5  # CROWN's lines are among those of the triangle
            assert found.x is not None
            with torch.no_grad():
                output = net(torch.from_numpy(found.x).view(bounds.box.shape))[0]
            assert abs(float(output[label] - output[other]) - found.claimed) < 1e-4


@settings(max_examples=15)
@given(
    seed=st.integers(0, 10_000), kind=st.sampled_from(["pooling", "residual", "smooth fc"]), eps=st.floats(0.02, 0.2)
)
@torch.no_grad()
def test_no_point_is_below_the_minimum(seed: int, kind: str, eps: float) -> None:
    if kind == "smooth fc":  # of leaky ReLUs alone
        net: nn.Module = nn.Sequential(
            nn.Linear(3, 5), nn.LeakyReLU(0.2), nn.Linear(5, 4), nn.LeakyReLU(0.1), nn.Linear(4, 3)
        )
        torch.manual_seed(seed)
        net = net.double().apply(lambda m: nn.init.normal_(m.weight) if isinstance(m, nn.Linear) else None)
        x = torch.rand(1, 3).double()
        bounds, label = crown(net, Box.ball(x, eps, None)), 0
    else:
        net, x, bounds, label = case(seed, kind, eps)
    kinks = Kinks(bounds)
    row = margin_row(bounds, label, (label + 1) % 3)
    found = Program(kinks, bounds.tape.output, integer=True).minimize(kinks.linear(bounds.tape.output, row), seconds=5)
    points = x + eps * (2 * torch.rand(500, *x.shape[1:]).double() - 1).clamp(-0.5, 0.5) * 2
    assert (net(points) @ row[0]).min() >= found.lower - 1e-6
    if found.finished:
        assert found.x is not None
        reached = float(net(torch.from_numpy(found.x).view(x.shape)) @ row[0])
        # Within the gap that HiGHS allows, and what the bound loses by relaxed rows and the solver's tolerances.
        assert found.lower - 1e-5 < reached < found.lower + 1e-3


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.05, 0.5))
@example(seed=971, eps=0.5)
@torch.no_grad()
def test_both_sides_of_a_split_give_the_minimum(seed: int, eps: float) -> None:
    _, _, bounds, label = case(seed, "few relus", eps)
    kinks = Kinks(bounds)
    row = margin_row(bounds, label, (label + 1) % 3)
    whole = Program(kinks, bounds.tape.output, integer=True).minimize(kinks.linear(bounds.tape.output, row)).lower
    is_relu = [b for b in kinks.of.values() if len(b.outputs)]
    if not is_relu:
        return
    entering, element = is_relu[-1].pre_activation, int(is_relu[-1].elements[0])
    halves = []
    for positive in (True, False):
        half = bounds.take(torch.tensor([0]))
        lower, upper = (end.clone() for end in half.intermediate_bounds[entering])
        (lower if positive else upper).view(-1)[element] = 0.0
        half.tighten(entering, lower, upper)
        inside = Kinks(half)
        assert inside.count < kinks.count
        program = Program(inside, half.tape.output, integer=True, splits=[Split(entering, element, positive)])
        halves.append(program.minimize(inside.linear(half.tape.output, row)).lower)
    assert abs(min(halves) - whole) < 1e-4  # rows are relaxed by ten tolerances of HiGHS


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.05, 0.5))
def test_the_largest_of_some_rows_is_at_least_the_largest_of_their_minima(seed: int, eps: float) -> None:
    net, x, bounds, _ = case(seed, "few relus", eps)
    kinks = Kinks(bounds)
    rows = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    functions = kinks.linear(bounds.tape.output, rows, torch.tensor([0.0, 0.1, -0.2], dtype=torch.float64))
    found = Program(kinks, bounds.tape.output, integer=True, largest_of=functions).minimize()
    single = Program(kinks, bounds.tape.output, integer=True)
    each = [
        single.minimize(
            kinks.linear(
                bounds.tape.output, rows[k : k + 1], float(functions.constants.new_tensor([0.0, 0.1, -0.2])[k])
            )
        ).lower
        for k in range(3)
    ]
    assert found.lower >= max(each) - 1e-5
    points = x + eps * (2 * torch.rand(500, *x.shape[1:]).double() - 1)
    with torch.no_grad():
        largest = (net(points) @ rows.T + torch.tensor([0.0, 0.1, -0.2])).amax(1)
    assert largest.min() >= found.lower - 1e-6


def test_an_infeasible_split_has_an_infinite_minimum() -> None:
    net = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 2)).double()
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0], [-1.0]]))
        net[0].bias.copy_(torch.tensor([-0.5, 0.4]))  # x > 0.5, x < 0.4
        bounds = LinearBounds(net, Box.ball(torch.tensor([[0.5]]).double(), 0.5))
        entering = next(iter(bounds.intermediate_bounds))
        lower, upper = (end.clone() for end in bounds.intermediate_bounds[entering])
        bounds.tighten(entering, lower.clamp(min=0), upper)
        kinks = Kinks(bounds)
        program = Program(
            kinks, bounds.tape.output, integer=False, splits=[Split(entering, k, positive=True) for k in (0, 1)]
        )
        assert program.minimize(kinks.linear(bounds.tape.output, torch.eye(2).double()[:1])).lower == math.inf


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_any_dual_values_yield_a_lower_bound(seed: int) -> None:
    """Weak duality, on which the bounds of linear programs rest: the solver may return nonsense."""
    net, _, bounds, label = case(seed, "few relus", 0.2)
    kinks = Kinks(bounds)
    program = Program(kinks, bounds.tape.output, integer=False)
    row = kinks.linear(bounds.tape.output, margin_row(bounds, label, (label + 1) % 3))
    cost = np.concatenate(
        [
            row.inputs[0].numpy(),
            row.kinks[0].numpy(),
            np.zeros(program._columns - row.inputs.shape[1] - row.kinks.shape[1]),
        ]
    )
    exact = float(exact_margins(net, bounds.box, label)[(label + 1) % 3])
    chance = np.random.default_rng(seed)
    for scale in (0.0, 0.1, 10.0):
        dual = scale * chance.standard_normal(program._rows)
        assert program._weak(cost, dual) + float(row.constants[0]) <= exact + 1e-6


def test_without_time_the_bound_is_sound() -> None:
    _, _, bounds, label = case(3, "few relus", 0.2)
    kinks = Kinks(bounds)
    row = kinks.linear(bounds.tape.output, margin_row(bounds, label, (label + 1) % 3))
    solved = Program(kinks, bounds.tape.output, integer=True).minimize(row, seconds=0.0)
    assert not solved.finished
    assert -math.inf < solved.lower


def test_a_solver_that_gives_up_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """HiGHS has been seen to end with an error and a dual bound above the true minimum."""
    _, _, bounds, label = case(3, "few relus", 0.5)
    kinks = Kinks(bounds)
    row = kinks.linear(bounds.tape.output, margin_row(bounds, label, (label + 1) % 3))
    program = Program(kinks, bounds.tape.output, integer=True)
    assert program.has_choices
    assert program.minimize(row).lower > -math.inf
    monkeypatch.setattr(program._highs, "getModelStatus", lambda: highspy.HighsModelStatus.kSolveError)
    assert program.minimize(row).lower == -math.inf


@pytest.mark.parametrize("integer", [True, False])
def test_a_program_without_splits_is_never_infeasible(monkeypatch: pytest.MonkeyPatch, integer: bool) -> None:
    """The network itself is one: a solver that finds none errs, and an empty domain would prove everything."""
    _, _, bounds, label = case(3, "few relus", 0.5)
    kinks = Kinks(bounds)
    row = kinks.linear(bounds.tape.output, margin_row(bounds, label, (label + 1) % 3))
    program = Program(kinks, bounds.tape.output, integer=integer)
    monkeypatch.setattr(program._highs, "getModelStatus", lambda: highspy.HighsModelStatus.kInfeasible)
    assert program.minimize(row).lower == -math.inf


def test_seconds_are_those_of_one_call() -> None:
    """HiGHS counts them in two ways; by the wrong one every limit is twice as long as the one before."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(10, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 2)).double()
    with torch.no_grad():
        bounds = crown(net, Box.ball(torch.full((1, 10), 0.5).double(), 0.5))
    kinks = Kinks(bounds)
    program = Program(kinks, bounds.tape.output, integer=True)
    row = kinks.linear(bounds.tape.output, torch.tensor([[1.0, -1.0]]).double())
    began = time.monotonic()
    for _ in range(9):
        assert not program.minimize(row, seconds=0.05).finished
    assert time.monotonic() - began < 10  # 25 if they add up
