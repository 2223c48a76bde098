"""Explain why a training diverged: in which layer the bounds grow most."""

from __future__ import annotations

import itertools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from advibp.bounds import Box, Perturbation
from advibp.bounds.graph.tape import Tape
from advibp.bounds.perturbation import PIXELS
from advibp.errors import UserError
from advibp.execution import batchnorm


class Diverged(UserError):
    """A loss or a gradient is not finite, or a loss is larger than max_loss."""


class Width(NamedTuple):
    """Mean width (upper - lower) of the bounds of one operation's result."""

    layer: str
    width: float


@torch.no_grad()
def widths(net: nn.Module, x: Tensor, eps: float, perturbation: Perturbation = PIXELS, *, of: int = 8) -> list[Width]:
    """Return the mean width of the bounds after every operation, beginning with the input.

    Layers keep their modes, and BatchNorm uses the statistics of the whole batch, as in training.

    Args:
        net: the network.
        x: a batch, (B, ...).
        eps: radius.
        perturbation: the set of allowed changes of an input. Default: that of images.
        of: number of samples for which bounds are computed.
    """
    with batchnorm.step(net, batchnorm.in_training(net, x)) as statistics:
        if statistics:
            statistics.capture(net, x)
        box = perturbation.box(x[:of], eps)
        tape = Tape.record(net, box)
        result = [Width("the input", _mean_width(box))]
        for index, value in tape.trace(box):
            if isinstance(value, Box):
                result.append(Width(tape.name(index), _mean_width(value)))
        return result


def _mean_width(box: Box) -> float:
    return 2 * float(box.radius.double().mean())


def explain(net: nn.Module, x: Tensor, eps: float, perturbation: Perturbation = PIXELS) -> str:
    """Return a clause that says where the bounds of a few samples grow most."""
    try:
        result = widths(net, x, eps, perturbation)
    except Exception:  # the network can't be recorded or bounded; the caller's message matters more
        return "the bounds of its layers can't be computed"
    for width in result:
        if not width.width < float("inf"):
            return f"its bounds are not finite from {width.layer} on"
    first, last = result[0], result[-1]
    grown = [(b.width / a.width if a.width > 0 else 0.0, b) for a, b in itertools.pairwise(result)]
    factor, worst = max(grown, key=lambda pair: pair[0])
    return (
        f"its bounds are {first.width:.3g} wide at the input, {last.width:.3g} at the output, and grow most in "
        f"{worst.layer}, {factor:.3g} times to {worst.width:.3g}"
    )
