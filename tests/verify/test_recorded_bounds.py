"""Recorded IBP margins: equal to those of the network, or not recorded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from advibp.bounds import Perturbation
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounding import Rounding
from advibp.verify.recorded_bounds import _example, margins, record

AROUND = [PIXELS, Perturbation(-1.0, None, scale=[1.0, 0.5, 0.0, 2.0] * 2), Perturbation(None, None)]


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
@pytest.mark.parametrize("kind", ["in place", "activations", "normalization", "convolutions"])
def test_the_program_equals_the_network(kind: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    nets: dict[str, nn.Module] = {
        "in place": InPlace(),
        "activations": nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 3)),
        "normalization": nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)),
        "convolutions": nn.Sequential(
            nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)
        ),
    }
    net, like = nets[kind].to(dtype).eval().requires_grad_(False), torch.empty(0, dtype=dtype)
    for around in AROUND if kind == "in place" else AROUND[:1]:
        program = record(net, (8,), 3, like, around)
        assert program is not None
        for seed in range(3, 8):
            x, eps, y = _example((8,), 3, like, around, seed)
            expected = margins(net, x, eps, y, around, Rounding(dtype, dtype))
            checked = net(around.rounded(x.repeat(3, 1), eps)).lower_margins(y.repeat(3))
            assert torch.equal(expected, checked.scatter(1, y.repeat(3)[:, None], torch.inf).amin(1))
            for _ in range(2):  # a program that writes to what it keeps would change
                assert torch.equal(program(x.clone(), eps.clone(), y), expected)


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
    assert record(net.eval().requires_grad_(False), (8,), 2, torch.empty(0)) is None
