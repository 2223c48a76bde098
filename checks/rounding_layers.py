"""Check on random networks of all layer kinds that no output is outside of its bounds, in any order of summation.

    python checks/rounding_layers.py --outputs 1000000 --minutes 10 --json layers.json

For each network there are boxes of radius 0 and larger, their bounds by `Rounded`, and float32 outputs at points of the
box (random ones and vertices, each exactly in the box), in random orders of summation, with and without fused
multiply-add, by torch itself, and in float64. The table shows per layer kind how many outputs are outside, the largest
|float32 - float64| at radius 0, and the ratio of the bound to it: for the output closest to its bound, and the median.
The exit code is 1 if any output is outside.

`--bounds box` uses interval bounds that ignore rounding; some outputs are then outside.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from orders import by_torch, into_ball, outputs, random_order

from advibp.bounds.box import Box

SHAPE = (4, 8, 8)


class Lambda(nn.Module):
    """A module that applies a function; it is the same in float64."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Branches(nn.Module):
    def __init__(self, one: nn.Module, two: nn.Module) -> None:
        super().__init__()
        self.one, self.two = one, two

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.two(x)], 1)


class Normalize(nn.Module):
    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.register_buffer("mean", torch.rand(4, 1, 1))
        self.register_buffer("std", 10 ** (2 * torch.rand(4, 1, 1) - 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.mean) / self.std


def _conv(dice: random.Random, out: int = 8) -> nn.Conv2d:
    kernel, groups = dice.choice([1, 2, 3, (3, 2)]), dice.choice([1, 2, 4])
    options = {"stride": dice.choice([1, 2]), "padding": dice.choice([0, 1, 2]), "dilation": dice.choice([1, 2])}
    return nn.Conv2d(4, out, kernel, groups=groups, bias=dice.random() < 0.7, **options)


def _norm(channels: int, dice: random.Random) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(channels, affine=dice.random() < 0.8)
    norm.running_mean.copy_(torch.randn(channels) * 10 ** dice.uniform(-2, 2))
    norm.running_var.copy_(torch.rand(channels) * 10 ** dice.uniform(-6, 2))
    if norm.affine:
        norm.weight.data.normal_()
        norm.bias.data.normal_()
    return norm


def _deep(dice: random.Random) -> nn.Module:
    return nn.Sequential(
        Normalize(dice), nn.Conv2d(4, 8, 3, padding=1), _norm(8, dice), nn.ReLU(),
        Residual(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1))),
        dice.choice([nn.AvgPool2d(2), nn.MaxPool2d(2)]), nn.Flatten(), nn.Linear(128, 30),
        dice.choice([nn.ReLU(), nn.Tanh(), nn.Sigmoid(), nn.LeakyReLU(0.1), nn.ELU()]), nn.Linear(30, 10),
    )  # fmt: skip


def _scalars(dice: random.Random) -> nn.Module:
    a, b, c = (dice.choice([-1, 1]) * 10 ** dice.uniform(-4, 4) for _ in range(3))
    return Lambda(dice.choice([lambda x: x * a + b, lambda x: x / a - b, lambda x: (b - x) * a / c, lambda x: -x + a]))


def _affine(dice: random.Random) -> nn.Module:
    """Return a layer to put before one without parameters, so that its inputs are not pixels."""
    return nn.Conv2d(4, 4, 1)


KINDS: dict[str, Callable[[random.Random], nn.Module]] = {
    "linear": lambda d: nn.Sequential(nn.Flatten(), nn.Linear(256, 50, bias=d.random() < 0.7)),
    "wide linear": lambda d: nn.Sequential(nn.Flatten(), nn.Linear(256, 2000), nn.ReLU(), nn.Linear(2000, 20)),
    "conv": _conv,
    "transposed conv": lambda d: nn.ConvTranspose2d(
        4, 8, d.choice([2, 3]), d.choice([1, 2]), d.choice([0, 1]), groups=d.choice([1, 2])
    ),
    "batchnorm": lambda d: _norm(4, d),
    "conv batchnorm": lambda d: nn.Sequential(nn.Conv2d(4, 8, 3), _norm(8, d), nn.ReLU()),
    "average pooling": lambda d: nn.Sequential(
        _affine(d),
        nn.AvgPool2d(d.choice([2, 3, 4]), d.choice([1, 2, 3]), d.choice([0, 1]), False, d.random() < 0.5),
    ),
    "max pooling": lambda d: nn.Sequential(_affine(d), nn.MaxPool2d(d.choice([2, 3]), d.choice([1, 2]))),
    "adaptive pooling": lambda d: nn.Sequential(_affine(d), nn.AdaptiveAvgPool2d(d.choice([1, 2, 3, (2, 3)]))),
    "residual": lambda d: Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 4, 1))),
    "concatenation": lambda d: Branches(nn.Conv2d(4, 3, 1), nn.Sequential(nn.Conv2d(4, 2, 3, padding=1), nn.ReLU())),
    "sigmoid": lambda d: nn.Sequential(_affine(d), nn.Sigmoid()),
    "tanh": lambda d: nn.Sequential(_affine(d), nn.Tanh()),
    "leaky relu": lambda d: nn.Sequential(_affine(d), nn.LeakyReLU(d.uniform(0, 1))),
    "elu": lambda d: nn.Sequential(_affine(d), nn.ELU(d.choice([0.5, 1.0]))),
    "softplus": lambda d: nn.Sequential(_affine(d), nn.Softplus()),
    "nearest": lambda d: nn.Sequential(_affine(d), nn.Upsample(scale_factor=d.choice([2, 3]))),
    "bilinear": lambda d: nn.Sequential(
        _affine(d), nn.Upsample(scale_factor=d.choice([2, 3]), mode="bilinear", align_corners=d.random() < 0.5)
    ),
    "mean": lambda d: nn.Sequential(_affine(d), Lambda(d.choice([lambda x: x.mean((2, 3)), lambda x: x.mean(1)]))),
    "sum": lambda d: nn.Sequential(_affine(d), Lambda(d.choice([lambda x: x.sum((1, 2)), lambda x: x.sum(-1)]))),
    "scalars": _scalars,
    "normalize": Normalize,
    "deep": _deep,
}  # fmt: skip


def network(kind: str, seed: int) -> nn.Module:
    """Return a random float32 network (B, 4, 8, 8) -> (B, ...), with weights of random size and biases that cancel."""
    dice = random.Random(seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        net = KINDS[kind](dice).eval()
        size = (
            10 ** dice.uniform(-2, 2)
            if kind in ("linear", "conv", "transposed conv")
            else 10 ** dice.uniform(-0.5, 0.5)
        )
        for module in net.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d, nn.ConvTranspose2d)):
                module.weight.mul_(size)
                if module.bias is not None:
                    module.bias.mul_(size * dice.choice([1, 1, 100]))
        return net.float()


@dataclass
class Count:
    """Statistics of one layer kind."""

    nets: int = 0
    outputs: int = 0
    outside: int = 0
    refused: int = 0
    error: float = 0.0
    ratios: list[float] = field(default_factory=list)

    def enough(self, outputs: float, nets: int) -> bool:
        return self.refused > 3 or (self.outputs >= outputs and self.nets >= nets)

    def row(self) -> dict[str, float | int | None]:
        ratios = torch.tensor(self.ratios or [torch.nan])
        return {
            "nets": self.nets, "outputs": self.outputs, "outside": self.outside, "refused": self.refused,
            "largest_error": self.error, "smallest_ratio": float(ratios.min()), "median_ratio": float(ratios.median()),
        }  # fmt: skip


@torch.no_grad()
def bounds(net: nn.Module, x: Tensor, eps: float, kind: str) -> tuple[Tensor, Tensor]:
    if kind == "box":
        found = net(Box.ball(x, eps))
    else:
        from advibp.bounds.rounded import Rounded

        found = net(Rounded.ball(x, eps, arithmetic=torch.float32))
    return found.lower.double(), found.upper.double()


def check(kind: str, seed: int, how: str, count: Count, orders: int = 6, points: int = 6) -> None:
    """Compare the outputs of one network with its bounds over some boxes."""
    net = network(kind, seed)
    double = copy.deepcopy(net).double()
    dice = torch.Generator().manual_seed(seed)
    x = torch.rand(3, *SHAPE, generator=dice)
    x[0] *= 10.0 ** -float(torch.randint(0, 12, (), generator=dice))  # small pixels
    for eps in (0.0, 10 ** (-5 * float(torch.rand((), generator=dice)))):
        lower, upper = bounds(net, x, eps, how)
        noise = torch.rand(points, *x.shape, generator=dice) * 2 - 1
        noise[::2] = noise[::2].sign()
        members = into_ball(x + eps * noise, x, torch.tensor(eps, dtype=torch.float64)) if eps else x[None]
        batch = members.flatten(0, 1)
        exact = by_torch(double, batch.double()).unflatten(0, members.shape[:2])
        found = [outputs(net, batch, random_order(seed * 100 + k)) for k in range(orders)]
        found += [by_torch(net, batch), by_torch(net, batch, channels_last=True)]
        error = torch.zeros_like(exact)
        for z in (exact, *(z.unflatten(0, members.shape[:2]).double() for z in found)):
            count.outputs += z.numel()
            count.outside += int((~((z >= lower) & (z <= upper))).sum())
            error = torch.maximum(error, (z - exact).abs())
        if eps == 0.0:
            room = torch.maximum(upper - exact[0], exact[0] - lower)
            seen = error[0] > 0
            count.error = max(count.error, float(error.max()))
            count.ratios += (room[seen] / error[0][seen]).tolist()[:2000]


def run(wanted: int, nets: int, minutes: float, seed: int, how: str, kinds: list[str]) -> dict[str, Count]:
    """Check at least `wanted` outputs in total and `nets` networks of each kind, or until the time limit."""
    counts = {kind: Count() for kind in kinds}
    began = told = time.monotonic()
    while time.monotonic() - began < 60 * minutes:
        for kind, count in counts.items():
            if count.enough(wanted / len(kinds), nets):
                continue
            count.nets += 1
            try:
                check(kind, seed, how, count)
            except Exception as error:  # an operation without a rule
                if type(error).__name__ != "UnsupportedOperation":
                    raise
                count.refused += 1
            if time.monotonic() - told > 10:
                told = time.monotonic()
                total, outside = (sum(getattr(c, name) for c in counts.values()) for name in ("outputs", "outside"))
                print(f"{total} outputs, {outside} outside, {told - began:.0f} s", file=sys.stderr, flush=True)
        seed += 1
        if all(count.enough(wanted / len(kinds), nets) for count in counts.values()):
            break
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--outputs", type=int, default=2_000_000, help="float32 outputs to compare, over all kinds")
    parser.add_argument("--nets", type=int, default=20, help="networks of each kind, at least")
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--bounds", choices=["rounded", "box"], default="rounded")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--json", type=Path, help="write the figures here")
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts = run(args.outputs, args.nets, args.minutes, args.seed, args.bounds, args.kinds)
    print(
        f"{'layer kind':<18}{'nets':>6}{'outputs':>10}{'outside':>9}{'error seen':>12}{'least ratio':>13}{'median':>9}"
    )
    for kind, count in counts.items():
        row = count.row()
        ratios = f"{row['smallest_ratio']:>13.3g}{row['median_ratio']:>9.3g}"
        refused = "  refused" if count.refused else ""
        print(f"{kind:<18}{count.nets:>6}{count.outputs:>10}{count.outside:>9}{count.error:>12.2g}{ratios}{refused}")
    total, outside = (sum(getattr(count, name) for count in counts.values()) for name in ("outputs", "outside"))
    print(f"{'all':<18}{'':>6}{total:>10}{outside:>9}")
    if args.json:
        result = {"command": shlex.join(["python", *sys.argv]), "outputs": total, "outside": outside}
        result["kinds"] = {kind: count.row() for kind, count in counts.items()}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if outside else 0


if __name__ == "__main__":
    sys.exit(main())
