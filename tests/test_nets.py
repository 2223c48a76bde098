"""The paper's grammar and structures, as networks."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from advibp import nets
from advibp.errors import UserError

convs = st.builds(
    nets.Conv,
    filters=st.integers(1, 4),
    width=st.integers(1, 3),
    height=st.integers(1, 3),
    stride=st.integers(1, 2),
)
fcs = st.builds(nets.FC, outputs=st.integers(1, 8))
structures = st.tuples(st.lists(convs, max_size=3), st.lists(fcs, max_size=2)).map(lambda t: t[0] + t[1]).filter(bool)


def spelled(layers: list[nets.Conv | nets.FC]) -> str:
    return ", ".join(str(layer) for layer in layers)


@given(structures)
def test_what_is_spelled_is_what_is_parsed(layers: list[nets.Conv | nets.FC]) -> None:
    assert nets.parse(spelled(layers)) == layers


@given(structures, st.integers(1, 3), st.integers(2, 5))
def test_built_network_has_the_spelled_layers(layers: list[nets.Conv | nets.FC], channels: int, classes: int) -> None:
    shape = (channels, 23, 19)
    net = nets.build(spelled(layers), shape, classes)
    rows = nets.summary(net, shape)
    words = [row.layer for row in rows if row.layer not in ("ReLU", "Flatten")]
    assert words == [*map(str, layers), f"FC {classes}"]
    assert [row.layer for row in rows].count("ReLU") == len(layers)
    assert sum(row.parameters for row in rows) == sum(p.numel() for p in net.parameters())
    assert net(torch.rand(2, *shape)).shape == (2, classes)


@given(st.text(alphabet="CcOoNnVvFf 0123456789x+,-ab", max_size=30))
def test_any_text_is_a_network_or_a_user_error(text: str) -> None:
    try:
        layers = nets.parse(text)
    except UserError:
        return
    assert nets.parse(spelled(layers)) == layers


@pytest.mark.parametrize("name", nets.STRUCTURES)
def test_every_structure_builds_and_classifies(name: str) -> None:
    net = nets.build(name, (1, 28, 28), seed=0)
    assert net(torch.zeros(2, 1, 28, 28)).shape == (2, 10)


def test_there_are_the_papers_16_structures() -> None:
    assert set(nets.PAPER) == {f"{f}-{s}" for f in ("dm", "cnn") for s in ("small", "medium", "large")} | set(
        "abcdefghij"
    )


def test_dm_small_has_a_3200_wide_flatten() -> None:
    rows = nets.summary(nets.build("dm-small"))
    assert ("Flatten", (3200,), 0) in rows
    # 272 + 8,224 + 320,100 + 1,010
    assert sum(row.parameters for row in rows) == 329_606


def test_width_comes_before_height() -> None:
    net = nets.build("Conv 2 5x3+1", (1, 10, 10))
    assert net[0].kernel_size == (3, 5)


@pytest.mark.parametrize(
    ("spec", "said"),
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
        ("Conv 16 4x4+2, dm-small", "'dm-small'"),
        ("Conv 4 29x1+1", "does not fit its 28x28 input"),
        ("Conv 4 5x5+5, Conv 4 6x6+1", "'Conv 4 6x6+1' does not fit its 5x5 input"),
        ("FC 99999999999", "make it smaller"),
        ("FC " + "9" * 5000, "make it smaller"),
        (7, "not 7"),
    ],
)
def test_bad_spec(spec: str, said: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.build(spec)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("options", "said"),
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
def test_bad_options(options: dict[str, object], said: str) -> None:
    with pytest.raises(UserError) as caught:
        nets.build("dm-small", **options)  # type: ignore[arg-type]
    assert said in str(caught.value)


def test_normalize_is_the_first_layer_and_acts_per_channel() -> None:
    mean, std = (0.1, 0.2, 0.3), (0.5, 1.0, 2.0)
    net = nets.build("FC 5", (3, 4, 4), mean=mean, std=std)
    assert isinstance(net[0], nets.Normalize)
    x = torch.rand(2, 3, 4, 4)
    for channel in range(3):
        torch.testing.assert_close(net[0](x)[:, channel], (x[:, channel] - mean[channel]) / std[channel])
    assert set(net.state_dict()) > {"0.mean", "0.std"}
    assert not [name for name, _ in net.named_parameters() if name.startswith("0.")]


def test_seed_is_deterministic_and_leaves_the_global_stream_alone() -> None:
    before = torch.random.get_rng_state()
    first, again, other = (nets.build("a", seed=seed, init="ibp") for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(first[0].weight, again[0].weight)
    assert not torch.equal(first[0].weight, other[0].weight)


def test_ibp_init_has_the_stated_spread_and_spares_the_last_layer() -> None:
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


def test_ibp_init_serves_any_module() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.last = nn.Linear(4, 2)

    net = Mine()
    last = net.last.weight.clone()
    assert nets.ibp_init(net) is net
    assert torch.equal(net.last.weight, last)


def test_summary_leaves_the_network_as_it_was() -> None:
    net = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.Flatten())
    net[0].eval()
    rows = nets.summary(net, (1, 5, 5))
    assert rows[0] == ("Conv 2 3x3+1p1", (2, 5, 5), 20)
    assert [m.training for m in net] == [False, True, True]
    assert net[1].num_batches_tracked == 0
    assert not any(m._forward_hooks for m in net.modules())


def test_network_is_a_plain_picklable_sequential() -> None:
    net = nets.build("dm-small", mean=0.13, std=0.31)
    assert type(net) is nn.Sequential
    x = torch.rand(1, 1, 28, 28)
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
