"""The network as its stages see it: in stage 0 whole, on images; in stage k the layers behind a cut, on latent sets.

`Stages` also keeps the mode in which each layer is trained, for a frozen layer is one in evaluation mode.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advibp import attacks
from advibp.attacks import Range
from advibp.bounds import Box
from advibp.bounds.graph.cut import Cut, cuts
from advibp.bounds.latent import LatentZonotope
from advibp.errors import UserError
from advibp.execution import batchnorm
from advibp.execution.own_copy import run_on_copy
from advibp.objectives import PIXELS


@dataclass(frozen=True)
class Inputs:
    """A network, or the rest of one, and the set of its inputs: all within eps of x, and within `within`."""

    net: Any
    x: Tensor
    eps: float | Tensor
    within: Range = PIXELS
    fosc_within: Range = PIXELS

    def fosc(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Mean FOSC of the batch, each sample in the scale of its own loss, over the ball within `fosc_within`.

        It is infinite where the gradient is 0 for all samples: a network that does not depend on its input has no
        strong attack, though the formula gives 0.
        """
        ends = attacks.feasible(self.x, self.eps, self.fosc_within)
        mean = attacks.fosc(point.detach(), gradient, *ends).mean() * len(self.x)
        return torch.where(gradient.any(), mean, math.inf)


class Stages:
    """A network, the stage it is in, and how it is cut there."""

    def __init__(self, net: nn.Module, projections: int | None = None, fosc_within: Range = PIXELS) -> None:
        """projections: what a latent set is, a zonotope that so many of them estimate; None: a box.

        fosc_within: the range of pixels that FOSC's set is clipped to; None for the ball as the paper prints it.
        """
        self.net, self.stage, self.projections, self.fosc_within = net, 0, projections, fosc_within
        # Every layer is trained in the mode it comes in: one that is given in evaluation mode stays frozen in it.
        self.modes = [(module, module.training) for module in net.modules()]
        self._cuts: dict[int, Cut] = {}  # by batch size, as a recorded network serves one

    def count(self, asked: int | str, x: Tensor) -> int:
        """How many stages there will be, if so many are asked for, or all."""
        found, refused = self._find_cuts(x)
        if asked == "all" and found:
            return len(found)
        if asked == "all" or int(asked) > len(found):
            why = f" {refused[0]}" if refused else ""
            raise UserError(
                f"stages is {asked}, but the network can be cut at {len(found)} of its layers; ask for at most that."
                f"{why}"
            )
        return int(asked)

    def begin(self, stage: int, x: Tensor | None) -> list[nn.Parameter]:
        """The parameters that this stage trains; x is a batch, to find the cut with, which stage 0 has not."""
        self.stage = stage
        self._cuts.clear()
        frozen: set[int] = set()
        if x is not None:
            frozen = {id(p) for p in self.cut(x).frozen}
            self.modes = [(module, training and not _all_in(module, frozen)) for module, training in self.modes]
            self._cuts.clear()  # a tape would remember the modes it was recorded in
        return [p for p in self.net.parameters() if p.requires_grad and id(p) not in frozen]

    def cut(self, x: Tensor) -> Cut:
        """The network cut for this stage, for batches like x."""
        if len(x) not in self._cuts:
            self._cuts[len(x)] = self._find_cuts(x)[0][self.stage - 1]
        return self._cuts[len(x)]

    def inputs(self, x: Tensor, eps: float) -> Inputs:
        """What is trained, and the set it is trained on: images, or the latent box that they become."""
        if not self.stage:
            return Inputs(self.net, x, eps, fosc_within=self.fosc_within)
        return self._latent(self.cut(x), Box.ball(x, eps))

    def _latent(self, cut: Cut, box: Box) -> Inputs:
        with torch.no_grad(), batchnorm.Population():
            if self.projections is None:
                latent = cut.before(box)
                return Inputs(cut.after, latent.center, latent.radius, None, None)
            zonotope = LatentZonotope(cut.before, cut.after, box, projections=self.projections)
        # A point of it is given by its noise, so the set that is attacked is the noise's.
        return Inputs(zonotope, box.center.new_zeros(len(box), zonotope.symbols), 1.0, None, None)

    def latent(self, stages: int, x: Tensor, eps: float) -> Iterator[Inputs]:
        """What so many stages will be trained on, to find out before whether that can be."""
        for cut in self._find_cuts(x)[0][:stages] if stages else []:
            yield self._latent(cut, Box.ball(x, eps))

    def clean(self, x: Tensor) -> Tensor:
        """What the images themselves become there."""
        if not self.stage:
            return x
        with torch.no_grad(), batchnorm.Population():
            latent: Tensor = run_on_copy(self.cut(x).before, x)
            return latent

    def _find_cuts(self, x: Tensor) -> tuple[list[Cut], list[str]]:
        with self.traceless():
            return cuts(self.net, x)

    @contextmanager
    def traceless(self) -> Iterator[None]:
        """What runs here changes no running statistics, and layers are in the modes they are trained in."""
        buffers = [(buffer, buffer.clone()) for buffer in self.net.buffers()]
        self.resume_modes()
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)

    def resume_modes(self) -> None:
        for module, training in self.modes:
            module.training = training

    def trains_batchnorm(self, x: Tensor) -> bool:
        with self.traceless():
            return batchnorm.in_training(self.net, x)


def _all_in(module: nn.Module, frozen: set[int]) -> bool:
    """Whether a layer has parameters of its own, all of them frozen."""
    own = [id(p) for p in module.parameters(recurse=False)]
    return bool(own) and frozen.issuperset(own)
