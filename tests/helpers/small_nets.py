"""Small networks for tests of bounds, and points of a box."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds import Box

Forward = Callable[[Any], Any]


class Lambda(nn.Module):
    """A module written in the functional style."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.body = forward

    def forward(self, x: Any) -> Any:
        return self.body(x)


class Residual(nn.Module):
    def __init__(self, block: nn.Module, in_place: bool) -> None:
        super().__init__()
        self.block, self.in_place = block, in_place

    def forward(self, x: Any) -> Any:
        y = self.block(x)
        if self.in_place:
            y += x
            return F.relu_(y)
        return F.relu(x + y)


def settled(net: nn.Module) -> nn.Module:
    """Convert to float64 and evaluation mode, with random BatchNorm statistics and weights."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)
        if isinstance(module, nn.PReLU):
            nn.init.normal_(module.weight)
    return net.double().eval()


def members(box: Box, count: int) -> Tensor:
    """Return points (count, ...) of a box (1, ...): half random, half vertices."""
    offset = torch.rand(count, *box.shape[1:], dtype=box.dtype) * 2 - 1
    offset[count // 2 :] = offset[count // 2 :].sign()
    return box.center + box.radius * offset


def extremes(net: Forward, box: Box, steps: int = 8, most: int = 8) -> Tensor:
    """Return points (2 n, ...) at which PGD minimizes or maximizes one of n random outputs."""
    count = net(box.center.clone()).numel()
    chosen = torch.randperm(count)[:most]
    x = box.center.repeat(2 * len(chosen), *[1] * (box.ndim - 1))
    for step in range(steps):
        x = x.detach().requires_grad_()
        outputs = net(x.clone()).flatten(1)
        low, high = outputs[: len(chosen)].gather(1, chosen[:, None]), outputs[len(chosen) :].gather(1, chosen[:, None])
        if not outputs.requires_grad:
            break
        (gradient,) = torch.autograd.grad((high.sum() - low.sum()), x)
        x = x + gradient.sign() * box.radius * (2.0 if step == 0 else 0.5)
        x = torch.minimum(torch.maximum(x, box.lower), box.upper)
    return x.detach()


def assert_inside(values: Tensor, box: Box) -> None:
    slack = 1e-9 * (1 + values.abs())
    assert (values >= box.lower - slack).all()
    assert (values <= box.upper + slack).all()


@st.composite
def layers(draw: st.DrawFn, channels: int) -> nn.Module:
    """A layer that takes (B, channels, H, W), if H and W are large enough for it."""
    flag, few = st.booleans(), st.integers(1, 3)
    activations: list[nn.Module] = [
        *(nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(-0.3), nn.Sigmoid(), nn.Tanh(), nn.Softplus()),
        *(nn.Hardtanh(-0.5, 0.7), nn.ReLU6(), nn.PReLU(channels)),
    ]
    in_place: list[nn.Module] = [nn.ReLU(inplace=True), nn.ELU(inplace=True), nn.Hardtanh(inplace=True)]
    # autograd lets no one overwrite the output of an activation, so a sum comes before
    activations += [nn.Sequential(Lambda(lambda x: x + 0.1), layer) for layer in in_place]
    kind = draw(st.sampled_from(["conv", "conv", "conv", "act", "act", "bn", "pool", "up", "block", "functional"]))
    if kind == "conv":
        groups = draw(st.sampled_from([g for g in (1, 2, 3) if channels % g == 0]))
        stride = draw(st.integers(1, 2))
        padding = draw(st.sampled_from([0, 1, 2, (1, 0), "valid", *(["same"] if stride == 1 else [])]))
        mode = draw(st.sampled_from(["zeros", "zeros", "reflect", "replicate", "circular"]))
        return nn.Conv2d(
            channels,
            groups * draw(few),
            draw(st.sampled_from([1, 2, 3, (2, 3)])),
            stride=stride,
            padding=padding,
            dilation=draw(st.integers(1, 2)),
            groups=groups,
            bias=draw(flag),
            padding_mode=mode,
        )
    if kind == "up":
        return nn.ConvTranspose2d(channels, draw(few), 2, stride=draw(st.integers(1, 2)), bias=draw(flag))
    if kind == "bn":
        return nn.BatchNorm2d(channels, affine=draw(flag))
    if kind == "act":
        return draw(st.sampled_from(activations))
    if kind == "pool":
        averages = [nn.AvgPool2d(2), nn.AvgPool2d(3, 1, 1), nn.AdaptiveAvgPool2d(3)]
        maxima = [nn.MaxPool2d(2, 1), nn.MaxPool2d(3, 2, 1), nn.AdaptiveMaxPool2d((2, 3))]
        return draw(st.sampled_from([*averages, *maxima, nn.Dropout()]))
    if kind == "block":
        conv = nn.Conv2d(channels, channels, 3, padding=1)
        return Residual(nn.Sequential(nn.ReLU(), conv, nn.BatchNorm2d(channels)), draw(flag))
    scale = torch.randn(channels, 1, 1, dtype=torch.float64)
    bodies: list[Forward] = [
        lambda x: torch.cat([x, -0.5 * x, torch.ones_like(x)], 1),
        lambda x: (x - scale) / (0.3 + scale.abs()),
        lambda x: 1 - x.sub(x.tanh(), alpha=0.7).clamp(-1, 2) * scale,
        lambda x: F.pad(x, (1, 0, 2, 1), value=0.3),
        lambda x: x.transpose(2, 3).flip(1)[:, :, : max(1, x.shape[3] - 1)],
        lambda x: (x + 0.1).flatten(1).relu_().view(x.shape),
        lambda x: torch.stack((*x.chunk(1, 1), x.abs())).sum(0) - x.mean((2, 3), keepdim=True),
    ]
    return Lambda(draw(st.sampled_from(bodies)))


@st.composite
def nets(draw: st.DrawFn, shape: tuple[int, ...] = (2, 6, 6)) -> nn.Module:
    """Networks on (B, *shape); some end in a linear layer, or in two."""
    torch.manual_seed(draw(st.integers(0, 10_000)))
    net = settled(nn.Sequential())
    x = torch.zeros(1, *shape, dtype=torch.float64)
    for _ in range(draw(st.integers(1, 5))):
        layer = settled(draw(layers(x.shape[1])))
        try:
            x = layer(x).detach()
        except RuntimeError:  # too small for this layer
            continue
        net.append(layer)
        if x.numel() > 400:
            break
    head = draw(st.integers(0, 2))
    if head:
        net.append(nn.Flatten())
        net.append(nn.Linear(x.numel(), 4, bias=draw(st.booleans())))
    if head == 2:
        net.extend([nn.ReLU(inplace=True), nn.Linear(4, 3)])
    return settled(net)


CONSTANT = torch.linspace(-2, 1.5, 5, dtype=torch.float64)


MATRIX = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)


AFFINE: list[tuple[str, Any, tuple[int, ...]]] = [
    ("linear", nn.Linear(5, 3), (2, 5)),
    ("linear without bias", nn.Linear(5, 3, bias=False), (2, 5)),
    ("linear on (B, T, J)", nn.Linear(5, 3), (2, 4, 5)),
    ("conv1d", nn.Conv1d(2, 3, 3, stride=2, padding=1), (2, 2, 7)),
    ("conv1d same", nn.Conv1d(2, 2, 3, padding="same", dilation=2, groups=2), (2, 2, 7)),
    ("conv2d", nn.Conv2d(2, 3, (3, 2), stride=(1, 2), padding=(2, 1), dilation=(2, 1)), (2, 2, 5, 6)),
    ("conv2d circular", nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), (2, 2, 5, 5)),
    ("conv2d unbatched", nn.Conv2d(2, 3, 3), (2, 5, 5)),
    ("conv3d", nn.Conv3d(2, 2, 2, padding=1, groups=2), (1, 2, 3, 3, 3)),
    ("conv_transpose1d", nn.ConvTranspose1d(2, 3, 3, stride=2, output_padding=1), (2, 2, 4)),
    ("conv_transpose2d", nn.ConvTranspose2d(4, 2, 3, stride=2, padding=1, groups=2), (1, 4, 3, 3)),
    ("conv_transpose3d", nn.ConvTranspose3d(1, 2, 2), (1, 1, 2, 2, 2)),
    ("batch_norm (B, C)", nn.BatchNorm1d(5), (2, 5)),
    ("batch_norm1d", nn.BatchNorm1d(3), (2, 3, 4)),
    ("batch_norm2d", nn.BatchNorm2d(3), (2, 3, 2, 2)),
    ("batch_norm3d", nn.BatchNorm3d(2, affine=False), (2, 2, 2, 2, 2)),
    ("avg_pool1d", nn.AvgPool1d(2), (2, 2, 6)),
    ("avg_pool2d", nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 2, 6, 6)),
    ("avg_pool3d", nn.AvgPool3d(2), (1, 2, 4, 4, 4)),
    ("adaptive_avg_pool1d", nn.AdaptiveAvgPool1d(3), (2, 2, 7)),
    ("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d(1), (2, 2, 5, 5)),
    ("adaptive_avg_pool3d", nn.AdaptiveAvgPool3d(2), (1, 2, 4, 4, 4)),
    ("zero pad", nn.ZeroPad2d((1, 2, 0, 1)), (2, 2, 3, 3)),
    ("constant pad", nn.ConstantPad1d(1, 0.7), (2, 2, 3)),
    ("replication pad", nn.ReplicationPad2d(2), (2, 2, 3, 3)),
    ("upsample", nn.Upsample(scale_factor=2, mode="bilinear"), (2, 2, 3, 3)),
    ("pixel_shuffle", nn.PixelShuffle(2), (2, 4, 3, 3)),
    ("unflatten", nn.Unflatten(1, (2, 3)), (2, 6)),
    ("identity", nn.Sequential(nn.Identity(), nn.Dropout(), nn.Dropout2d(inplace=True)), (2, 3, 2, 2)),
    ("box @ matrix", lambda x: x @ MATRIX, (2, 5)),
    ("matrix @ box", lambda x: MATRIX @ x, (3, 2)),
    ("matmul", lambda x: torch.matmul(x, MATRIX), (2, 4, 5)),
    ("add", lambda x: (x + CONSTANT).add(1.5).add(CONSTANT, alpha=-2), (2, 5)),
    ("add from the left", lambda x: 1 + (CONSTANT + x), (2, 5)),
    ("torch.add alpha", lambda x: torch.add(CONSTANT, x, alpha=-3), (2, 5)),
    ("sub", lambda x: (x - CONSTANT).sub(1).sub(CONSTANT, alpha=3), (2, 5)),
    ("sub from the left", lambda x: 2 - (CONSTANT - x), (2, 5)),
    ("torch.sub alpha", lambda x: torch.sub(CONSTANT, x, alpha=0.5), (2, 5)),
    ("rsub", lambda x: torch.rsub(x, 3.0, alpha=2), (2, 5)),
    ("broadcast by a constant", lambda x: x + torch.ones(4, 1, 1, dtype=torch.float64), (2, 5)),
    ("mul", lambda x: -3 * (x * CONSTANT) * 0.5, (2, 5)),
    ("mul from the left", lambda x: CONSTANT * x, (2, 5)),
    ("mul by a mask", lambda x: x * (CONSTANT > 0), (2, 5)),
    ("numpy number", lambda x: numpy.float64(-2) * x, (2, 5)),
    ("div", lambda x: x / CONSTANT / -2, (2, 5)),
    ("neg", lambda x: -torch.neg(x).negative(), (2, 5)),
    ("mean", lambda x: x.mean((1, 2)) + torch.mean(x, -1).mean(1), (2, 3, 4)),
    ("sum", lambda x: torch.sum(x, 1, keepdim=True), (2, 3, 4)),
    ("cat", lambda x: torch.cat((x, torch.ones(2, 1, dtype=x.dtype), -x), dim=1), (2, 5)),
    ("stack", lambda x: torch.stack([x, 2 * x], 1), (2, 5)),
    ("reshape", lambda x: torch.flatten(x.reshape(2, -1).view(2, 4, 3).permute(0, 2, 1).contiguous(), 1), (2, 3, 4)),
    ("squeeze", lambda x: x.unsqueeze(1).squeeze(1).transpose(1, 2).mT, (2, 3, 4)),
    ("chunk", lambda x: x.chunk(2, 1)[1] - x.split([1, 3], dim=1)[0] + torch.split(x, 1, 1)[2], (2, 4)),
    ("indexing", lambda x: x[:, 1:, None, ..., [0, 2]], (2, 3, 4)),
    ("iteration", lambda x: torch.stack([2 * row for row in x]), (2, 5)),
    ("expand, repeat, roll", lambda x: x.expand(3, 2, 5).repeat(1, 2, 1).roll(1, 0).narrow(1, 0, 2), (2, 5)),
    (
        "in-place arithmetic",
        lambda x: x.clone().add_(CONSTANT).mul_(-2).sub_(1, alpha=3).div_(CONSTANT),
        (2, 5),
    ),
    ("conversion", lambda x: x.double().to("cpu").to(torch.float64), (2, 5)),
]


def ready(net: Any) -> Forward:
    torch.manual_seed(0)
    module = net if isinstance(net, nn.Module) else Lambda(net)
    return settled(module)


def random_box(*shape: int) -> Box:
    """Return a box with radii of several magnitudes, some of them 0."""
    center = torch.randn(shape, dtype=torch.float64)
    radius = torch.rand_like(center) * 10 ** torch.empty_like(center).uniform_(-3, 0)
    return Box(center=center, radius=radius * (torch.rand_like(center) < 0.9))


def assert_sound(net: Forward, box: Box, count: int = 2000) -> Box:
    with torch.no_grad():
        output: Box = net(Box(center=box.center, radius=box.radius))
        assert_inside(net(members(box, count)), output)
    assert_inside(net(extremes(net, box)).detach(), output)
    return output


def assert_zero_radius_is_concrete(net: Forward, x: Tensor) -> None:
    box = net(Box(center=x.clone(), radius=0.0))
    assert torch.equal(box.center, net(x.clone()))
    assert not box.radius.any()


EXACT: list[tuple[str, Any, tuple[int, ...]]] = [
    ("relu", nn.ReLU(), (2, 9)),
    ("relu inplace", nn.ReLU(inplace=True), (2, 9)),
    ("torch.relu", torch.relu, (2, 9)),
    ("x.relu()", lambda x: x.relu(), (2, 9)),
    ("leaky_relu", nn.LeakyReLU(0.1), (2, 9)),
    ("sigmoid", nn.Sigmoid(), (2, 9)),
    ("F.sigmoid", F.sigmoid, (2, 9)),
    ("tanh", nn.Tanh(), (2, 9)),
    ("F.tanh", F.tanh, (2, 9)),
    ("hardtanh", nn.Hardtanh(-0.2, 0.4, inplace=True), (2, 9)),
    ("relu6", nn.ReLU6(), (2, 9)),
    ("F.relu6", F.relu6, (2, 9)),
    ("clamp", lambda x: torch.clamp(x, -0.1, 0.3).clamp_max(0.2).clip(min=0), (2, 9)),
    ("elu", nn.ELU(0.7), (2, 9)),
    ("celu", nn.CELU(0.5), (2, 9)),
    ("selu", nn.SELU(), (2, 9)),
    ("softplus", nn.Softplus(2.0), (2, 9)),
    ("logsigmoid", nn.LogSigmoid(), (2, 9)),
    ("softsign", nn.Softsign(), (2, 9)),
    ("hardsigmoid", nn.Hardsigmoid(), (2, 9)),
    ("exp", torch.exp, (2, 9)),
    ("max_pool1d", nn.MaxPool1d(3, 1), (2, 2, 6)),
    ("max_pool2d", nn.MaxPool2d(2, ceil_mode=True), (2, 2, 5, 5)),
    ("max_pool2d dilated", nn.MaxPool2d(2, dilation=2, padding=1), (2, 2, 5, 5)),
    ("max_pool3d", nn.MaxPool3d(2), (1, 2, 4, 4, 4)),
    ("torch.max_pool2d", lambda x: torch.max_pool2d(x, 2), (2, 2, 4, 4)),
    ("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(3), (2, 2, 7)),
    ("adaptive_max_pool2d", nn.AdaptiveMaxPool2d(2), (2, 2, 5, 5)),
    ("amax", lambda x: x.amax(1), (2, 9)),
]


# Sound, but not exact: a copied pixel meets several weights, and the box of the padded image forgets that it is one.
INEXACT: list[tuple[str, Any, tuple[int, ...]]] = [
    ("conv2d reflect", nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 2, 5, 5)),
    ("conv2d replicate", nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), (2, 2, 5, 5)),
    ("x - x", lambda x: x - x, (2, 5)),
]


TURNING: list[tuple[str, Any, tuple[int, ...]]] = [
    ("prelu", nn.PReLU(3, -0.4), (2, 3, 4)),
    ("leaky_relu falling", nn.LeakyReLU(-0.6), (2, 9)),
    ("abs", abs, (2, 9)),
    ("square", torch.square, (2, 9)),
]


def cases(*tables: list[tuple[str, Any, tuple[int, ...]]]) -> list[Any]:
    return [pytest.param(net, shape, id=name) for table in tables for name, net, shape in table]


VIEWS: list[Forward] = [
    lambda x: x.flatten(1),
    lambda x: x.view(2, -1),
    lambda x: x[:, 0],
    lambda x: x.chunk(3, 1)[0],
    lambda x: x.transpose(1, 2),
    lambda x: x.detach(),
    lambda x: x.squeeze(0).unsqueeze(0)[0],
]


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), layer)

    def forward(self, x: Any) -> Any:
        return self.features(x)
