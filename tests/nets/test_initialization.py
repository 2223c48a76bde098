"""Initial weights: their spread, and the width of boxes."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from advibp import Box, nets


def test_ibp_init_has_the_documented_spread_except_in_the_last_layer() -> None:
    plain, net = nets.build("dm-small", seed=3), nets.build("dm-small", seed=3, init="ibp")
    layers = [m for m in net if isinstance(m, nn.Conv2d | nn.Linear)]
    for layer in layers[:-1]:
        fan_in = layer.weight[0].numel()
        expected = math.sqrt(2 * math.pi) / fan_in
        error = 5 * expected / math.sqrt(2 * layer.weight.numel())  # five standard errors of a standard deviation
        assert abs(layer.weight.std().item() - expected) < error
        assert not layer.bias.any()
    assert torch.equal(layers[-1].weight, plain[-1].weight)
    assert torch.equal(layers[-1].bias, plain[-1].bias)


def test_ibp_init_works_on_any_module() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.last = nn.Linear(4, 2)

    net = Mine()
    last = net.last.weight.clone()
    assert nets.ibp_init(net) is net
    assert torch.equal(net.last.weight, last)


def test_ibp_init_does_not_change_batchnorm() -> None:
    net = nets.build("cnn7-narrow", seed=0)
    for layer in net:
        if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d):
            assert bool((layer.weight == 1).all())
            assert not layer.bias.any()


@pytest.mark.parametrize("layer", [nn.Linear(3, 2), nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 3, groups=4)])
def test_new_layers_are_recognized(layer: nn.Module) -> None:
    for seed in range(200):
        torch.manual_seed(seed)
        layer.reset_parameters()  # type: ignore[operator]
        assert nets.is_freshly_initialized(layer)


def test_changed_weights_are_not_taken_for_new_ones() -> None:
    def new() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))

    assert nets.is_freshly_initialized(new())
    assert not nets.is_freshly_initialized(nets.ibp_init(new()))
    net = new()
    net[4].weight.data.mul_(3)
    assert not nets.is_freshly_initialized(net)
    frozen = new()
    frozen[0].requires_grad_(False)
    assert not nets.is_freshly_initialized(frozen)
    used = new()
    used(torch.rand(4, 1, 3, 3))
    assert not nets.is_freshly_initialized(used)  # BatchNorm has seen images
    assert not nets.is_freshly_initialized(nn.ReLU())


@torch.no_grad()
def width(net: nn.Module, x: torch.Tensor) -> float:
    return float(net.eval()(Box(center=x, radius=0.1)).radius.mean()) / 0.1


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("batchnorm", [True, False])
def test_a_residual_block_keeps_the_width_of_a_box(stride: int, batchnorm: bool) -> None:
    """In expectation. With torch's weights the box becomes several times wider."""
    torch.manual_seed(0)
    x = torch.zeros(4, 32, 16, 16)
    block, plain = (nets.Residual(32, 32, stride, batchnorm=batchnorm) for _ in range(2))
    nets.ibp_init(nn.Sequential(block, nn.Linear(1, 1)))
    # Padding has width zero, so sums at the border have fewer terms.
    assert 0.7 < width(block, x) < 1.1
    assert width(plain, x) > 2


@pytest.mark.parametrize("name", ["dm-small", "cnn7-narrow", "resnet-small"])
def test_boxes_neither_explode_nor_vanish(name: str) -> None:
    x = torch.rand(4, 1, 28, 28)
    ibp, plain = (nets.build(name, init=init, seed=0)[:-1] for init in ("ibp", "default"))
    assert 0.2 < width(ibp, x) < 2
    assert width(plain, x) > 10
