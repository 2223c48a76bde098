"""Exact minimum of a margin over a box, for networks with few ReLUs: one linear program per activation pattern.

Where each ReLU is known to be on or off the network is affine, and the points for which it is so are a polytope.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from scipy.optimize import linprog
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds.box import Box
from advibp.bounds.domain import spellings

_RELUS = frozenset(spellings("relu relu_"))


class Patterns(TorchFunctionMode):
    """Mode in which a ReLU multiplies by the next bits of a pattern (0 at its end) and records its input."""

    def __init__(self, bits: list[int]) -> None:
        super().__init__()
        self.bits, self.entered = bits, list[Tensor]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func not in _RELUS:
            return func(*args, **kwargs)
        z: Tensor = kwargs["input"] if "input" in kwargs else args[0]
        begin = sum(e.shape[1] for e in self.entered)
        self.entered.append(z.flatten(1).clone())
        bits = self.bits[begin : begin + z[0].numel()]
        bits = bits + [0] * (z[0].numel() - len(bits))
        on = z * torch.tensor(bits, dtype=z.dtype).view(1, *z.shape[1:])
        in_place = func.__name__ == "relu_" or kwargs.get("inplace", False)
        return z.copy_(on) if in_place else on


def count_relus(net: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the number of ReLUs per image of this shape."""
    with Patterns([]) as patterns, torch.no_grad():
        net(torch.zeros(1, *shape, dtype=torch.float64))
    return sum(z.shape[1] for z in patterns.entered)


def exact_margins(net: nn.Module, box: Box, y: int) -> Tensor:
    """Return the smallest z_y - z_k over a box (1, ...) per class (K,), for networks of affine layers and ReLUs."""
    lower, upper = box.lower.flatten().numpy(), box.upper.flatten().numpy()
    bounds = numpy.stack([lower, upper], 1)
    points = torch.cat([torch.zeros(1, len(lower)), torch.eye(len(lower))]).double().view(-1, *box.shape[1:])

    def form(values: Tensor) -> tuple[Any, float]:
        """Return slope and offset of an affine function from its values at 0 and at the unit vectors."""
        return (values[1:] - values[0]).numpy(), float(values[0])

    def least(slope: Any, offset: float, rows: list[tuple[Any, float]]) -> float:
        """Return the minimum of slope x + offset over points of the box with s x + o <= 0 in all rows; inf if none."""
        if not rows:
            return offset + float(numpy.where(slope > 0, slope * lower, slope * upper).sum())
        found = linprog(slope, numpy.stack([s for s, _ in rows]), [-o for _, o in rows], bounds=bounds, method="highs")
        return offset + float(found.fun) if found.status == 0 else numpy.inf

    best = [numpy.inf] * net(box.center).shape[1]
    relus = count_relus(net, tuple(box.shape[1:]))
    todo: list[tuple[list[int], list[tuple[Any, float]]]] = [([], [])]
    while todo:
        bits, rows = todo.pop()
        with Patterns(bits) as patterns, torch.no_grad():
            outputs = net(points.clone())
        if len(bits) == relus:
            margins = outputs[:, y : y + 1] - outputs
            best = [min(b, least(*form(margins[:, k]), rows)) for k, b in enumerate(best)]
            continue
        slope, offset = form(torch.cat(patterns.entered, 1)[:, len(bits)])  # the bits so far decide it
        if least(slope, offset, []) >= 0:
            todo.append(([*bits, 1], rows))
        elif least(-slope, -offset, []) >= 0:
            todo.append(([*bits, 0], rows))
        else:
            for bit, row in ((0, (slope, offset)), (1, (-slope, -offset))):
                if least(*row, rows) <= 0:
                    todo.append(([*bits, bit], [*rows, row]))
    return torch.tensor(best, dtype=torch.float64)
