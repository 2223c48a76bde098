"""The evaluator of tests/helpers/orders.py computes the same function in any order of summation."""

from __future__ import annotations

import copy
from fractions import Fraction

import pytest
import torch
from orders import MORE, ORDERS, Order, by_torch, dot, exactly_within, into_ball, outputs, random_order
from torch import nn

NETS = {
    "linear": nn.Sequential(nn.Flatten(), nn.Linear(128, 5)),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(128, 5, bias=False)),
    "conv": nn.Sequential(nn.Conv2d(2, 4, (3, 2), 2, 1, (2, 1), groups=2), nn.BatchNorm2d(4), nn.Flatten()),
    "transposed": nn.Sequential(nn.ConvTranspose2d(2, 4, 3, 2, 1, 1, groups=2), nn.Flatten()),
    "pooling": nn.Sequential(nn.AvgPool2d(3, 2, 1), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d((2, 1)), nn.Flatten()),
    "uncounted": nn.Sequential(nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.Flatten()),
}


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("order", [*ORDERS.values(), *MORE.values(), *map(random_order, range(10))], ids=repr)
def test_every_order_approximates_the_network(name: str, order: Order) -> None:
    net = copy.deepcopy(NETS[name]).eval()
    x = torch.rand(3, 2, 8, 8)
    double = copy.deepcopy(net).double()
    assert torch.allclose(outputs(double, x.double(), order), by_torch(double, x.double()), rtol=1e-12, atol=1e-12)
    assert torch.allclose(outputs(net, x, order), by_torch(net, x), rtol=1e-4, atol=1e-5)


def test_order_of_summation() -> None:
    large = torch.tensor([1e8, 1.0, -1e8, 1.0])
    assert dot(large, None, None, Order()).item() == 1
    assert dot(large, None, None, Order(lanes=2)).item() == 2  # (1e8 - 1e8) + (1 + 1)
    assert dot(large, None, None, Order(lanes=0)).item() == 2
    assert dot(large, None, None, Order(block=2)).item() == 0  # (1e8 + 1) + (-1e8 + 1)
    assert dot(large, None, None, Order(reverse=True)).item() == 0
    assert dot(large, None, torch.tensor(1.0), Order(bias_last=True)).item() == 2
    assert dot(torch.tensor([1e-30, 1e-30]), torch.tensor([1e-10, 1e-10]), None, Order(flush=True)).item() == 0


def test_a_fused_product_is_not_rounded() -> None:
    a, b = torch.tensor([1 + 2.0**-13]), torch.tensor([1 - 2.0**-13])
    bias = torch.tensor(-1.0)
    assert dot(a, b, bias, Order()).item() == 0
    assert dot(a, b, bias, Order(fma=True)).item() == -(2.0**-26)


def test_points_lie_exactly_in_the_ball() -> None:
    x, eps = torch.rand(2000), torch.tensor(0.1, dtype=torch.float64)
    x[:500] *= 1e-9
    for side in (-1, 1):
        points = into_ball(x + side * 0.1, x, eps)
        for a, b in zip(points.tolist(), x.tolist(), strict=True):
            assert abs(Fraction(a) - Fraction(b)) <= Fraction(0.1)
            assert 0 <= a <= 1
    near = (x.double() + 0.1).float()
    wanted = [abs(Fraction(a) - Fraction(b)) <= Fraction(0.1) for a, b in zip(near.tolist(), x.tolist(), strict=True)]
    assert exactly_within(near, x, eps).tolist() == wanted
    assert 0 < sum(wanted) < len(wanted)
