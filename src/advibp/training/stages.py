"""The network and its inputs in each layer-wise stage.

In stage 0 the whole network is trained on images. In stage k the layers behind the k-th cut are trained on latent sets,
and the layers before it are frozen. `Stages` also restores the mode (training or evaluation) of every layer, because a
frozen layer stays in evaluation mode.
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
from advibp.bounds import Box, Perturbation
from advibp.bounds.graph.cut import Cut, cuts, split
from advibp.bounds.latent import LatentZonotope
from advibp.bounds.perturbation import PIXELS
from advibp.errors import UserError
from advibp.execution import batchnorm
from advibp.execution.modes import is_dropout
from advibp.execution.own_copy import run_on_copy
from advibp.objectives import Ball


@dataclass(frozen=True)
class Inputs:
    """A network, or the layers behind a cut, and the set of its inputs.

    Attributes:
        net: maps inputs (B, ...) to logits (B, K).
        ball: the set of inputs.
        fosc_within: the range to which FOSC's set is clipped; None for the whole ball.
    """

    net: Any
    ball: Ball
    fosc_within: Range = (0.0, 1.0)

    def fosc(self, point: Tensor, gradient: Tensor) -> Tensor:
        """Return the mean FOSC of the batch, in the scale of each sample's loss.

        FOSC is infinite if the gradient of the batch is 0. Such a network does not depend on its input, so no attack
        on it counts as strong, although the formula gives 0.

        Args:
            point: adversarial examples, (B, ...).
            gradient: gradient of the batch-mean loss there, (B, ...).
        """
        lower, upper = attacks.feasible(self.ball.x, self.ball.eps, self.fosc_within)
        mean = attacks.fosc(point.detach(), gradient, lower, upper).mean() * len(self.ball.x)
        return torch.where(gradient.any(), mean, math.inf)


class Stages:
    """A network, its current stage, and its cuts.

    Args:
        net: the network.
        projections: latent sets are zonotopes that this many random projections estimate; None: boxes.
        perturbation: the set of allowed changes of an input. Default: that of images.
        clips_fosc: whether FOSC's set is clipped to the range of the inputs. False: the whole ball, as printed in the
            paper.
    """

    def __init__(
        self,
        net: nn.Module,
        projections: int | None = None,
        perturbation: Perturbation = PIXELS,
        *,
        clips_fosc: bool = True,
    ) -> None:
        self.net, self.stage, self.projections, self.perturbation = net, 0, projections, perturbation
        self.fosc_within = perturbation.within if clips_fosc else None
        # Every layer keeps its mode: a layer that the user put in evaluation mode stays in it. Dropout is off.
        self.modes = [(module, module.training and not is_dropout(module)) for module in net.modules()]
        self._cuts: dict[int, Cut] = {}  # by batch size, because a recorded graph is valid for one
        self._splits: dict[int, Cut] = {}  # of TAPS, by batch size

    def count(self, stages: int | str, x: Tensor) -> int:
        """Return the number of stages for the recipe's `stages`, a number or "all". x is a batch.

        Raises:
            UserError: if the network has fewer cuts.
        """
        found, refusals = self._find_cuts(x)
        if stages == "all" and found:
            return len(found)
        if stages == "all" or int(stages) > len(found):
            reason = f" {refusals[0]}" if refusals else ""
            raise UserError(
                f"stages is {stages}, but the network can be cut at {len(found)} of its layers; set stages to at most "
                f"{len(found)}.{reason}"
            )
        return int(stages)

    def begin(self, stage: int, x: Tensor | None) -> list[nn.Parameter]:
        """Begin a stage and return the parameters that it trains. x: a batch to find the cut with; None in stage 0."""
        self.stage = stage
        self._cuts.clear()
        frozen: set[int] = set()
        if x is not None:
            frozen = {id(p) for p in self.cut(x).frozen}
            self.modes = [(module, training and not _all_in(module, frozen)) for module, training in self.modes]
            self._cuts.clear()  # a recorded graph keeps the modes of its layers
        return [p for p in self.net.parameters() if p.requires_grad and id(p) not in frozen]

    def cut(self, x: Tensor) -> Cut:
        """Return the cut of this stage for batches of this shape."""
        if len(x) not in self._cuts:
            self._cuts[len(x)] = self._find_cuts(x)[0][self.stage - 1]
        return self._cuts[len(x)]

    def split(self, x: Tensor, layers: int) -> Cut:
        """Return the network split for TAPS, for batches of this shape; the last `layers` layers are behind the cut."""
        if len(x) not in self._splits:
            with self.with_buffers_restored():
                self._splits[len(x)] = split(self.net, layers, x)
        return self._splits[len(x)]

    def inputs(self, x: Tensor, eps: float) -> Inputs:
        """Return what this stage trains, and its set of inputs: the ball around x, or its image in the latent space."""
        if not self.stage:
            return Inputs(self.net, Ball.of(x, eps, self.perturbation), self.fosc_within)
        return self._latent(self.cut(x), self.perturbation.box(x, eps))

    def _latent(self, cut: Cut, box: Box) -> Inputs:
        with torch.no_grad(), batchnorm.Population():
            if self.projections is None:
                latent = cut.before(box)
                return Inputs(cut.after, Ball(latent.center, latent.radius, within=None), None)
            zonotope = LatentZonotope(cut.before, cut.after, box, projections=self.projections)
        # The zonotope is parametrized by its noise symbols in [-1, 1].
        return Inputs(zonotope, Ball(box.center.new_zeros(len(box), zonotope.symbols), 1.0, within=None), None)

    def latent(self, stages: int, x: Tensor, eps: float) -> Iterator[Inputs]:
        """Yield the inputs of each stage, to check them before training."""
        for cut in self._find_cuts(x)[0][:stages] if stages else []:
            yield self._latent(cut, self.perturbation.box(x, eps))

    def clean(self, x: Tensor) -> Tensor:
        """Return the inputs x as this stage gets them: x itself, or its latent representation."""
        if not self.stage:
            return x
        with torch.no_grad(), batchnorm.Population():
            latent: Tensor = run_on_copy(self.cut(x).before, x)
            return latent

    def _find_cuts(self, x: Tensor) -> tuple[list[Cut], list[str]]:
        with self.with_buffers_restored():
            return cuts(self.net, x)

    @contextmanager
    def with_buffers_restored(self) -> Iterator[None]:
        """Give layers their training modes, and restore the buffers (running statistics) at the end."""
        buffers = [(buffer, buffer.clone()) for buffer in self.net.buffers()]
        self.resume_modes()
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in buffers:
                    buffer.copy_(value)

    def resume_modes(self) -> None:
        """Put every layer in its mode for training."""
        for module, training in self.modes:
            module.training = training

    def trains_batchnorm(self, x: Tensor) -> bool:
        """Return whether a BatchNorm layer uses batch statistics on x."""
        with self.with_buffers_restored():
            return batchnorm.in_training(self.net, x)


def _all_in(module: nn.Module, frozen: set[int]) -> bool:
    """Return whether a layer has parameters, and all of them are frozen."""
    params = [id(p) for p in module.parameters(recurse=False)]
    return bool(params) and frozen.issuperset(params)
