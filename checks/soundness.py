"""Check on random networks that no value is outside of any bound.

    python checks/soundness.py --nets 500 --minutes 20 --seed 0 --json counts.json

For each network and several eps, the bounds of ibp, crown-ibp, crown, alpha-crown and deepz on margins, outputs and
pre-activations are compared with the values at random points, at vertices and at results of PGD. For networks with few
ReLUs they are also compared with the exact margin. The exit code is 1 if any value is outside.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from exact import exact_margins
from networks import CLASSES, Network, network

from advibp.attacks import linf_pgd
from advibp.bounds.box import Box
from advibp.bounds.graph.tape import Tape
from advibp.bounds.linear.alpha_crown import alpha_margins
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.zonotope import Zonotope

TOLERANCE = 1e-9
RADII = (0.01, 0.1, 0.4)


class Bounds:
    """All bounds of a network over a box (B, ...): lower margins by method, and boxes of values by node."""

    def __init__(self, net: nn.Module, box: Box, y: Tensor) -> None:
        self.margins: dict[str, Tensor] = {}
        self.outputs: dict[str, tuple[Tensor, Tensor]] = {}
        self.values: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
        with torch.no_grad():
            for name, output in (("ibp", net(box.clone())), ("deepz", net(Zonotope.from_box(box)))):
                self.margins[name], self.outputs[name] = output.lower_margins(y), (output.lower, output.upper)
            linear = LinearBounds(net, box, at_once=64)
            for name in ("crown-ibp", "crown"):
                output = linear.output()
                self.margins[name], self.outputs[name] = linear.margins(y), (output.lower, output.upper)
                self.values[name] = dict(linear.intermediate_bounds)
                linear.refine()
            self.margins["alpha-crown"] = alpha_margins(linear, y, steps=8)


def points(net: nn.Module, box: Box, y: Tensor, count: int) -> Tensor:
    """Return points (P, B, ...) of a box: random ones, vertices, mixtures of both, and results of attacks."""
    noise = torch.rand(3, count, *box.shape, dtype=box.dtype) * 2 - 1
    noise[1] = noise[1].sign()
    noise[2] = (3 * noise[2]).clamp(-1, 1)
    found = [(box.center + box.radius * noise).flatten(0, 1)]
    plain = lambda x: net(x.as_subclass(Tensor))  # noqa: E731  (in-place layers need plain tensors)
    for loss in ("ce", "margin"):
        for label in (y, (y + 1) % CLASSES):
            attacked = linf_pgd(plain, box.center, label, box.radius, steps=8, rel_stepsize=0.3, loss=loss, within=None)
            found.append(attacked.x_adv[None])
    members = torch.cat(found)
    return torch.minimum(torch.maximum(members, box.lower), box.upper)


def outside(value: Tensor, lower: Tensor, upper: Tensor | None = None) -> int:
    """Return how many values are outside of their bounds by more than rounding errors; NaN counts as outside."""
    inside = value >= lower - TOLERANCE * (1 + value.abs() + lower.abs())
    if upper is not None:
        inside &= value <= upper + TOLERANCE * (1 + value.abs() + upper.abs())
    return int((~inside).sum())


def check(
    found: Network, eps: float, seed: int, count: int = 40, most: int = 12
) -> Iterator[tuple[str, int, int, int]]:
    """Return (name, points, bounds, violations) of each comparison, for one box of two images."""
    torch.manual_seed(seed)
    net, x = found.net, torch.rand(2, *found.shape, dtype=torch.float64)
    box, y = Box.ball(x, eps), torch.randint(CLASSES, (2,))
    bounds = Bounds(net, box, y)
    members = points(net, box, y, count)  # (P, B, ...)
    batch = members.flatten(0, 1)
    tape = Tape.record(net, batch)
    with torch.no_grad():
        values = {i: v.clone() for i, v in [(0, batch), *_read(tape, batch)]}
        output = net(batch.clone()).unflatten(0, members.shape[:2])  # (P, B, K)
    margins = output.gather(2, y.view(1, -1, 1).expand(len(output), -1, 1)) - output
    for name, lower in bounds.margins.items():
        yield f"{name} margins", len(batch), lower.numel(), outside(margins, lower)
    for name, ends in bounds.outputs.items():
        yield f"{name} output", 0, 2 * ends[0].numel(), outside(output, *ends)
    for name, boxes in bounds.values.items():
        for index, ends in boxes.items():
            value = values[index].unflatten(0, members.shape[:2])
            yield f"{name} at {tape.name(index)}", 0, 2 * ends[0].numel(), outside(value, *ends)
    if found.relus is not None and found.relus <= most:
        for i in range(len(x)):
            exact = exact_margins(net, Box(center=box.center[i : i + 1], radius=box.radius[i : i + 1]), int(y[i]))
            yield "exact margins", 0, 0, outside(margins[:, i], exact)
            for name, lower in bounds.margins.items():
                yield f"{name} against exact", 0, CLASSES, outside(exact, lower[i])


def _read(tape: Tape, batch: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield the values of nodes before later in-place operations change them."""
    return ((i, v.clone()) for i, v in tape.trace(batch) if isinstance(v, Tensor))


def run(nets: int, seed: int, minutes: float, *, quiet: bool = False, most: int = 12) -> Counter[str]:
    """Check `nets` networks, or fewer if the time is over."""
    counts = Counter[str](nets=0, points=0, bounds=0, exact=0, violations=0)
    began = told = time.monotonic()
    for number in range(seed, seed + nets):
        if time.monotonic() - began > 60 * minutes:
            break
        found = network(number)
        counts["nets"] += 1
        counts["exact"] += found.relus is not None and found.relus <= most
        for eps in RADII:
            for name, seen, bounds, wrong in check(found, eps, number, most=most):
                counts.update(points=seen if name.startswith("ibp") else 0, bounds=bounds, violations=wrong)
                if wrong:
                    print(
                        f"VIOLATION: network {number} ({found.kind}), eps {eps}: {wrong} outside of {name}", flush=True
                    )
        if not quiet and time.monotonic() - told > 5:
            told = time.monotonic()
            print(f"{told - began:6.0f} s  {_line(counts)}", flush=True)
    return counts


def _line(counts: Counter[str]) -> str:
    return ", ".join(f"{counts[name]} {name}" for name in ("nets", "exact", "points", "bounds", "violations"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    counts = run(options.nets, options.seed, options.minutes)
    if options.json:
        options.json.write_text(json.dumps({"seed": options.seed, **counts}) + "\n")
    print(_line(counts))
    return 1 if counts["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
