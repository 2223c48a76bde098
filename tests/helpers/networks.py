"""Random networks of common kinds, by a seed, for tests of linear bounds."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from exact import count_relus
from torch import Tensor, nn

CLASSES = 3


class Block(nn.Module):
    """A residual or dense block; `how` is the operation that joins its branches."""

    def __init__(self, body: nn.Module, how: str) -> None:
        super().__init__()
        self.body, self.how = body, how

    def forward(self, x: Any) -> Any:
        y = self.body(x)
        if self.how == "in place":
            y += x
            return F.relu_(y)
        if self.how == "cat":
            first, second = torch.cat([x, y], 1).chunk(2, 1)
            return torch.cat([second - 0.5 * first, x], 1)
        return F.relu(x + y) if self.how == "relu" else torch.add(y, x, alpha=-0.5)


class Functional(nn.Module):
    """Written in the functional style: normalization, shapes, a computed weight, values that are used twice."""

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(channels, 4, 3, padding=1), nn.Linear(4 * size, CLASSES)
        self.scale = nn.Parameter(torch.randn(4 * size))
        self.register_buffer("mean", torch.rand(channels, 1, 1))
        self.register_buffer("std", 0.3 + torch.rand(channels, 1, 1))

    def forward(self, x: Any) -> Any:
        x = (x - self.mean) / self.std
        x = F.relu(self.conv(F.pad(x, (0, 0, 1, -1), value=0.2)), inplace=True)
        a, b = x.split([1, 3], 1)
        x = torch.cat([b - 0.3 * a, a], 1).transpose(2, 3)
        x = torch.stack([x, x.flip(1)], 1).sum(1) - x.mean((2, 3), keepdim=True)
        x = x.reshape(x.shape[0], -1)
        x = F.leaky_relu(x * 2, 0.2)
        return F.linear(x, self.head.weight * F.relu(self.scale), self.head.bias) - torch.tanh(self.head(x))


@dataclass(frozen=True)
class Network:
    kind: str
    net: nn.Module
    shape: tuple[int, ...]  # of an image
    relus: int | None  # how many, if its activations are ReLUs alone


def _conv(dice: random.Random, channels: int, out: int) -> nn.Conv2d:
    groups = dice.choice([g for g in (1, 2) if channels % g == 0 and out % g == 0])
    return nn.Conv2d(
        channels,
        out,
        dice.choice([1, 2, 3, (2, 3)]),
        stride=dice.choice([1, 1, 2, (1, 2)]),
        padding=dice.choice([0, 1, (1, 0)]),
        dilation=dice.choice([1, 1, 2]),
        groups=groups,
        bias=dice.random() < 0.8,
    )


def _relu(dice: random.Random) -> nn.Module:
    return nn.ReLU(inplace=dice.random() < 0.5)


def _smooth(dice: random.Random) -> nn.Module:
    return dice.choice([nn.Sigmoid(), nn.Tanh(), nn.LeakyReLU(0.2), nn.LeakyReLU(0.1, inplace=True)])


def _stack(dice: random.Random, channels: int, extra: Callable[[int], nn.Module | None], act: Any) -> list[nn.Module]:
    """Return convolutions with an extra layer before each activation."""
    layers: list[nn.Module] = []
    for _ in range(dice.randint(1, 3)):
        conv = _conv(dice, channels, dice.choice([2, 4]))
        channels = conv.out_channels
        between = extra(channels)
        layers += [conv, *([between] if between else []), act(dice)]
    return layers


def _fc(dice: random.Random, act: Any, width: int = 8) -> list[nn.Module]:
    sizes = [dice.randint(2, width) for _ in range(dice.randint(2, 4))]
    layers = [layer for i, j in itertools.pairwise(sizes) for layer in (nn.Linear(i, j), act(dice))]
    return [*layers, nn.Linear(sizes[-1], CLASSES)]


def _body(kind: str, dice: random.Random) -> list[nn.Module]:
    """Return layers for images of two channels."""
    if kind == "conv":
        return _stack(dice, 2, lambda c: None, _relu)
    if kind == "smooth conv":
        return _stack(dice, 2, lambda c: None, _smooth)
    if kind == "batchnorm":
        return _stack(dice, 2, nn.BatchNorm2d, _relu)
    if kind == "pooling":
        pools = [nn.AvgPool2d(2, 1), nn.AvgPool2d(3, 2, 1, count_include_pad=False), nn.AdaptiveAvgPool2d(3)]
        pools += [nn.MaxPool2d(2, 1), nn.MaxPool2d(2), nn.MaxPool2d(3, 2, 1), nn.MaxPool2d(2, 1, dilation=2)]
        return _stack(dice, 2, lambda c: dice.choice(pools), _relu)
    ways = ("in place", "cat", "relu", "alpha")
    blocks: list[nn.Module] = []
    channels = 2
    for how in dice.choices(ways, k=dice.randint(1, 2)):
        conv = [nn.Conv2d(channels, channels, 3, padding=1), _relu(dice), nn.Conv2d(channels, channels, 1)]
        blocks.append(Block(nn.Sequential(*conv, nn.BatchNorm2d(channels)), how))
        channels *= 2 if how == "cat" else 1
        blocks.append(nn.ReLU())  # autograd lets no one overwrite the output of an activation
    return blocks


KINDS = (
    "fc",
    "conv",
    "residual",
    "pooling",
    "batchnorm",
    "smooth fc",
    "smooth conv",
    "functional",
    "few relus",
    "few relus",
)


def network(seed: int, kind: str | None = None) -> Network:
    """Return a float64 network in evaluation mode; by default the seed chooses its kind."""
    dice = random.Random(seed)
    kind = kind or KINDS[seed % len(KINDS)]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        while True:
            try:
                net, shape = _made(kind, dice)
                net = settled(net, dice.choice([1.0, 1.5, 2.0]))
                relus = None if _others(net) else count_relus(net, shape)
                net(torch.zeros(1, *shape, dtype=torch.float64))
            except RuntimeError:  # the image is too small for these layers
                continue
            if kind != "few relus" or 0 < (relus or 0) <= 12:
                return Network(kind, net, shape, relus)


def _made(kind: str, dice: random.Random) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "few relus":
        if dice.random() < 0.6:
            layers = _fc(dice, _relu, 6)
            return nn.Sequential(*layers), (layers[0].in_features,)
        shape, layers = (2, 2, 2), _body(dice.choice(["conv", "batchnorm", "residual"]), dice)
    elif kind in ("fc", "smooth fc"):
        layers = _fc(dice, _relu if kind == "fc" else _smooth, 12)
        return nn.Sequential(*layers), (layers[0].in_features,)
    elif kind == "functional":
        return Functional(2, 16), (2, 4, 4)
    else:
        shape, layers = (2, 5, 5), _body(kind, dice)
    with torch.no_grad():
        features = nn.Sequential(*layers, nn.Flatten()).eval()(torch.zeros(1, *shape)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, CLASSES)), shape


def _others(net: nn.Module) -> bool:
    """Return whether there are activations other than ReLU."""
    kinds = (nn.Sigmoid, nn.Tanh, nn.LeakyReLU, nn.MaxPool2d, Functional)
    return any(isinstance(module, kinds) for module in net.modules())


def settled(net: nn.Module, gain: float = 1.0) -> nn.Module:
    """Convert to float64 and evaluation mode, with larger weights and random BatchNorm statistics and weights."""
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            assert isinstance(module.running_mean, Tensor)
            assert isinstance(module.running_var, Tensor)
            module.running_mean.normal_()
            module.running_var.uniform_(0.2, 3)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    for p in net.parameters():
        p.data.mul_(gain)
    return net.double().eval()
