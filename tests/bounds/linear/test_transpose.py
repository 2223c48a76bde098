"""Transposed convolutions equal the gradient of the convolution, whichever way they are computed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds import Box, Rounded
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.neuron_bounds import neuron_bounds
from advibp.bounds.linear.transpose import Convolution, transposed_convolution

torch.set_num_threads(1)
sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=60)
@given(
    kernel=sizes,
    stride=sizes,
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    dilation=sizes,
    channels=st.sampled_from([(1, 3), (2, 5), (4, 2), (6, 4)]),
    extra=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    last=st.booleans(),
)
def test_transposed_convolutions(
    kernel: tuple[int, int],
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
    channels: tuple[int, int],
    extra: tuple[int, int],
    last: bool,
) -> None:
    """With and without a gradient, in both memory formats, and with pixels that no kernel covers."""
    padding = (min(padding[0], kernel[0] // 2), min(padding[1], kernel[1] // 2))
    covered = [3 * stride[d] + dilation[d] * (kernel[d] - 1) + 1 - 2 * padding[d] for d in (0, 1)]
    missing = [min(extra[d], stride[d] - 1) for d in (0, 1)]
    torch.manual_seed(0)
    weight = torch.randn(channels[1], channels[0], *kernel, dtype=torch.float64)
    x = torch.zeros(2, channels[0], *(covered[d] + missing[d] for d in (0, 1)), dtype=torch.float64, requires_grad=True)
    z = F.conv2d(x, weight, None, stride, padding, dilation)
    a = torch.randn(z.shape, dtype=torch.float64)
    (expected,) = torch.autograd.grad(z, x, a)
    if last:
        a = a.contiguous(memory_format=torch.channels_last)
    convolution = Convolution(weight, None, stride, padding, dilation, 1)
    for gradient in (False, True):
        with torch.set_grad_enabled(gradient):
            torch.testing.assert_close(transposed_convolution(a, convolution, missing), expected)


def settled(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(1)
    net = nn.Sequential(*layers).double().eval()
    for module in net:
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            assert module.running_var is not None
            for numbers in (module.weight.detach(), module.bias.detach(), module.running_mean):
                nn.init.normal_(numbers)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
    return net.requires_grad_(False)


def nets() -> dict[str, nn.Module]:
    return {
        "bias": settled(nn.Conv2d(2, 3, 3, 2, 1), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 5, 2), nn.BatchNorm2d(5)),
        "no bias": settled(
            nn.Conv2d(2, 3, 3, 1, 1, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        ),
        "groups": settled(nn.Conv2d(2, 4, 3, groups=2, dilation=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1)),
        "no convolution before": settled(
            nn.BatchNorm2d(2), nn.ReLU(), nn.Conv2d(2, 3, 2), nn.ReLU(), nn.BatchNorm2d(3)
        ),
        "affine only": settled(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Conv2d(3, 2, 1, 2)),
    }


@pytest.mark.parametrize("kind", nets())
@torch.no_grad()
def test_both_signs_and_folded_batchnorm_equal_single_rows(kind: str) -> None:
    """Bounds of neurons equal those of rows +e and -e, which are dense and carried back with a gradient, unfolded."""
    net = nets()[kind]
    x = torch.rand(2, 2, 6, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bounds = LinearBounds(net, Box.ball(x, 0.1))
    output = net(x)
    wanted = torch.ones_like(output, dtype=torch.bool)
    lower, upper = neuron_bounds(bounds, bounds.tape.output, wanted, until_stable=False)
    rows = torch.eye(output[0].numel(), dtype=torch.float64).view(-1, *output.shape[1:]).repeat(2, 1, 1, 1)
    with torch.enable_grad():
        single = LinearBounds(net, Box.ball(x, 0.1))
        expected = [sign * single.lower(single.tape.output, sign * rows) for sign in (1.0, -1.0)]
    torch.testing.assert_close(lower.flatten(), expected[0])
    torch.testing.assert_close(upper.flatten(), expected[1])
    points = [(x + 0.1 * (2 * torch.rand_like(x) - 1)).clamp(0, 1) for _ in range(50)]
    values: Tensor = torch.stack([net(p) for p in points])
    assert (values >= lower - 1e-9).all()
    assert (values <= upper + 1e-9).all()
    assert any(bounds._folded) == (kind in ("bias", "no bias", "groups", "affine only"))


@torch.no_grad()
def test_batchnorm_is_not_folded_where_rounding_counts() -> None:
    net = nets()["bias"].float()
    x = torch.rand(2, 2, 6, 6)
    rounded, real = LinearBounds(net, Rounded.ball(x, 0.1)), LinearBounds(net, Box.ball(x, 0.1))
    wanted = torch.ones_like(net(x), dtype=torch.bool)
    wide = neuron_bounds(rounded, rounded.tape.output, wanted, until_stable=False)
    narrow = neuron_bounds(real, real.tape.output, wanted, until_stable=False)
    assert not rounded._folded
    assert (wide[0] < narrow[0] + 1e-7).all()
    assert (wide[1] > narrow[1] - 1e-7).all()
    torch.testing.assert_close(wide, narrow, rtol=1e-3, atol=1e-3)
