"""The notation for networks, and the networks that have a name."""

from __future__ import annotations

import dataclasses
import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from advibp import nets
from advibp.errors import UserError

Layers = list[nets.Conv | nets.Res | nets.FC]

convs = st.builds(
    nets.Conv,
    filters=st.integers(1, 4),
    width=st.integers(2, 3),
    height=st.integers(2, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 1),
    batchnorm=st.booleans(),
)
blocks = st.builds(nets.Res, filters=st.integers(1, 4), stride=st.integers(1, 2), batchnorm=st.booleans())
fcs = st.builds(nets.FC, outputs=st.integers(1, 8), batchnorm=st.booleans())
structures = (
    st.tuples(st.lists(convs | blocks, max_size=3), st.lists(fcs, max_size=2)).map(lambda t: t[0] + t[1]).filter(bool)
)


def text_of(layers: Layers) -> str:
    return ", ".join(str(layer) for layer in layers)


def weights(layers: Layers, shape: tuple[int, int, int], classes: int) -> int:
    """Return the number of parameters, computed from the layers."""
    channels, *sizes = shape
    total, inputs = 0, 0
    for layer in layers:
        bn = 2 if layer.batchnorm else 0
        if isinstance(layer, nets.Conv):
            total += layer.filters * (channels * layer.width * layer.height + 1 + bn)
            kernel = (layer.height, layer.width)
            sizes = [(n + 2 * layer.padding - k) // layer.stride + 1 for n, k in zip(sizes, kernel, strict=True)]
            channels = layer.filters
        elif isinstance(layer, nets.Res):
            total += layer.filters * (9 * channels + 1 + bn) + layer.filters * (9 * layer.filters + 1 + bn)
            if layer.stride > 1 or channels != layer.filters:
                total += layer.filters * (channels + 1 + bn)
            sizes = [math.ceil(n / layer.stride) for n in sizes]
            channels = layer.filters
        else:
            total += layer.outputs * ((inputs or channels * math.prod(sizes)) + 1 + bn)
            inputs = layer.outputs
    return total + classes * ((inputs or channels * math.prod(sizes)) + 1)


@given(structures)
def test_parse_inverts_str(layers: Layers) -> None:
    assert nets.parse(text_of(layers)) == layers


@given(structures, st.integers(1, 3), st.integers(2, 5))
def test_built_network_has_the_given_layers(layers: Layers, channels: int, classes: int) -> None:
    shape = (channels, 23, 19)
    net = nets.build(text_of(layers), shape, classes)
    rows = nets.summary(net, shape)
    assert (
        sum(row.parameters for row in rows)
        == sum(p.numel() for p in net.parameters())
        == weights(layers, shape, classes)
    )
    assert net(torch.rand(2, *shape)).shape == (2, classes)
    if not any(isinstance(layer, nets.Res) for layer in layers):
        words = [row.layer for row in rows if row.layer not in ("ReLU", "Flatten") and "BatchNorm" not in row.layer]
        assert words == [*(str(layer).removesuffix(" BN") for layer in layers), f"FC {classes}"]
        assert [row.layer for row in rows].count("ReLU") == len(layers)


@given(st.text(alphabet="CcOoNnVvFfRES 0123456789x+,-abpBN", max_size=30))
def test_any_text_is_a_network_or_a_user_error(text: str) -> None:
    try:
        layers = nets.parse(text)
    except UserError:
        return
    assert nets.parse(text_of(layers)) == layers


@pytest.mark.parametrize("name", nets.STRUCTURES)
@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 20, 21)])
def test_every_structure_builds_and_classifies(name: str, shape: tuple[int, int, int]) -> None:
    net = nets.build(name, shape, 7, seed=0).eval()
    assert type(net) is nn.Sequential
    assert net(torch.zeros(2, *shape)).shape == (2, 7)
    assert sum(p.numel() for p in net.parameters()) == weights(nets.parse(name), shape, 7)
    assert nets.is_known(f" {name.upper()} ")


@pytest.mark.parametrize("name", ["cnn7", "cnn7-narrow", "resnet-small"])
@pytest.mark.parametrize("shape", [(1, 16, 16), (3, 33, 20)])
def test_padded_structures_take_smaller_images(name: str, shape: tuple[int, int, int]) -> None:
    assert nets.build(name, shape, 3)(torch.rand(2, *shape)).shape == (2, 3)


def test_a_narrow_cnn7_is_cnn7_with_a_quarter_of_its_widths() -> None:
    assert nets.parse("cnn7-narrow") == [
        dataclasses.replace(layer, outputs=layer.outputs // 4)
        if isinstance(layer, nets.FC)
        else dataclasses.replace(layer, filters=layer.filters // 4)
        for layer in nets.parse("cnn7")
    ]


def test_batchnorm_is_between_each_layer_and_its_relu() -> None:
    net = nets.build("cnn7", (3, 32, 32))
    kinds = [type(module) for module in net]
    conv = [nn.Conv2d, nn.BatchNorm2d, nn.ReLU]
    assert kinds == [*(5 * conv), nn.Flatten, nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    assert net[15](net[:15](torch.rand(2, 3, 32, 32))).shape == (2, 128 * 16 * 16)


def test_is_known() -> None:
    assert nets.is_known("Conv 16 4x4+2p1 BN, Res 8+1, FC 5")
    assert not any(nets.is_known(spec) for spec in ("MyNet", "Conv", "Res", "FC 5, Conv 1 2x2+1", "net.py:make"))


# Width of the flattened features and number of parameters, on MNIST and on CIFAR-10. dm-large is that of Gowal et al.,
# with padding 1 in its five convolutions; no other one has padding.
PINNED = {
    "dm-small": (3_200, 329_606, 4_608, 470_918),
    "dm-medium": (1_024, 893_418, 1_600, 1_188_906),
    "dm-large": (25_088, 13_257_290, 32_768, 17_190_602),
    "cnn-small": (3_872, 1_992_906, 5_408, 2_779_626),
    "cnn-medium": (12_544, 7_078_666, 20_736, 11_273_546),
    "cnn-large": (6_400, 4_279_114, 12_544, 7_425_994),
    "a": (1_936, 195_958, 2_704, 272_902),
    "b": (3_872, 393_110, 5_408, 546_998),
    "c": (7_744, 794_326, 10_816, 1_102_102),
    "d": (1_600, 827_042, 2_304, 1_187_746),
    "e": (3_200, 1_652_538, 4_608, 2_373_946),
    "f": (6_400, 3_315_818, 9_216, 4_758_634),
    "g": (3_136, 1_635_658, 5_184, 2_684_378),
    "h": (6_272, 3_314_058, 10_368, 5_411_498),
    "i": (256, 143_106, 400, 216_978),
    "j": (512, 293_114, 800, 440_858),
}


def test_the_papers_16_structures_do_not_change() -> None:
    assert set(PINNED) == set(nets.PAPER)


@pytest.mark.parametrize("name", PINNED)
def test_a_structure_of_the_paper_has_its_shapes(name: str) -> None:
    found = []
    for shape in ((1, 28, 28), (3, 32, 32)):
        rows = nets.summary(nets.build(name, shape), shape)
        found += [width for row in rows if row[0] == "Flatten" for width in row[1]]
        found.append(sum(row.parameters for row in rows))
    assert tuple(found) == PINNED[name]


@pytest.mark.parametrize("name", PINNED)
def test_only_dm_large_is_padded(name: str) -> None:
    convolutions = [layer for layer in nets.parse(name) if isinstance(layer, nets.Conv)]
    assert {layer.padding for layer in convolutions} == {1 if name == "dm-large" else 0}
    assert not any(layer.batchnorm for layer in nets.parse(name))


def test_width_comes_before_height() -> None:
    net = nets.build("Conv 2 5x3+1", (1, 10, 10))
    assert net[0].kernel_size == (3, 5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "Unknown network"),
        ("dm-smal", "did you mean 'dm-small'"),
        ("resnet", "cnn-large"),
        ("Conv 16 4x4", "'Conv 16 4x4'"),
        ("Conv 16 4x4+2, , FC 5", "Cannot read layer ''"),
        ("Conv 16 4x4+2, FC", "'FC'"),
        ("Conv 16 4x4+2; FC 100", "separated by commas"),
        ("Conv -1 4x4+2", "'Conv -1 4x4+2'"),
        ("Conv 0 4x4+2", "zero"),
        ("Conv 8 4x4+0", "zero"),
        ("FC 10, Conv 16 4x4+2", "put FC layers last"),
        ("FC 10, Res 16+2", "put FC layers last"),
        ("Conv 16 4x4+2, dm-small", "'dm-small'"),
        ("Conv 16 4x4+2p", "'Conv 16 4x4+2p'"),
        ("Conv 16 4x4+2BN", "'Conv 16 4x4+2BN'"),
        ("Conv 16 4x3+2p3", "as large as its kernel"),
        ("Conv 16 4x4+2p99999999999999999999", "as large as its kernel"),
        ("Res 16", "'Res 16'"),
        ("Res 0+1", "zero"),
        ("Res 16+0 BN", "zero"),
        ("BN, FC 10", "'BN'"),
        ("Res 99999+1", "make it smaller"),
        ("Conv 4 29x29+30p1, Conv 4 4x4+1p1", "'Conv 4 4x4+1p1' does not fit its 3x3 input"),
        ("Conv 4 29x1+1", "does not fit its 28x28 input"),
        ("Conv 4 5x5+5, Conv 4 6x6+1", "'Conv 4 6x6+1' does not fit its 5x5 input"),
        ("FC 99999999999", "make it smaller"),
        ("FC " + "9" * 5000, "make it smaller"),
        (7, "not 7"),
    ],
)
def test_bad_spec(spec: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.build(spec)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"input_shape": (28, 28)}, "channels, height, width"),
        ({"input_shape": (1, 0, 28)}, "positive sizes"),
        ({"input_shape": "28"}, "positive sizes"),
        ({"input_shape": 28}, "positive sizes"),
        ({"classes": 1}, "at least 2"),
        ({"classes": 2.0}, "at least 2"),
        ({"init": "xavier"}, "'ibp'"),
        ({"mean": (0.1, 0.2)}, "2 values for 1 channels"),
        ({"mean": "grey"}, "mean must be"),
        ({"std": 0.0}, "positive"),
        ({"std": float("nan")}, "finite"),
        ({"std": ()}, "finite"),
    ],
)
def test_bad_options(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.build("dm-small", **options)  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_normalize_is_the_first_layer_and_acts_per_channel() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    net = nets.build("FC 5", (3, 4, 4), mean=mean, std=std)
    assert isinstance(net[0], nets.Normalize)
    x = torch.rand(2, 3, 4, 4)
    for channel in range(3):
        torch.testing.assert_close(net[0](x)[:, channel], (x[:, channel] - mean[channel]) / std[channel])
    assert set(net.state_dict()) > {"0.mean", "0.std"}
    assert not [name for name, _ in net.named_parameters() if name.startswith("0.")]


@pytest.mark.parametrize("name", ["a", "cnn7-narrow", "resnet-small"])
@pytest.mark.parametrize("init", ["ibp", "default"])
def test_seed_is_deterministic_and_keeps_the_global_state(name: str, init: nets.Init) -> None:
    before = torch.random.get_rng_state()
    first, again, other = (nets.build(name, seed=seed, init=init) for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.state_dict().values(), again.state_dict().values(), strict=True))
    assert not torch.equal(first[0].weight, other[0].weight)


def test_summary_does_not_change_the_network() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten())
    net[0].eval()
    rows = nets.summary(net, (1, 5, 5))
    assert rows[0] == ("Conv 2 3x3+1p1", (2, 5, 5), 20)
    assert [m.training for m in net] == [False, True, True]
    assert net[1].num_batches_tracked == 0
    assert not any(m._forward_hooks for m in net.modules())


def test_network_can_be_pickled() -> None:
    net = nets.build("dm-small", mean=0.13, std=0.31)
    x = torch.rand(1, 1, 28, 28)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
