"""The forward and backward passes of one step: the losses of a batch and their gradients.

A batch may be split into parts to save memory. A loss is a mean over the batch, so its gradient is the sum of the
parts' gradients, each multiplied by its share of the batch.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from advibp.execution import batchnorm
from advibp.execution.recompute import recompute_activations
from advibp.objectives import DEFAULT_CONTEXT, Context, Objective
from advibp.training.stages import Stages
from advibp.weighting import FlatGradients


class Losses(NamedTuple):
    """Mean losses and mean FOSC of a batch; None for what was not computed."""

    lower: Tensor | None = None
    upper: Tensor | None = None
    fosc: Tensor | None = None

    def plus(self, other: Losses) -> Losses:
        return Losses(*(a if b is None else b if a is None else a + b for a, b in zip(self, other, strict=True)))


class Passes:
    """Runs the passes of a step.

    Args:
        stages: the network, and the layer-wise stage it is in.
        gradients: where the gradients are written.
        trains_batchnorm: whether the network normalizes by batch statistics.
        batchnorm_of: whose statistics the bounds use, "adversarial" or "clean".
        at_once: largest number of samples in memory; 0 for the whole batch.
        recompute: keep fewer activations and compute the others again in the backward pass.
    """

    def __init__(
        self,
        stages: Stages,
        gradients: FlatGradients,
        *,
        trains_batchnorm: bool,
        batchnorm_of: str,
        at_once: int,
        recompute: bool,
    ) -> None:
        self.stages, self.gradients = stages, gradients
        self.trains_batchnorm, self.batchnorm_of = trains_batchnorm, batchnorm_of
        self.at_once, self.recompute = at_once, recompute

    def prepare(self, x: Tensor) -> None:
        """Cut the network for batches of this shape. Call it before a step, because it runs the network."""
        if self.stages.stage:
            for part in self._split(x):
                self.stages.cut(part)

    def _split(self, batch: Tensor) -> tuple[Tensor, ...]:
        return batch.split(self.at_once or len(batch))

    def run(
        self,
        lower: Objective | None,
        upper: Objective | None,
        x: Tensor,
        y: Tensor,
        eps: float,
        context: Context = DEFAULT_CONTEXT,
    ) -> Losses:
        """Return the losses of a batch x (B, ...), y (B,).

        The gradients are written to rows 0 and 1 of `gradients`, or to `final` if there is one objective.
        """
        losses = Losses()
        for k, (images, labels) in enumerate(zip(self._split(x), self._split(y), strict=True)):
            share = len(images) / len(x)
            losses = losses.plus(self._part(lower, upper, images, labels, eps, context, share, add=k > 0))
        return losses

    def captures_clean(self, lower: Objective | None, upper: Objective | None) -> bool:
        """Return whether a clean pass computes BatchNorm's statistics first."""
        return upper is not None and (lower is None or self.batchnorm_of == "clean")

    def _part(
        self,
        lower: Objective | None,
        upper: Objective | None,
        x: Tensor,
        y: Tensor,
        eps: float,
        context: Context,
        share: float,
        add: bool,
    ) -> Losses:
        net, rows = self.stages.net, (0, 1) if lower and upper else (-1, -1)
        lower_loss = upper_loss = fosc = None
        inputs = self.stages.inputs(x, eps)
        recompute = recompute_activations(inputs.net, self.recompute)
        with batchnorm.step(net, self.trains_batchnorm) as statistics, recompute:
            if statistics and self.captures_clean(lower, upper):
                statistics.capture(inputs.net, self.stages.clean(x))
            if lower:
                loss, point = lower(inputs.net, inputs.ball, y, context)
                wanted = [] if point is None else [point]
                keep = bool(upper and statistics)  # the upper loss differentiates BatchNorm's statistics too
                at_point = self.gradients.take(rows[0], loss, wanted, share=share, add=add, keep_graph=keep)
                lower_loss = loss.detach() * share
                if point is not None:
                    fosc = inputs.fosc(point, at_point[0]) * share
            if upper:
                loss = upper(inputs.net, inputs.ball, y, context).loss
                self.gradients.take(rows[1], loss, share=share, add=add)
                upper_loss = loss.detach() * share
        return Losses(lower_loss, upper_loss, fosc)
