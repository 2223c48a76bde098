"""Patches give the same bounds as dense rows, for every operation that they support and for those that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from advibp.bounds import Box, Rounded, crown
from advibp.bounds.linear import neuron_bounds as neuron_module
from advibp.bounds.linear import patches
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.neuron_bounds import neuron_bounds
from advibp.bounds.linear.patches import Patches, backward_patch_activation
from advibp.bounds.linear.relaxation import relu


class Residual(nn.Module):
    """A block whose branches have windows of different sizes."""

    def __init__(self, channels: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, stride, 1), nn.ReLU(), nn.Conv2d(channels, channels, 3, 1, 1)
        )
        self.skip: nn.Module = nn.Identity() if stride == 1 else nn.Conv2d(channels, channels, 1, stride)

    def forward(self, x: Any) -> Any:
        return F.relu(self.body(x) - self.skip(x))


def batch_norm(channels: int) -> nn.Module:
    layer = nn.BatchNorm2d(channels)
    for numbers in (layer.weight, layer.bias, layer.running_mean):
        nn.init.normal_(numbers.detach())
    nn.init.uniform_(layer.running_var, 0.5, 2.0)
    return layer


class Scaled(nn.Module):
    """Elementwise operations with a number per channel, and one with a number per pixel."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.randn(shape))

    def forward(self, x: Any) -> Any:
        return (x * self.factor - 0.3) / 1.7


LAYERS: dict[str, Callable[[], list[nn.Module]]] = {
    "stride": lambda: [nn.Conv2d(4, 5, 3, 2), nn.ReLU(), nn.Conv2d(5, 4, 2)],
    "padding": lambda: [nn.Conv2d(4, 5, 3, padding=2), nn.ReLU(), nn.Conv2d(5, 4, 3, 2, padding=1)],
    "uneven": lambda: [nn.Conv2d(4, 5, (3, 2), (2, 1), (1, 0)), nn.ReLU(), nn.Conv2d(5, 4, (1, 3), padding=(0, 1))],
    "dilation": lambda: [nn.Conv2d(4, 5, 3, dilation=2, padding=2), nn.ReLU(), nn.Conv2d(5, 4, 2)],
    "groups": lambda: [nn.Conv2d(4, 6, 3, groups=2), nn.ReLU(), nn.Conv2d(6, 6, 2, groups=3), nn.Conv2d(6, 4, 1)],
    "batchnorm": lambda: [nn.Conv2d(4, 5, 3, padding=1), batch_norm(5), nn.ReLU(), nn.Conv2d(5, 4, 3), batch_norm(4)],
    "residual": lambda: [Residual(4), Residual(4)],
    "residual-stride": lambda: [Residual(4, 2), Residual(4)],
    "average": lambda: [nn.AvgPool2d(2, 1), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.Conv2d(4, 4, 1)],
    "average-padding": lambda: [nn.AvgPool2d(2, 2, 1), nn.Conv2d(4, 4, 2)],
    "max": lambda: [nn.MaxPool2d(2, 1), nn.Conv2d(4, 4, 2), nn.ReLU(), nn.MaxPool2d(2, 2, 1), nn.Conv2d(4, 4, 1)],
    "leaky": lambda: [nn.Conv2d(4, 5, 3), nn.LeakyReLU(0.1), nn.Conv2d(5, 4, 2)],
    "smooth": lambda: [nn.Conv2d(4, 5, 3), nn.Sigmoid(), nn.Conv2d(5, 4, 2), nn.Tanh(), nn.Conv2d(4, 4, 1)],
    "scaled": lambda: [Scaled((4, 1, 1)), nn.Conv2d(4, 4, 2), nn.ReLU(), Scaled((1, 4, 1, 1)), nn.Conv2d(4, 4, 2)],
    "per-pixel": lambda: [Scaled((4, 8, 8)), nn.Conv2d(4, 4, 2)],
    "same": lambda: [nn.Conv2d(4, 4, 3, padding="same"), nn.ReLU(), nn.Conv2d(4, 4, 2)],
    "reflect": lambda: [nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"), nn.ReLU(), nn.Conv2d(4, 4, 2)],
    "view": lambda: [nn.Flatten(), nn.Unflatten(1, (4, 8, 8)), nn.Conv2d(4, 4, 2)],
}


def network(kind: str, channels: int = 2, dtype: torch.dtype = torch.float64) -> nn.Module:
    torch.manual_seed(sum(map(ord, kind)))
    layers = [nn.Conv2d(channels, 4, 3), nn.ReLU(), *LAYERS[kind](), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)]
    net = nn.Sequential(*layers)
    net(torch.zeros(2, channels, 10, 10))
    return net.to(dtype).eval().requires_grad_(False)


def boxes(channels: int, count: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Box]:
    x = torch.rand(count, channels, 10, 10, dtype=dtype, generator=torch.Generator().manual_seed(0))
    return x, Box.ball(x, 0.05)


def neurons_of(net: nn.Module, box: Any, until_stable: bool) -> list[tuple[Tensor, Tensor]]:
    """Bounds of a fifth of the neurons of every pre-activation by backward passes."""
    bounds = LinearBounds(net, box)
    nodes = sorted({bounds.tape.nodes[i].refs[0] for i in bounds.activations})
    wanted = [torch.ones_like(bounds.intermediate_bounds[n][0], dtype=torch.bool) for n in nodes]
    return [neuron_bounds(bounds, n, mask, until_stable=until_stable) for n, mask in zip(nodes, wanted, strict=True)]


# Few input channels have a faster transposed convolution.
@pytest.mark.parametrize(("channels", "apart"), [(2, False), (5, True)])
@pytest.mark.parametrize("kind", LAYERS)
def test_patches_equal_dense_rows(kind: str, channels: int, apart: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    net, (_, box) = network(kind, channels), boxes(channels)
    monkeypatch.setattr(neuron_module, "_PATCHES_OF_AN_IMAGE", 1 if apart else 10**9)
    monkeypatch.setattr(patches, "DENSE_SHARE", 2.0)
    sparse = neurons_of(net, box, until_stable=False)
    monkeypatch.setattr(patches, "DENSE_SHARE", 0.0)
    for ours, dense in zip(sparse, neurons_of(net, box, until_stable=False), strict=True):
        for a, b in zip(ours, dense, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_bounds_contain_sampled_points(kind: str, rounded: bool) -> None:
    dtype = torch.float32 if rounded else torch.float64
    net, (x, box) = network(kind, dtype=dtype), boxes(2, dtype=dtype)
    inputs = Rounded.ball(x, 0.05) if rounded else box
    bounds = LinearBounds(net, inputs).refine()
    generator = torch.Generator().manual_seed(1)
    for share in torch.rand(30, *x.shape, generator=generator).round().to(dtype).mul_(2).sub_(1):
        point = box.center + share * box.radius
        values = dict(bounds.tape.trace(point.clone()))
        for index, (lower, upper) in bounds.intermediate_bounds.items():
            slack = 0.0 if rounded else 1e-9
            assert bool((values[index] >= lower - slack).all())
            assert bool((values[index] <= upper + slack).all())


@pytest.mark.parametrize("kind", LAYERS)
def test_stopping_early_keeps_what_is_unstable(kind: str) -> None:
    """Every neuron has bounds, and those of unstable neurons are the same as without stopping."""
    net, (_, box) = network(kind), boxes(2)
    pairs = zip(neurons_of(net, box, until_stable=True), neurons_of(net, box, until_stable=False), strict=True)
    for (lower, upper), (all_lower, all_upper) in pairs:
        unstable = (lower <= 0) & (upper >= 0)
        torch.testing.assert_close(lower[unstable], all_lower[unstable], rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(upper[unstable], all_upper[unstable], rtol=1e-10, atol=1e-10)
        assert bool((unstable | (lower > 0) | (upper < 0)).all())
        assert bool((unstable | (lower > all_upper.clamp(max=0)) | (upper < all_lower.clamp(min=0))).all())


def test_margins_do_not_depend_on_the_order_of_images() -> None:
    net, (x, _) = network("residual-stride"), boxes(2)
    y = torch.tensor([0, 1, 2])
    together = crown(net, Box.ball(x, 0.05)).margins(y)
    single = torch.cat([crown(net, Box.ball(x[i : i + 1], 0.05)).margins(y[i : i + 1]) for i in range(3)])
    torch.testing.assert_close(together, single, rtol=1e-10, atol=1e-10)


def test_windows_of_a_slice_of_images() -> None:
    """A slice of a batch in channels_last begins in the middle of its memory."""
    values = torch.rand(4, 3, 6, 5).contiguous(memory_format=torch.channels_last)
    at = torch.tensor([[0, 0], [3, 2], [5, 4]])
    rows = Patches(torch.rand(3, 3, 2, 3), at, (6, 5), (1, 1), (-1, 0), (6, 5)).cleared()
    for image in range(4):
        gathered = rows.gather(values, slice(image, image + 1))
        torch.testing.assert_close(gathered, rows.gather(values, torch.full((3,), image)))
        dense = rows.dense() * values[image]
        torch.testing.assert_close((rows.a * gathered).flatten(1).sum(1), dense.flatten(1).sum(1))


def test_sums_of_windows() -> None:
    at = torch.tensor([[0, 0], [2, 1], [3, 3]])
    one = Patches(torch.rand(3, 2, 3, 3), at, (4, 4), (2, 2), (-1, -1), (8, 8)).cleared()
    other = Patches(torch.rand(3, 2, 1, 2), at, (4, 4), (2, 2), (0, 1), (8, 8)).cleared()
    total = patches.add_rows(one, other)
    assert isinstance(total, Patches)
    torch.testing.assert_close(total.cleared().dense(), one.dense() + other.dense())
    moved = Patches(other.a, at, (4, 4), (1, 1), (0, 1), (8, 8))
    torch.testing.assert_close(patches.add_rows(one, moved), one.dense() + moved.cleared().dense())


@pytest.mark.parametrize(("stride", "shift"), [(1, -2), (2, -1), (3, 0)])
def test_coefficients_outside_of_the_map_have_no_effect(stride: int, shift: int) -> None:
    at = torch.cartesian_prod(torch.arange(3), torch.arange(3))
    rows = Patches(torch.randn(9, 2, 4, 4), at, (3, 3), (stride, stride), (shift, shift), (6, 6))
    clear = rows.cleared()
    assert clear.clear or torch.equal(clear.a, rows.a)
    torch.testing.assert_close(rows.dense(), clear.dense(), rtol=0, atol=0)
    lower = torch.randn(1, 2, 6, 6)
    relaxation = relu(lower, lower + torch.rand(1, 2, 6, 6))
    results = [backward_patch_activation(relaxation, each, slice(0, 1)) for each in (rows, clear)]
    torch.testing.assert_close(results[0][0].a, results[1][0].a, rtol=0, atol=0)
    torch.testing.assert_close(results[0][1], results[1][1])
    assert results[0][0].clear
    total = patches.add_rows(rows, clear)
    torch.testing.assert_close(total.cleared().dense(), 2 * clear.dense())  # type: ignore[union-attr]


def overflowing() -> nn.Module:
    torch.manual_seed(3)
    layers: list[nn.Module] = [nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 1, 1)]
    layers += [nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    net = nn.Sequential(*layers).requires_grad_(False)
    net[0].weight.mul_(1e38)
    net[0].bias.mul_(1e38)
    return net


def test_a_network_that_overflows_has_no_proofs() -> None:
    net, (x, _) = overflowing(), boxes(2, dtype=torch.float32)
    for inputs in (Box.ball(x, 0.05), Rounded.ball(x, 0.05)):
        assert not bool(LinearBounds(net, inputs).refine().proved(torch.zeros(3, dtype=torch.long)).any())


class Doubled(nn.Module):
    """A convolution in float64 in a float32 network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3).double()

    def forward(self, x: Any) -> Any:
        return self.conv(x.double()).float()


def test_a_network_that_changes_its_type() -> None:
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 4, 3), nn.ReLU(), Doubled(), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)]
    net, (x, box) = nn.Sequential(*layers).requires_grad_(False), boxes(2, dtype=torch.float32)
    y = net(x).argmax(1)
    margins = crown(net, box).margins(y)
    logits = net(box.center + box.radius)
    assert bool((logits.gather(1, y[:, None]) - logits >= margins - 1e-5).all())


def test_gradients_of_margins_with_batchnorm() -> None:
    """The gradient of the margins with respect to the weights of BatchNorm is that of finite differences."""
    net, (_, box) = network("batchnorm"), boxes(2, count=1)
    weight = next(layer for layer in net if isinstance(layer, nn.BatchNorm2d)).weight

    def margins() -> Tensor:
        return crown(net, box).margins(torch.tensor([0])).sum()

    weight.requires_grad_()
    (gradient,) = torch.autograd.grad(margins(), weight)
    with torch.no_grad():
        weight[0] += 1e-6
        above = margins()
        weight[0] -= 2e-6
        below = margins()
    assert float(gradient[0]) == pytest.approx(float(above - below) / 2e-6, rel=1e-3, abs=1e-5)
