"""Sets refuse casts to low precision and averages with negative weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from advibp.bounds import Box, LinearBounds, Zonotope
from advibp.bounds.domain import UnsupportedOperation

CASTS: dict[str, Callable[[Any], Any]] = {
    "half": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "to": lambda x: x.to(torch.float16),
    "to by name": lambda x: x.to(dtype=torch.bfloat16),
    "to another": lambda x: x.to(torch.zeros((), dtype=torch.half)),
    "float8": lambda x: x.to(torch.float8_e5m2),
    "type": lambda x: x.type(torch.half),
    "sum": lambda x: x.sum(1, dtype=torch.half),
    "torch.sum": lambda x: torch.sum(x, 1, dtype=torch.half),
    "mean": lambda x: x.mean(1, dtype=torch.bfloat16),
    "cumsum": lambda x: x.cumsum(1, dtype=torch.half),
}


class Layer(nn.Module):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("kind", [Box, Zonotope])
@pytest.mark.parametrize("name", CASTS)
def test_casts_to_low_precision_name_their_layer(name: str, kind: Any) -> None:
    net = nn.Sequential(nn.Identity(), Layer(CASTS[name]))
    with pytest.raises(UnsupportedOperation, match=r"layer '1' \(Layer\)"):
        net(kind.ball(torch.rand(2, 4), 0.1))


@pytest.mark.parametrize("kind", [Box, Zonotope])
def test_sets_keep_their_dtype_or_gain_precision(kind: Any) -> None:
    low = kind.ball(torch.rand(2, 4, dtype=torch.bfloat16), 0.1)
    assert (low + 1).sum(1).dtype == torch.bfloat16
    assert torch.cat([low, low], 1).dtype == torch.bfloat16
    assert low.to(torch.bfloat16).dtype == torch.bfloat16
    assert low.float().dtype == torch.float32
    assert kind.ball(torch.rand(2, 4, dtype=torch.float64), 0.1).float().dtype == torch.float32


POOLS: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "2d by position": (4, lambda x: F.avg_pool2d(x, 2, 2, 0, False, True, -4)),
    "2d by name": (4, lambda x: F.avg_pool2d(x, 2, divisor_override=-4)),
    "2d layer": (4, nn.AvgPool2d(2, divisor_override=-4)),
    "3d by position": (5, lambda x: F.avg_pool3d(x, 2, 2, 0, False, True, -8)),
    "3d by name": (5, lambda x: F.avg_pool3d(x, 2, divisor_override=-8)),
}


@pytest.mark.parametrize("kind", [Box, Zonotope])
@pytest.mark.parametrize("name", POOLS)
def test_a_negative_divisor_is_refused(name: str, kind: Any) -> None:
    dims, pool = POOLS[name]
    x = torch.rand(2, 1, *[4] * (dims - 2))
    with pytest.raises(UnsupportedOperation, match="negative divisor"):
        Layer(pool)(kind.ball(x, 0.1))
    with pytest.raises(UnsupportedOperation, match="negative divisor"):
        LinearBounds(nn.Sequential(Layer(pool), nn.Flatten()), Box.ball(x, 0.1))


@pytest.mark.parametrize("kind", [Box, Zonotope])
def test_a_divisor_of_zero_is_refused_and_a_positive_one_is_not(kind: Any) -> None:
    x = torch.rand(2, 1, 4, 4)
    with pytest.raises(UnsupportedOperation, match="divisor"):
        F.avg_pool2d(kind.ball(x, 0.1), 2, 2, 0, False, True, 0)
    found = F.avg_pool2d(kind.ball(x, 0.1), 2, 2, 0, False, True, 3)
    assert torch.equal(found.center, F.avg_pool2d(Box.ball(x, 0.1).center, 2, 2, 0, False, True, 3))
    assert bool((found.radius > 0).all())
