"""Why a training stopped: where in the network the bounds grow beyond use."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.graph.tape import Tape
from advibp.errors import UserError
from advibp.execution import batchnorm


class Diverged(UserError):
    """A loss or a gradient is no usable number any more."""


class Width(NamedTuple):
    """Mean width of the bounds, upper - lower, of one operation's results."""

    layer: str
    width: float


@torch.no_grad()
def widths(net: nn.Module, x: Tensor, eps: float, *, of: int = 8) -> list[Width]:
    """Through the network, operation by operation, over the first images of a batch x (B, ...): the input's first.

    As in training: layers in the modes they are in, and BatchNorm with the statistics of the whole batch.
    """
    with batchnorm.step(net, batchnorm.in_training(net, x)) as statistics:
        if statistics:
            statistics.capture(net, x)
        box = Box.ball(x[:of], eps)
        tape = Tape.record(net, box)
        found = [Width("the input", _mean_width(box))]
        for index, value in tape.trace(box):
            if isinstance(value, Box):
                found.append(Width(tape.name(index), _mean_width(value)))
        return found


def _mean_width(box: Box) -> float:
    return 2 * float(box.radius.double().mean())


def explain(net: nn.Module, x: Tensor, eps: float) -> str:
    """Half a sentence on where the bounds of a few images grow most."""
    try:
        found = widths(net, x, eps)
    except Exception:  # one that can't be recorded, or bounded; it must not hide what is to be told
        return "where its bounds grow can't be told"
    for width in found:
        if not width.width < float("inf"):
            return f"its bounds are no finite numbers from {width.layer} on"
    first, last = found[0], found[-1]
    grown = [(b.width / a.width if a.width > 0 else 0.0, b) for a, b in itertools.pairwise(found)]
    factor, worst = max(grown, key=lambda pair: pair[0])
    return (
        f"its bounds are {first.width:.3g} wide at the input, {last.width:.3g} at the output, and grow most in "
        f"{worst.layer}, {factor:.3g} times to {worst.width:.3g}"
    )
