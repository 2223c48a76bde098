"""Properties: sat with a point that shows it, unsat only where no point does, and neither without a reason."""

from __future__ import annotations

import itertools
import math
import tempfile
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from networks import network
from torch import Tensor, nn

from advibp import UserError
from advibp.verify.exact import witness
from advibp.verify.exact.falsify import falsify
from advibp.verify.exact.question import Question
from advibp.vnncomp.properties import decide
from advibp.vnncomp.vnnlib.vnnlib_file import Case, Property, read, write

torch.set_num_threads(1)


def exact(row: Tensor, y: Tensor, offset: Tensor) -> Fraction:
    products = (Fraction(a) * Fraction(b) for a, b in zip(row.tolist(), y.tolist(), strict=True))
    return sum(products, Fraction(offset.item()))


def holds(asked: Property, x: Tensor, y: Tensor) -> bool:
    """Check in exact arithmetic; a float64 sum excludes most cases first."""
    return any(
        bool((x >= case.lower).all() and (x <= case.upper).all())
        and any(
            bool((rows @ y + offsets <= 1e-9).all())
            and all(exact(row, y, offset) <= 0 for row, offset in zip(rows, offsets, strict=True))
            for rows, offsets in case.disjuncts
        )
        for case in asked.cases
    )


def asked_of(net: nn.Module, shape: tuple[int, ...], seed: int) -> Property:
    """Return two boxes, each with one or two conjunctions that hold, or almost hold, at some of its points."""
    dice = torch.Generator().manual_seed(seed)
    cases = []
    for _ in range(2):
        lower = torch.rand(math.prod(shape), generator=dice, dtype=torch.float64)
        upper = lower + 0.3 * torch.rand(len(lower), generator=dice, dtype=torch.float64)
        points = lower + (upper - lower) * torch.rand(200, len(lower), generator=dice, dtype=torch.float64)
        with torch.no_grad():
            outputs = net(points.view(-1, *shape))
        disjuncts = []
        for count in torch.randint(1, 3, (2,), generator=dice).tolist():
            rows = torch.randn(count, outputs.shape[1], generator=dice, dtype=torch.float64)
            values = outputs @ rows.T
            far = torch.rand((), generator=dice, dtype=torch.float64) * 0.6 - 0.2
            disjuncts.append((rows, -(values.amin(0) - far * (values.amax(0) - values.amin(0)))))
        cases.append(Case(lower, upper, disjuncts))
    return Property(math.prod(shape), 3, cases)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["fc", "few relus", "residual", "pooling", "smooth fc"]))
@example(seed=157, kind="residual")  # its outputs are constant: a sum rounded to 0 is 5e-17 above it
def test_a_verdict_is_right(seed: int, kind: str) -> None:
    made = network(seed, kind)
    asked = asked_of(made.net, made.shape, seed)
    found = decide(made.net, made.shape, asked, seconds=1000)
    if found.verdict == "sat":
        assert found.x is not None
        assert found.y is not None
        with torch.no_grad():
            assert torch.equal(made.net(found.x.view(1, *made.shape))[0], found.y)
        assert holds(asked, found.x, found.y)
    else:
        assert found.x is None
    if found.verdict == "unsat":
        dice = torch.Generator().manual_seed(seed + 1)
        for case in asked.cases:
            some = torch.rand(500, asked.inputs, generator=dice, dtype=torch.float64)
            points = case.lower + (case.upper - case.lower) * some.mul(2).sub(0.5).clamp(0, 1)
            with torch.no_grad():
                outputs = made.net(points.view(-1, *made.shape))
            assert not any(holds(asked, x, y) for x, y in zip(points, outputs, strict=True))
    assert found.verdict != "timeout"


def simple() -> nn.Module:
    """y = relu(x) on two inputs."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(2))
        net[2].weight.copy_(torch.eye(2))
    return net


def one(lower: list[float], upper: list[float], rows: list[list[float]], offsets: list[float]) -> Property:
    ends = [torch.tensor(end, dtype=torch.float64) for end in (lower, upper)]
    conjunction = torch.tensor(rows, dtype=torch.float64).view(-1, 2), torch.tensor(offsets, dtype=torch.float64)
    return Property(2, 2, [Case(*ends, [conjunction])])


def test_rows_of_a_conjunction_must_hold_together() -> None:
    """y_0 <= 0.2 and y_0 >= 0.8: each can hold, both can't, and no single row shows it."""
    both = one([-1, -1], [1, 1], [[1, 0], [-1, 0]], [-0.2, 0.8])
    assert decide(simple(), (2,), both).verdict == "unsat"
    for k in (0, 1):
        rows, offsets = both.cases[0].disjuncts[0]
        single = Property(
            2, 2, [Case(both.cases[0].lower, both.cases[0].upper, [(rows[k : k + 1], offsets[k : k + 1])])]
        )
        assert decide(simple(), (2,), single).verdict == "sat"


def test_true_is_sat_and_no_cases_are_unsat() -> None:
    assert decide(simple(), (2,), one([0, 0], [1, 1], [], [])).verdict == "sat"
    assert decide(simple(), (2,), Property(2, 2, [])).verdict == "unsat"


def test_smooth_activations_are_proved_or_unknown() -> None:
    net = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 2))
    far = one([0, 0], [1, 1], [[1, 0]], [1000.0])
    assert decide(net, (2,), far).verdict == "unsat"


def test_network_without_weights() -> None:
    assert decide(nn.ReLU(), (2,), one([-1, -1], [1, 1], [[1, 0]], [-0.5])).verdict == "sat"
    assert decide(nn.ReLU(), (2,), one([-1, -1], [1, 1], [[1, 0]], [0.5])).verdict == "unsat"


def test_intervals_prove_operations_without_linear_bounds() -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Hardtanh())
    assert decide(net, (2,), one([0, 0], [1, 1], [[1, 0]], [1.5])).verdict == "unsat"
    assert decide(net, (2,), one([0, 0], [1, 1], [[1, 1], [1, 0]], [1.5, 1.5])).verdict == "unsat"
    assert decide(nn.Hardtanh(), (2,), one([0, 0], [1, 1], [[1, -1], [0, 1]], [0.5, -0.4])).verdict == "unknown"


@pytest.mark.parametrize("end", [0.1, 0.7])
def test_a_point_is_in_its_box_although_the_network_rounds(end: float) -> None:
    """Rounding to float32 moves one end up and the other down."""
    ends = [torch.full((1, 2), end + by, dtype=torch.float64) for by in (-0.1, 0.0, 0.1)]
    everywhere = [(torch.zeros(0, 2, dtype=torch.float64), torch.zeros(0, dtype=torch.float64))]
    for lower, upper in itertools.pairwise(ends):
        for corner in (lower, upper):
            found = Question(simple(), lower, upper, everywhere).broken_by(corner)
            assert found is not None
            assert bool((lower <= found.double()).all() and (found.double() <= upper).all())
            assert bool((found - corner).abs().max() < 1e-7)
    # No number of float32 is there.
    assert Question(simple(), ends[1], ends[1], everywhere).broken_by(ends[1]) is None


@pytest.mark.parametrize(
    ("point", "sign", "breaks"),
    [
        ([2.0**53, 1.0, -(2.0**53)], 1.0, False),  # (2^53 + 1) - 2^53 is 0 in float64
        ([2.0**53, 1.0, -(2.0**53)], -1.0, True),
        ([2.0**53, -1.0, -(2.0**53)], 1.0, True),
        ([0.1, 0.2, -0.3], 1.0, False),  # 2^-55, in exact arithmetic
        ([0.1, 0.2, -0.3], -1.0, True),
        ([1.0, -1.0, 0.0], 1.0, True),
    ],
)
@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_a_counterexample_does_not_depend_on_the_order_of_a_sum(
    point: list[float], sign: float, breaks: bool, order: tuple[int, ...]
) -> None:
    x = torch.tensor([[point[k] for k in order]], dtype=torch.float64)
    unsafe = [(torch.full((1, 3), sign, dtype=torch.float64), torch.zeros(1, dtype=torch.float64))]
    net = nn.Identity()
    net.register_parameter("none", nn.Parameter(torch.zeros(1, dtype=torch.float64)))
    assert (Question(net, x, x, unsafe).broken_by(x) is not None) == breaks


def test_a_tie_is_no_misclassification() -> None:
    net = nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        net.weight.fill_(1.0)
    x = torch.full((1, 1), 0.5)
    assert Question.robustness(net, x, 0, 0.1, 2).broken_by(x) is None
    with torch.no_grad():
        net.weight[1].nextafter_(torch.tensor(2.0))
    assert Question.robustness(net, x, 0, 0.1, 2, real=True).broken_by(x) is not None


def test_difference_within_rounding_is_no_misclassification() -> None:
    """z_1 exceeds z_0 by one unit in the last place, which another order of summation may remove; or by 2^-10."""
    net = nn.Linear(2, 2, bias=False)
    x = torch.full((1, 2), 0.5)
    for much, wrong in ((2.0**-22, False), (2.0**-10, True)):
        with torch.no_grad():
            net.weight.copy_(torch.tensor([[1.0, 1.0], [1.0, 1.0 + much]]))
        assert int(net(x).argmax()) == 1
        assert (Question.robustness(net, x, 0, 0.1, 2).broken_by(x) is not None) == wrong


def test_a_counterexample_breaks_the_network_on_its_own() -> None:
    """A network may round differently on a batch than on one image, as matrix products do."""

    class Moody(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + (1.0 if len(x) == 1 else 0.0)

    net, ends = Moody(2, 2), [torch.full((1, 2), end, dtype=torch.float64) for end in (0.0, 1.0)]
    with torch.no_grad():
        net.weight.zero_()
        net.bias.zero_()
    unsafe = [(torch.tensor([[1.0, 0.0]], dtype=torch.float64), torch.tensor([-0.5], dtype=torch.float64))]
    question = Question(net, *ends, unsafe)
    assert question.broken_by(torch.cat(ends)) is None


@settings(max_examples=100)
@given(seed=st.integers(0, 10_000), scale=st.sampled_from([0, 1, 30, 300]))
def test_the_filter_keeps_all_that_may_hold(seed: int, scale: int) -> None:
    dice = torch.Generator().manual_seed(seed)
    rows = torch.randn(2, 4, generator=dice, dtype=torch.float64) * 10.0**-scale
    outputs = torch.randn(20, 4, generator=dice, dtype=torch.float64)
    outputs[:, 3] = -(outputs[:, :3] @ rows[0, :3]) / rows[0, 3]  # the first row is 0 but for rounding
    offsets = torch.tensor([0.0, -abs(10.0 ** (1 - scale))], dtype=torch.float64)
    kept = witness.candidates(outputs, rows, offsets)
    for output, candidate in zip(outputs, kept.tolist(), strict=True):
        wanted = all(exact(row, output, offset) <= 0 for row, offset in zip(rows, offsets, strict=True))
        assert witness.holds(output, rows, offsets) == wanted
        assert candidate or not wanted


def test_attacks_on_many_cases_take_a_quarter_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, spent = [0.0], list[float]()

    def slow(question: Question, *, seconds: float) -> None:
        spent.append(seconds)
        clock[0] += seconds + 1e-6

    monkeypatch.setattr("advibp.vnncomp.properties.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("advibp.vnncomp.properties.falsify", slow)
    case = one([0, 0], [1, 1], [[1, 0]], [1000.0]).cases[0]
    assert decide(simple(), (2,), Property(2, 2, [case] * 10), seconds=4).verdict == "unsat"
    assert sum(spent) <= 1


def test_zero_seconds_are_a_timeout() -> None:
    made = network(3, "residual")
    asked = asked_of(made.net, made.shape, 3)
    assert decide(made.net, made.shape, asked, seconds=0.0).verdict in ("timeout", "sat")


def test_property_of_another_network_is_refused() -> None:
    with pytest.raises(UserError, match="has 2 inputs, but the network has 3"):
        decide(nn.Linear(3, 2), (3,), one([0, 0], [1, 1], [[1, 0]], [0]))
    with pytest.raises(UserError, match="has 2 outputs"):
        decide(nn.Linear(2, 3), (2,), one([0, 0], [1, 1], [[1, 0]], [0]))


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_a_written_property_asks_the_same_as_the_question(seed: int) -> None:
    made = network(seed, "few relus")
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        label = int(made.net(x.clone()).argmax())
    asked = Question.robustness(made.net, x, label, 0.1, 3)
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "p.vnnlib"
        write(file, asked.lower.flatten(), asked.upper.flatten(), label, 3)
        again = read(file)
    assert torch.equal(again.cases[0].lower, asked.lower.flatten())
    assert torch.equal(again.cases[0].upper, asked.upper.flatten())
    for (rows, offsets), (theirs, shifts) in zip(again.cases[0].disjuncts, asked.unsafe, strict=True):
        assert torch.equal(rows, theirs)
        assert torch.equal(offsets, shifts)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(["fc", "residual", "pooling", "smooth conv"]))
def test_an_attack_returns_what_breaks_the_network_or_nothing(seed: int, kind: str) -> None:
    made = network(seed, kind)
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        label = int(made.net(x.clone()).argmax())
    broken = falsify(Question.robustness(made.net, x, label, 0.3, 3), seed=seed)
    if broken is not None:
        assert (broken - x).abs().max() <= 0.3 + 1e-12
        with torch.no_grad():
            assert int(made.net(broken.clone()).argmax()) != label
