"""The gradient with respect to the image equals autograd's for every convolution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.execution.image_gradient import Image, as_image

sizes = st.integers(1, 3)


def gradients(net: nn.Module, x: Tensor, *, fast: bool) -> list[Tensor]:
    x = x.clone().requires_grad_()
    out = net(as_image(x) if fast else x)
    assert type(out) is Tensor
    return list(torch.autograd.grad((out.square() * 0.3 + out.sin()).sum(), [x, *net.parameters()]))


def same(net: nn.Module, x: Tensor) -> None:
    for fast, slow in zip(*(gradients(net, x, fast=f) for f in (True, False)), strict=True):
        torch.testing.assert_close(fast, slow, rtol=1e-9, atol=1e-10)


@given(st.integers(1, 4), sizes, sizes, sizes, sizes, sizes, sizes, st.booleans(), st.booleans(), st.integers(0, 99))
def test_gradients_equal_autograd(
    channels: int, m: int, n: int, down: int, right: int, top: int, left: int, bias: bool, last: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    net = nn.Conv2d(channels, 3, (m, n), (down, right), (top - 1, left - 1), bias=bias).double()
    x = torch.rand(2, channels, 6, 7, dtype=torch.float64)
    if last:
        net, x = net.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    same(net, x)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(2, 4, 3, dilation=2),
        nn.Conv2d(2, 4, 3, groups=2),
        nn.Conv2d(2, 4, 3, padding="same"),
        nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 1),
    ],
)
def test_unsupported_convolutions_use_torch(conv: nn.Conv2d) -> None:
    same(conv.double(), torch.rand(2, 2, 6, 6, dtype=torch.float64))


class Normalized(nn.Module):
    """Normalizes its images, which stay images."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, 5, 3, padding=1), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - 0.4) / torch.tensor([0.2, 0.3, 0.4], dtype=x.dtype).view(1, 3, 1, 1)
        assert isinstance(x, Image) or not self.expects
        return self.last(F.relu(self.first(F.pad(x, (1, 0, 2, 0)))).mean((2, 3)))

    expects = False


def test_normalization_before_the_convolution() -> None:
    net, x = Normalized().double(), torch.rand(2, 3, 5, 5, dtype=torch.float64)
    same(net, x)
    net.expects = True
    net(as_image(x))


@pytest.mark.parametrize("stride", [1, 2])
def test_an_in_place_relu_may_follow(stride: int) -> None:
    same(nn.Sequential(nn.Conv2d(1, 3, 2, stride), nn.ReLU(inplace=True)).double(), torch.rand(2, 1, 5, 5).double())


def test_network_without_convolutions_returns_plain_tensors() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(18, 4)).double()
    same(net, torch.rand(2, 2, 3, 3, dtype=torch.float64))


class OneByOne(nn.Module):
    """Processes its images one by one, with keyword arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 3, 2)

    def forward(self, x: Tensor) -> Tensor:
        apart = torch.stack([self.first(one) for one in x])
        named = F.conv2d(input=x, weight=self.first.weight, bias=self.first.bias)
        return apart + 2 * named + self.first(torch.cat(x.chunk(2)))


def test_images_processed_one_by_one() -> None:
    same(OneByOne().double(), torch.rand(4, 2, 4, 4, dtype=torch.float64))


def test_mixed_precision() -> None:
    net, x = nn.Sequential(nn.Conv2d(1, 3, 2), nn.Flatten(), nn.Linear(27, 2)), torch.rand(4, 1, 4, 4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = net(as_image(x))
    (fast,) = torch.autograd.grad(out.float().sum(), x)
    (slow,) = torch.autograd.grad(net(x).sum(), x)
    torch.testing.assert_close(fast, slow, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("shape", [(2, 5, 4, 4), (2, 9), (2, 3, 4)])
def test_other_tensors_are_returned_unchanged(shape: tuple[int, ...]) -> None:
    x = torch.rand(shape)
    assert as_image(x) is x


def test_second_derivative_raises() -> None:
    conv, x = nn.Conv2d(1, 2, 2), torch.rand(1, 1, 4, 4, requires_grad=True)
    (once,) = torch.autograd.grad(conv(as_image(x)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(once.sum(), conv.weight)
