"""Rounding errors of linear bounds: refined bounds have smaller ones, which still cover every evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds import LinearBounds
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


def deep(seed: int, kind: str) -> nn.Module:
    """A float32 network whose interval bounds are much wider than its linear bounds."""
    torch.manual_seed(seed)
    act = nn.Sigmoid if kind == "sigmoid" else nn.ReLU
    hidden: list[nn.Module] = [nn.Sequential(nn.Linear(12, 12), act()) for _ in range(3)]
    if kind == "residual":
        hidden = [Residual(part) for part in hidden]
    net = nn.Sequential(nn.Linear(3, 12), act(), *hidden, nn.Linear(12, 2))
    for p in net.parameters():
        p.data *= 2
    return net


def permuted_run(net: nn.Module, x: Tensor, order: Tensor) -> Tensor:
    """Run the network with the hidden neurons, and so the terms of all later sums, in another order."""
    for layer in net.children():
        if isinstance(layer, nn.Linear) and layer.in_features == 12:
            x = (x[:, order].unsqueeze(1) * layer.weight[:, order]).cumsum(2)[..., -1] + layer.bias
        elif isinstance(layer, nn.Sequential):
            x = permuted_run(layer, x, order)
        elif isinstance(layer, Residual):
            x = x + permuted_run(nn.Sequential(*layer.children()), x, order)
        else:
            x = layer(x)
    return x


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["relu", "sigmoid", "residual"]),
    radius=st.sampled_from([0.0, 1e-6, 1e-3, 0.3]),
)
def test_refined_bounds_cover_every_order_of_sums(seed: int, kind: str, radius: float) -> None:
    net = deep(seed, kind)
    dice = torch.Generator().manual_seed(seed)
    x = torch.rand(1, 3, generator=dice).double()
    inputs = Rounded.between(x - radius, x + radius, Rounding(torch.float32, torch.float64, doubled=True))
    with torch.no_grad():
        bounds = LinearBounds(net, inputs, wide=torch.float32).refine()
        output, pre_activations = bounds.output(), bounds.intermediate_bounds
        assert all(bool((lower <= upper).all()) for lower, upper in pre_activations.values())
        share = torch.rand(200, 3, generator=dice).double().round(decimals=0 if seed % 2 else 3)
        points = (x - radius + 2 * radius * share).float()
        points = points[((points.double() >= x - radius) & (points.double() <= x + radius)).all(1)]
        for _ in range(4):
            values = permuted_run(net, points, torch.randperm(12, generator=dice)).double()
            assert bool((values >= output.lower).all())
            assert bool((values <= output.upper).all())


@pytest.mark.parametrize("kind", ["relu", "residual"])
def test_refined_bounds_lose_less_by_rounding(kind: str) -> None:
    net = deep(0, kind)
    x = torch.full((1, 3), 0.5).double()
    inputs = Rounded.between(x - 0.3, x + 0.3, Rounding(torch.float32, torch.float64, doubled=True))
    with torch.no_grad():
        before, after = (LinearBounds(net, inputs, wide=torch.float32) for _ in range(2))
        after.refine()
    smaller = 0
    for index, error in before._errors.of_nodes.items():
        assert bool((after._errors.of_nodes[index] <= error).all())
        smaller += bool((after._errors.of_nodes[index] < 0.7 * error).any())
    assert smaller
