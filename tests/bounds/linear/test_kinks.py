"""Kinks: a network is a linear function of its input and of the outputs of its kinks, which lie within their bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from networks import network
from torch import Tensor, nn

from advibp.bounds.box import Box
from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.linear.crown import LinearBounds, crown
from advibp.bounds.linear.kinks import Kinks, UndecidedWindows, UnstableRelus

KINDS = ("fc", "conv", "residual", "pooling", "batchnorm")


def values_of_kinks(kinks: Kinks, x: Tensor) -> tuple[Tensor, dict[int, Tensor]]:
    """Return the outputs of the kinks at one point (1, ...), and all values of the tape."""
    values = dict(kinks.bounds.tape.trace(x))
    values = {index: value for index, value in values.items() if isinstance(value, Tensor)}
    found = [values[number].flatten()[k.outputs] for number, k in kinks.of.items()]
    return torch.cat(found) if found else x.new_zeros(0), values


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000), kind=st.sampled_from(KINDS), eps=st.floats(0.01, 0.5))
@torch.no_grad()
def test_values_are_linear_in_input_and_kinks(seed: int, kind: str, eps: float) -> None:
    made = network(seed, kind)
    dice = torch.Generator().manual_seed(seed)
    x = torch.rand(1, *made.shape, generator=dice, dtype=torch.float64)
    box = Box.ball(x, eps, None)
    kinks = Kinks(crown(made.net, box))
    point = x + eps * (2 * torch.rand(x.shape, generator=dice, dtype=torch.float64) - 1)
    v, _ = values_of_kinks(kinks, point)
    assert len(v) == kinks.count
    output = made.net(point.clone())
    ways = kinks.linear(kinks.bounds.tape.output, torch.eye(output.shape[1], dtype=torch.float64))
    assert torch.allclose(ways.inputs @ point.flatten() + ways.kinks @ v + ways.constants, output[0])
    for found in kinks.of.values():
        if isinstance(found, UnstableRelus) and found.pre_activation and len(found.elements):
            ways = kinks.elements(found.pre_activation, found.elements)
            z = ways.inputs @ point.flatten() + ways.kinks @ v + ways.constants
            assert (found.lower - 1e-9 <= z).all()
            assert (z <= found.upper + 1e-9).all()
            assert (found.lower < 0).all()
            assert (found.upper > 0).all()


@torch.no_grad()
def test_windows_list_possible_maxima() -> None:
    net = nn.Sequential(nn.MaxPool2d(2), nn.Flatten(), nn.Linear(1, 2)).double()
    x = torch.tensor([[[[0.0, 0.5], [0.55, 0.6]]]], dtype=torch.float64)
    kinks = Kinks(LinearBounds(net, Box.ball(x, 0.1, None)))
    (choices,) = kinks.of.values()
    assert isinstance(choices, UndecidedWindows)
    assert [e.tolist() for e in choices.elements] == [[1, 2, 3]]  # element 0 is at most 0.1, another one at least 0.5
    certain = Kinks(LinearBounds(net, Box.ball(x, 0.02, None)))
    assert certain.count == 0


@torch.no_grad()
def test_stable_relus_are_not_kinks() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    net[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]))
    net[0].bias.copy_(torch.tensor([-0.5, -2.0, 3.0]))  # unstable, inactive, active
    kinks = Kinks(LinearBounds(net, Box.ball(torch.full((1, 2), 0.5).double(), 0.2)))
    assert kinks.count == 1
    way = kinks.linear(kinks.bounds.tape.output, torch.tensor([[1.0, 0.0]]).double())
    weight = net[2].weight[0]
    assert torch.allclose(way.kinks, weight[:1].unsqueeze(0))
    assert torch.allclose(way.inputs, weight[2].expand(1, 2))
    assert torch.allclose(way.constants, net[2].bias[:1] + 3 * weight[2])


def test_activations_that_are_not_piecewise_linear_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 2)).double()
    with pytest.raises(UnsupportedOperation, match=r"'1' \(tanh\) is not piecewise linear.*crown"):
        Kinks(LinearBounds(net, Box.ball(torch.rand(1, 2).double(), 0.1)))


def test_several_images_are_refused() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)).double()
    with pytest.raises(UnsupportedOperation, match="for one image, not for 2"):
        Kinks(LinearBounds(net, Box.ball(torch.rand(2, 2).double(), 0.1)))
