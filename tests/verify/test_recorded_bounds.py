"""Recorded IBP margins: equal to those of the network, or not recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advibp.bounds.box import Box
from advibp.bounds.rounding import Rounding
from advibp.verify.recorded_bounds import _example, margins, record

CPU = torch.device("cpu")


class InPlace(nn.Module):
    """Writes to its input and to results, as user networks do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        x -= 0.5
        x /= 0.25
        return self.last(torch.relu_(self.layer(x)) + x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["in place", "activations", "normalization"])
def test_the_program_equals_the_network(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        "in place": InPlace(),
        "activations": nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 3)),
        "normalization": nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
    }
    net = nets[kind].to(dtype).eval().requires_grad_(False)
    program = record(net, (2, 8), dtype, CPU)
    assert program is not None
    for seed in range(3, 8):
        center, radius, y = _example((2, 8), dtype, CPU, seed)
        expected = margins(net, Box._of(center.clone(), radius.clone()), Rounding(dtype, dtype), y)
        for _ in range(2):  # a program that writes to what it keeps would change
            assert torch.equal(program(center.clone(), radius.clone(), y), expected)


class ReadsBounds(nn.Module):
    """Depends on the values of a set, which a recording can't represent."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 3)

    def forward(self, x: Any) -> Any:
        if not isinstance(x, torch.Tensor) and float(x.center.mean()) > 0.4:
            return self.layer(x) * 2
        return self.layer(x)


@pytest.mark.parametrize("net", [ReadsBounds(), nn.Linear(7, 3), nn.GRU(8, 3)], ids=lambda net: type(net).__name__)
def test_networks_that_can_not_be_recorded(net: nn.Module) -> None:
    assert record(net.eval().requires_grad_(False), (2, 8), torch.float32, CPU) is None
