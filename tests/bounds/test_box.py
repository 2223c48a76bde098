"""Box: nothing escapes it, affine layers are exact in it, and what it cannot do it refuses."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.dispatch import UnsupportedOperation
from advibp.errors import UserError

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
    """In float64 and evaluation, BatchNorm with statistics and weights of both signs."""
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


def random_box(*shape: int) -> Box:
    """Radii over several magnitudes, some of them zero."""
    center = torch.randn(shape, dtype=torch.float64)
    radius = torch.rand_like(center) * 10 ** torch.empty_like(center).uniform_(-3, 0)
    return Box(center, radius * (torch.rand_like(center) < 0.9))


def members(box: Box, count: int) -> Tensor:
    """Points (count, ...) of a box (1, ...): half of them inside, half of them vertices."""
    offset = torch.rand(count, *box.shape[1:], dtype=box.dtype) * 2 - 1
    offset[count // 2 :] = offset[count // 2 :].sign()
    return box.center + box.radius * offset


def extremes(net: Forward, box: Box, steps: int = 8, most: int = 8) -> Tensor:
    """Members at which PGD makes single outputs small or large: (2 n, ...), for n random outputs."""
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


def assert_sound(net: Forward, box: Box, count: int = 2000) -> Box:
    with torch.no_grad():
        output: Box = net(Box(box.center, box.radius))
        assert_inside(net(members(box, count)), output)
    assert_inside(net(extremes(net, box)).detach(), output)
    return output


def assert_zero_radius_is_concrete(net: Forward, x: Tensor) -> None:
    box = net(Box(x.clone(), 0.0))
    assert torch.equal(box.center, net(x.clone()))
    assert not box.radius.any()


# ---- random networks


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


@settings(max_examples=60)
@given(nets())
def test_nothing_escapes(net: nn.Module) -> None:
    assert_sound(net, random_box(1, 2, 6, 6), count=10_000)


@settings(max_examples=60)
@given(nets())
def test_zero_radius_gives_the_concrete_output(net: nn.Module) -> None:
    assert_zero_radius_is_concrete(net, torch.randn(3, 2, 6, 6, dtype=torch.float64))


@settings(max_examples=60)
@given(nets())
def test_a_smaller_box_gives_a_smaller_box(net: nn.Module) -> None:
    outer = random_box(2, 2, 6, 6)
    corners = outer.center + outer.radius * (torch.rand(2, *outer.shape, dtype=torch.float64) * 2 - 1)
    inner = Box.from_bounds(corners.amin(0), corners.amax(0))
    small, large = net(inner), net(outer)
    assert_inside(small.lower, large)
    assert_inside(small.upper, large)


@settings(max_examples=30)
@given(nets())
def test_the_box_of_a_batch_is_the_batch_of_boxes(net: nn.Module) -> None:
    box = random_box(3, 2, 6, 6)
    whole = net(box.clone())
    for i in range(3):
        single = net(box[i : i + 1].clone())
        torch.testing.assert_close(whole.lower[i], single.lower[0])
        torch.testing.assert_close(whole.upper[i], single.upper[0])


# ---- single layers

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


def ready(net: Any) -> Forward:
    torch.manual_seed(0)
    module = net if isinstance(net, nn.Module) else Lambda(net)
    return settled(module)


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE, EXACT, TURNING, INEXACT))
def test_every_layer_is_sound(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(box.center, box.radius))
    assert output.shape == net(box.center.clone()).shape
    for side in torch.rand(40, *shape, dtype=torch.float64) * 2 - 1:
        for offset in (side, side.sign()):
            assert_inside(net(box.center + offset * box.radius), output)


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE, EXACT, TURNING, INEXACT))
def test_every_layer_at_zero_radius(net: Any, shape: tuple[int, ...]) -> None:
    assert_zero_radius_is_concrete(ready(net), random_box(*shape).center)


@pytest.mark.parametrize(("net", "shape"), cases(AFFINE))
def test_affine_layers_attain_their_bounds_at_the_sign_vertex(net: Any, shape: tuple[int, ...]) -> None:
    """The row J_i of the Jacobian gives output i's extremes, at c +- r sign(J_i)."""
    net, box = ready(net), random_box(*shape)
    output = net(Box(box.center, box.radius))
    concrete = lambda x: net(x.clone())  # noqa: E731
    jacobian = torch.autograd.functional.jacobian(concrete, box.center).flatten(0, output.ndim - 1)
    for i in torch.randperm(len(jacobian))[:40].tolist():
        offset = box.radius * jacobian[i].sign()
        torch.testing.assert_close(net(box.center + offset).flatten()[i], output.upper.flatten()[i])
        torch.testing.assert_close(net(box.center - offset).flatten()[i], output.lower.flatten()[i])


@pytest.mark.parametrize(("net", "shape"), cases(EXACT))
def test_monotone_layers_map_bounds_to_bounds(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(box.center, box.radius))
    torch.testing.assert_close(output.lower, net(box.lower))
    torch.testing.assert_close(output.upper, net(box.upper))


@pytest.mark.parametrize(("net", "shape"), cases(TURNING))
def test_turning_layers_are_exact(net: Any, shape: tuple[int, ...]) -> None:
    net, box = ready(net), random_box(*shape)
    output = net(Box(box.center, box.radius))
    steps = torch.linspace(-1, 1, 2001, dtype=torch.float64).view(-1, *[1] * len(shape))
    values = torch.stack([net(x) for x in box.center + steps * box.radius])
    torch.testing.assert_close(output.lower, values.amin(0), atol=2e-3, rtol=0)
    torch.testing.assert_close(output.upper, values.amax(0), atol=2e-3, rtol=0)


def test_an_active_relu_keeps_the_box_to_the_bit_and_a_dead_one_gives_zero() -> None:
    center, radius = torch.tensor([1e6, -3.0, 0.5]), torch.tensor([1e-3, 1.0, 1.0])
    box = F.relu(Box(center, radius))
    assert box.center.tolist() == [1e6, 0.0, 0.75]
    assert box.radius.tolist() == [radius[0].item(), 0.0, 0.75]


# ---- constructors


@given(st.integers(0, 1000), st.floats(0, 2))
def test_a_ball_is_intersected_with_its_range(seed: int, eps: float) -> None:
    x = torch.rand(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    box = Box.ball(x, eps)
    torch.testing.assert_close(box.lower, (x - eps).clamp(min=0))
    torch.testing.assert_close(box.upper, (x + eps).clamp(max=1))
    whole = Box.ball(x, eps, within=None)
    torch.testing.assert_close((whole.lower, whole.upper), (x - eps, x + eps))


def test_a_ball_takes_an_eps_per_image_and_any_range() -> None:
    x = torch.zeros(2, 3)
    box = Box.ball(x, torch.tensor([[0.1], [0.5]]), within=(-0.2, torch.tensor([0.0, 0.3, 1.0])))
    torch.testing.assert_close(box.lower, torch.tensor([[-0.1] * 3, [-0.2] * 3]))
    torch.testing.assert_close(box.upper, torch.tensor([[0.0, 0.1, 0.1], [0.0, 0.3, 0.5]]))


@pytest.mark.parametrize("eps", [-0.1, math.nan, math.inf, torch.tensor(-1.0), torch.tensor([0.1, math.nan])])
def test_eps_must_be_finite_and_not_negative(eps: Any) -> None:
    with pytest.raises(UserError, match="eps must be finite and not negative"):
        Box.ball(torch.zeros(3, 2), eps)


def test_constructors_refuse_what_is_no_box() -> None:
    with pytest.raises(UserError, match="NaN or lies outside of"):
        Box.ball(torch.full((2,), 200.0), 0.1)
    with pytest.raises(UserError, match="NaN or lies outside of"):
        Box.ball(torch.tensor([math.nan]), 0.1)
    with pytest.raises(UserError, match=r"floating-point tensors, not torch.uint8"):
        Box.ball(torch.zeros(2, dtype=torch.uint8), 0.1)
    with pytest.raises(UserError, match="floating-point tensors, not list"):
        Box([0.0], 0.1)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="radius"):
        Box(torch.zeros(2), torch.tensor([0.1, -0.1]))
    with pytest.raises(UserError, match="lower <= upper"):
        Box.from_bounds(torch.ones(2), torch.zeros(2))


def test_a_box_answers_for_its_shape_and_kind() -> None:
    box = random_box(2, 3, 4)
    assert box.shape == box.size() == (2, 3, 4)
    assert (box.size(1), box.dim(), box.ndim, box.numel(), len(box)) == (3, 3, 3, 24, 2)
    assert box.dtype == torch.float64
    assert box.is_floating_point()
    assert torch.is_floating_point(box)
    assert not box.is_cuda
    assert not box.requires_grad
    assert not hasattr(box, "grad_fn")
    assert box.device == torch.device("cpu")
    assert box[0].T.shape == (4, 3)
    assert isinstance(box.new_zeros(3), Tensor)
    assert "(2, 3, 4)" in repr(box)


def test_meta_device_and_half_precision() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))
    output = net.to("meta")(Box._of(*torch.zeros(2, 5, 1, 4, 4, device="meta")))
    assert output.lower_margins(torch.zeros(5, dtype=torch.int64, device="meta")).shape == (5, 3)
    assert nn.Linear(2, 3).bfloat16()(Box(torch.zeros(1, 2, dtype=torch.bfloat16), 0.1)).dtype == torch.bfloat16


def test_autocast_does_not_round_the_bounds() -> None:
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3))
    x, y = torch.rand(4, 5), torch.tensor([0, 1, 2, 0])
    plain = net(Box.ball(x, 0.1)).lower_margins(y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        box = net(Box.ball(x, 0.1))
        assert box.dtype == torch.float32
        assert torch.equal(box.lower_margins(y), plain)


# ---- margins


@settings(max_examples=40)
@given(nets(), st.integers(0, 3))
def test_margins_are_sound_and_elision_never_loosens_them(net: nn.Module, label: int) -> None:
    if not isinstance(net[-1], nn.Linear):
        net.extend([nn.Flatten(), nn.LazyLinear(4).double()])
        net(torch.zeros(1, 2, 6, 6, dtype=torch.float64))
    box = random_box(1, 2, 6, 6)
    with torch.no_grad():
        output = net(Box(box.center, box.radius))
        y = torch.tensor([label % output.shape[1]])
        elided, subtracted = output.margins(y), (output + 0).margins(y)
        assert output.elided
        assert elided.elided
        assert not (output + 0).elided
        assert not subtracted.elided
        assert_inside(elided.lower, subtracted)
        assert_inside(elided.upper, subtracted)
        outputs = net(members(box, 2000))
        assert_inside(outputs[:, y] - outputs, elided)
        assert torch.equal(output.lower_margins(y), elided.lower)
        for margins in (elided, subtracted):
            assert margins.lower[0, y] == margins.upper[0, y] == 0


def test_subtracted_margins_are_the_difference_of_bounds() -> None:
    box, y = random_box(5, 4), torch.tensor([0, 1, 2, 3, 0])
    margins, rows = box.margins(y), torch.arange(5)
    expected = box.lower[rows, y, None] - box.upper
    expected[rows, y] = 0
    torch.testing.assert_close(margins.lower, expected)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("batch", [1, 6])
def test_elided_margins_of_one_linear_layer_are_exact(bias: bool, batch: int) -> None:
    """Fewer images than classes, or more: the two are computed in different ways."""
    layer, box, y = nn.Linear(5, 4, bias=bias).double(), random_box(batch, 5), torch.tensor([0, 1, 2, 3, 0, 1])[:batch]
    margins = layer(box).margins(y)
    assert not margins.radius[range(batch), y].any()
    for b in range(batch):
        for k in range(4):
            vertex = box.center[b] - box.radius[b] * (layer.weight[y[b]] - layer.weight[k]).sign()
            outputs = layer(vertex)
            torch.testing.assert_close(outputs[y[b]] - outputs[k], margins.lower[b, k])


def test_the_memory_of_the_last_layer() -> None:
    layer, box = nn.Linear(5, 4), Box(torch.rand(2, 5), 0.1)
    output = layer(box)
    assert output.last.weight is layer.weight
    assert output.last.bias is layer.bias
    assert torch.equal(output.last.input.radius, box.radius)
    box.mul_(3)  # the layer's input was another box then
    assert output.last is not None
    assert output.last.input.radius.eq(0.1).all()
    for other in (output.relu(), -output, output + 1, output[:1], output.clone(), layer(Box(torch.rand(2, 3, 5), 0.1))):
        assert other.last is None
        assert not other.elided
    output.mul_(2)
    assert output.last is None
    assert not output.elided


def test_margins_after_the_weights_changed_raise() -> None:
    layer = nn.Linear(5, 4)
    output = layer(Box(torch.rand(2, 5), 0.1))
    with torch.no_grad():
        layer.weight.add_(1)
    with pytest.raises(UserError, match="weights have changed"):
        output.lower_margins(torch.tensor([0, 1]))


def test_margins_need_outputs_and_labels() -> None:
    with pytest.raises(UserError, match=r"labels \(B,\), not \(2, 3, 4\)"):
        random_box(2, 3, 4).margins(torch.tensor([0, 1]))
    with pytest.raises(UserError, match=r"not \(2, 3\) and \(3,\)"):
        random_box(2, 3).lower_margins(torch.tensor([0, 1, 2]))


def test_inference_mode_and_weights_made_in_it() -> None:
    with torch.inference_mode():
        layer = nn.Linear(5, 4)
        assert layer(Box(torch.rand(2, 5), 0.1)).lower_margins(torch.tensor([0, 1])).shape == (2, 4)


# ---- gradients


@pytest.mark.parametrize("seed", range(3))
def test_gradients_of_the_margins(seed: int) -> None:
    torch.manual_seed(seed)
    conv, norm = nn.Conv2d(1, 2, 2), nn.BatchNorm2d(2)
    net = settled(nn.Sequential(conv, norm, nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2, 3)))
    y = torch.tensor([2, 0, 1, 2])[: 2 + seed]  # fewer images than classes, and more
    x = torch.rand(len(y), 1, 3, 3, dtype=torch.float64)
    names, values = zip(*net.named_parameters(), strict=True)

    def lower_margins(*parameters: Tensor) -> Tensor:
        arguments = dict(zip(names, parameters, strict=True))
        output: Box = torch.func.functional_call(net, arguments, (Box.ball(x, 0.1),))
        return output.lower_margins(y)

    assert torch.autograd.gradcheck(lower_margins, values)


def test_gradients_of_relu_to_second_order() -> None:
    torch.manual_seed(0)
    center = torch.randn(40, dtype=torch.float64, requires_grad=True)
    radius = torch.rand(40, dtype=torch.float64, requires_grad=True)

    def bounds(c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
        box = F.relu(Box._of(c, r))
        return box.lower, box.upper * box.center

    assert torch.autograd.gradcheck(bounds, (center, radius))
    assert torch.autograd.gradgradcheck(bounds, (center, radius))


def test_at_zero_radius_the_gradient_is_the_network_s() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 4)).double()
    x = torch.rand(5, 1, 4, 4, dtype=torch.float64)
    concrete = torch.autograd.grad(net(x).square().sum(), list(net.parameters()))
    abstract = torch.autograd.grad(net(Box.ball(x, 0.0)).center.square().sum(), list(net.parameters()))
    torch.testing.assert_close(abstract, concrete)


def test_detach_stops_the_gradient() -> None:
    box = nn.Linear(3, 2)(Box(torch.rand(1, 3), 0.1))
    assert box.requires_grad
    assert not box.detach().requires_grad


# ---- in place


@pytest.mark.parametrize(
    "change",
    [
        F.relu_,
        torch.relu_,
        lambda x: F.relu(x, inplace=True),
        lambda x: F.leaky_relu_(x, 0.3),
        lambda x: F.elu(x, inplace=True),
        lambda x: F.hardtanh_(x),
        lambda x: x.add_(CONSTANT, alpha=2),
        lambda x: x.clamp_(0, 1),
        lambda x: x.sigmoid_(),
        lambda x: x.__iadd__(CONSTANT),
        lambda x: x.__isub__(2),
        lambda x: x.__imul__(-CONSTANT),
        lambda x: x.__itruediv__(-3),
        lambda x: x.neg_(),
    ],
)
def test_in_place_operations_change_the_box_itself(change: Forward) -> None:
    box = random_box(2, 5)
    copy, lower = box.clone(), box.lower
    result = change(box)
    assert result is box
    assert_inside(change(lower.clone()), box)
    for side in torch.rand(50, 2, 5, dtype=torch.float64) * 2 - 1:
        assert_inside(change(copy.center + side * copy.radius), box)
    assert torch.equal(copy.lower, lower)  # a clone is no view


VIEWS: list[Forward] = [
    lambda x: x.flatten(1),
    lambda x: x.view(2, -1),
    lambda x: x[:, 0],
    lambda x: x.chunk(3, 1)[0],
    lambda x: x.transpose(1, 2),
    lambda x: x.detach(),
    lambda x: x.squeeze(0).unsqueeze(0)[0],
]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_that_became_stale_raises(view: Forward) -> None:
    box = random_box(2, 3, 4)
    part = view(box)
    F.relu_(part)
    assert part.lower.min() >= 0
    for use in (F.relu, lambda x: x + 1, lambda x: x.lower, lambda x: torch.cat([x]), lambda x: x.flatten(1)):
        with pytest.raises(UnsupportedOperation, match="changed in place through another view"):
            use(box)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_of_a_changed_box_raises_too(view: Forward) -> None:
    box = random_box(2, 3, 4)
    part = view(box)
    box += 1
    assert box.shape == (2, 3, 4)
    with pytest.raises(UnsupportedOperation, match="changed in place"):
        part.relu()
    assert_inside(view(box).center, view(box))  # a new view is up to date


def test_flatten_then_relu_in_place_works() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 2), nn.Flatten(), nn.ReLU(inplace=True), nn.Linear(8, 3)).double()
    assert_sound(net, random_box(1, 1, 3, 3))


def test_contiguous_and_dropout_in_evaluation_return_the_box_itself() -> None:
    box = random_box(2, 3)
    assert box.contiguous() is box
    assert box.to(torch.float64) is box
    assert F.dropout(box, 0.5, training=False, inplace=True) is box


# ---- what a box cannot do


class Net(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Flatten(), nn.Linear(6, 6), layer)

    def forward(self, x: Any) -> Any:
        return self.features(x)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (nn.Softmax(1), r"torch.nn.functional.softmax has no rule"),
        (nn.LSTM(6, 3), r"torch.lstm has no rule"),
        (nn.GELU(), "gelu has no rule"),
        (nn.LayerNorm(6), "layer_norm has no rule"),
        (nn.BatchNorm1d(6), r"BatchNorm in training mode.* call net.eval\(\)"),
        (nn.Dropout(), r"dropout in training mode.* call net.eval\(\)"),
        (nn.MaxPool1d(2, return_indices=True), "return_indices"),
        (nn.AdaptiveMaxPool1d(2, return_indices=True), "return_indices"),
        (nn.Softplus(threshold=1), "softplus has a rule for"),
        (nn.ELU(-1.0), "alpha > 0 alone"),
        (Lambda(lambda x: x if x else -x), "'bool' is undefined"),
        (Lambda(lambda x: x > 0), "'gt' is undefined"),
        (Lambda(lambda x: x == 0), "'eq' is undefined"),
        (Lambda(lambda x: torch.zeros(6) < x), "undefined|lt has no rule"),
        (Lambda(lambda x: x**2), "'pow' is undefined"),
        (Lambda(lambda x: float(x)), "'float' is undefined"),
        (Lambda(lambda x: x.item()), "'item' has no rule"),
        (Lambda(lambda x: x.max(1)), "'max' has no rule"),
        (Lambda(lambda x: x.nonsense), "'nonsense' has no rule"),
        (Lambda(lambda x: numpy.asarray(x)), "'array' is undefined"),
        (Lambda(lambda x: torch.tensor(x)), "has no length"),
        (Lambda(lambda x: len(x[0, 0])), "has no length"),
        (Lambda(lambda x: x * x), "product of two Boxes"),
        (Lambda(lambda x: x @ x.T), "matrix product of two Boxes"),
        (Lambda(lambda x: 1 / x), "division by a Box"),
        (Lambda(lambda x: torch.ones(6) / x), "division by a Box"),
        (Lambda(lambda x: x.div(2, rounding_mode="floor")), "rounding mode"),
        (Lambda(lambda x: torch.exp(x, out=torch.zeros(6))), "torch.exp cannot write a Box to out="),
        (Lambda(lambda x: F.linear(torch.zeros(1, 6), x)), "the rest must be constant"),
        (Lambda(lambda x: torch.zeros(6)[x,]), "the rest must be constant"),
        (Lambda(lambda x: torch.zeros(1, 6).add_(x)), "add_ cannot write a Box into a tensor"),
        (Lambda(lambda x: torch.zeros(1, 6).copy_(x)), "copy_ has no rule"),
        (Lambda(lambda x: x.__setitem__(0, 1)), "'setitem' is undefined"),
        (Lambda(lambda x: x.add_(torch.zeros(3, 1, 6))), "cannot turn shape"),
        (Lambda(lambda x: x.to(torch.int32)), "cannot be converted to torch.int32"),
        (Lambda(lambda x: x.view(torch.int32)), "another type"),
        (Lambda(lambda x: x.detach().sum(dtype=torch.int32)), "cannot turn a Box into torch.int32"),
        (Lambda(lambda x: torch.cat(x)), "needs a list or tuple|must be tuple"),
        (Lambda(lambda x: F.interpolate(x[None, None], (3, 3), mode="bicubic")), "bicubic"),
    ],
)
def test_what_a_box_cannot_do_raises_naming_the_layer(layer: nn.Module, words: str) -> None:
    with pytest.raises(UnsupportedOperation, match=rf"^layer 'features.2' \(\w+\): .*({words})") as info:
        Net(layer)(Box(torch.zeros(1, 6), 0.1))
    message = str(info.value)
    assert message.endswith(".")
    assert "\n" not in message


def test_the_root_module_is_named_by_its_class() -> None:
    with pytest.raises(UnsupportedOperation, match=r"^Lambda.forward: torch.nn.functional.softmax has no rule"):
        Lambda(lambda x: F.softmax(x, 1))(random_box(1, 2))
    with pytest.raises(UnsupportedOperation, match=r"^torch.nn.functional.softmax has no rule"):
        F.softmax(random_box(1, 2), 1)


def test_two_kinds_of_set_do_not_mix() -> None:
    class Other:
        @classmethod
        def __torch_function__(cls, *args: Any) -> Any:
            return NotImplemented

    for mix in (lambda x: x + Other(), lambda x: torch.cat([x, Other()])):
        with pytest.raises(UnsupportedOperation, match="another kind of set"):
            mix(random_box(2))


def test_a_box_can_be_a_key_and_an_error_is_a_value_error() -> None:
    box = random_box(2)
    assert {box: 1}[box] == 1
    assert issubclass(UnsupportedOperation, UserError)
