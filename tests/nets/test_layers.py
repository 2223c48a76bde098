"""Residual blocks and BatchNorm, as functions and on boxes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from advibp import Box, nets

SMALL = "Conv 4 3x3+1p1 BN, Res 4+1 BN, Res 6+2 BN, Res 5+1, FC 8 BN"


def with_statistics(net: nn.Module, seed: int) -> nn.Module:
    """Return the network in evaluation mode and float64, with statistics and scales of both signs as after training."""
    generator = torch.Generator().manual_seed(seed)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2, generator=generator)
            nn.init.normal_(module.weight, generator=generator)
            nn.init.normal_(module.bias, generator=generator)
    return net.double().eval()


@settings(max_examples=25)
@given(
    spec=st.sampled_from([SMALL, "cnn7-narrow", "resnet-small"]),
    init=st.sampled_from(["ibp", "default"]),
    eps=st.floats(0, 0.5),
    seed=st.integers(0, 2**31),
)
@torch.no_grad()
def test_bounds_contain_sampled_points(spec: str, init: nets.Init, eps: float, seed: int) -> None:
    net = with_statistics(nets.build(spec, (2, 8, 8), 3, init=init, seed=seed, mean=0.4, std=0.3), seed)
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(2, 2, 8, 8, dtype=torch.float64, generator=generator)
    out = net(Box.ball(x, eps))
    slack = 1e-9 * (1 + out.upper.abs() + out.lower.abs())
    for corner in (False, True):
        step = torch.rand(20, *x.shape, dtype=torch.float64, generator=generator) * 2 - 1
        points = (x + eps * (step.sign() if corner else step)).clamp(0, 1)
        z = net(points.flatten(0, 1)).unflatten(0, (20, 2))
        assert bool((z >= out.lower - slack).all())
        assert bool((z <= out.upper + slack).all())
    points = Box.ball(x, 0.0)
    torch.testing.assert_close(net(points).center, net(x))


@pytest.mark.parametrize(("channels", "filters", "stride"), [(3, 3, 1), (3, 5, 1), (3, 3, 2), (3, 5, 3)])
def test_residual_block_adds_its_branches(channels: int, filters: int, stride: int) -> None:
    block = with_statistics(nets.Residual(channels, filters, stride), 0)
    x = torch.rand(2, channels, 7, 10, dtype=torch.float64)
    out = block(x)
    assert out.shape == (2, filters, -(-7 // stride), -(-10 // stride))
    torch.testing.assert_close(out, (block.body(x) + block.skip(x)).relu())
    if (channels, stride) == (filters, 1):
        assert torch.equal(block.skip(x), x)


def test_every_parameter_of_a_residual_network_is_trained() -> None:
    net = nets.build("resnet-small", (3, 16, 16), seed=0)
    net(torch.rand(8, 3, 16, 16)).square().sum().backward()
    silent = [name for name, p in net.named_parameters() if p.grad is None]
    assert not silent
