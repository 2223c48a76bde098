"""Optimized intermediate bounds: they contain the network's values, and are never worse than CROWN's."""

from __future__ import annotations

import math
import time

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network
from torch import Tensor, nn

from advibp.bounds.linear.alpha_intermediate import optimize_intermediate
from advibp.bounds.linear.crown import LinearBounds
from advibp.verify.exact.question import Question

KINDS = ("fc", "conv", "residual", "pooling", "batchnorm", "smooth fc", "smooth conv", "functional")


def optimized(asked: Question, deadline: float = math.inf) -> tuple[LinearBounds, dict[int, tuple[Tensor, Tensor]]]:
    """Return optimized bounds, and the intermediate bounds before."""
    bounds = asked.refined()
    assert bounds is not None
    before = dict(bounds.intermediate_bounds)
    optimize_intermediate(bounds, deadline=deadline, steps=4)
    return bounds, before


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(KINDS),
    eps=st.floats(0.01, 0.4),
    real=st.booleans(),
    single=st.booleans(),
)
def test_bounds_contain_the_values_of_the_network(seed: int, kind: str, eps: float, real: bool, single: bool) -> None:
    made, dice = network(seed, kind), torch.Generator().manual_seed(seed)
    net = made.net.float() if single else made.net
    x = torch.rand(1, *made.shape, generator=dice, dtype=next(net.parameters()).dtype)
    asked = Question.robustness(net, x, 0, eps, 3, real=real)
    bounds, before = optimized(asked)
    for index, (lower, upper) in bounds.intermediate_bounds.items():
        assert (lower >= before[index][0]).all()
        assert (upper <= before[index][1]).all()
    slack = 1e-5 if real and single else 1e-9 if real else 0.0
    for _ in range(10):
        share = torch.rand(x.shape, generator=dice, dtype=torch.float64)
        share = torch.where(torch.rand(x.shape, generator=dice) < 0.5, share.round(), share)
        point, inside = asked._inside(torch.lerp(asked.lower, asked.upper, share))
        assert inside.all()
        with torch.no_grad():
            # (clones, because an activation may write to its input)
            values = {i: v.clone() for i, v in bounds.tape.trace(point.double()) if isinstance(v, Tensor)}
        for index, (lower, upper) in bounds.intermediate_bounds.items():
            if index in values:
                rounding = slack + (1e-12 if single else 0.0)
                assert (values[index] >= lower - rounding).all()
                assert (values[index] <= upper + rounding).all()


def test_margins_get_better() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(10, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 3)
    )
    asked = Question.robustness(net, torch.rand(1, 10), 0, 0.1, 3)
    before = list(asked.refined_margins)
    asked.tighten(until=math.inf)
    assert all(new > old for new, old in zip(asked.refined_margins, before, strict=True))


def test_layers_whose_neurons_become_stable() -> None:
    """The last layer is tightened twice. At the second time no neuron may be left."""
    for seed in range(30):
        torch.manual_seed(seed)
        net = nn.Sequential(
            *(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 14), nn.ReLU(), nn.Linear(14, 2), nn.ReLU(), nn.Linear(2, 2))
        )
        for layer in net.children():
            if isinstance(layer, nn.Linear):
                layer.weight.data *= 1.5
        x = torch.rand(1, 4)
        optimized(Question.robustness(net, x, int(net(x).argmax()), 0.3, 2))


def test_no_time_changes_nothing() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 20), nn.ReLU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3)).double()
    bounds, before = optimized(
        Question.robustness(net, torch.rand(1, 4).double(), 0, 0.2, 3), deadline=time.monotonic() - 1
    )
    for index, (lower, upper) in bounds.intermediate_bounds.items():
        assert torch.equal(lower, before[index][0])
        assert torch.equal(upper, before[index][1])


def test_slopes_of_leaky_relus_are_not_below_their_limit() -> None:
    """0.01 rounded to float32 is smaller than 0.01, and a lower line with that slope would be above the activation."""
    net = nn.Sequential(nn.Linear(1, 1), nn.LeakyReLU(0.01), nn.Linear(1, 1), nn.LeakyReLU(0.01), nn.Linear(1, 1))
    net = net.double()
    for p in net.parameters():
        p.data.fill_(1.0 if p.dim() == 2 else 0.0)
    net[0].weight.data.fill_(1e6)
    point = torch.tensor([[-1.0]]).double()
    asked = Question(net, point, torch.ones(1, 1).double(), [(torch.ones(1, 1).double(), torch.zeros(1).double())])
    bounds, _ = optimized(asked)
    with torch.no_grad():
        values = {i: v.clone() for i, v in bounds.tape.trace(point) if isinstance(v, Tensor)}
    assert all((values[i] >= lower).all() for i, (lower, _) in bounds.intermediate_bounds.items())
