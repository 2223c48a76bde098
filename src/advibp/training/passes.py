"""The passes of one step: each objective's loss and its gradient, for a whole batch or a part of it at a time.

A loss is the mean over its images, so the parts' gradients, each times its share of the batch, add up to the batch's.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from advibp.execution import batchnorm
from advibp.execution.recompute import recomputing
from advibp.objectives import AT_THE_END, Now, Objective
from advibp.training.stages import Stages
from advibp.weighting import FlatGradients


class Losses(NamedTuple):
    """Means over the batch; None for what was not asked for."""

    lower: Tensor | None = None
    upper: Tensor | None = None
    fosc: Tensor | None = None

    def plus(self, other: Losses) -> Losses:
        return Losses(*(a if b is None else b if a is None else a + b for a, b in zip(self, other, strict=True)))


class Passes:
    """What stays the same from step to step."""

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
        """Cut the network for batches like x; to be done before a step, as it runs the network."""
        if self.stages.stage:
            for part in self._split(x):
                self.stages.cut(part)

    def _split(self, batch: Tensor) -> tuple[Tensor, ...]:
        return batch.split(self.at_once or len(batch))

    def run(
        self, lower: Objective | None, upper: Objective | None, x: Tensor, y: Tensor, eps: float, now: Now = AT_THE_END
    ) -> Losses:
        """Losses of a batch; the gradients are in rows 0 and 1, or in `final` where there is one objective."""
        losses = Losses()
        for k, (images, labels) in enumerate(zip(self._split(x), self._split(y), strict=True)):
            share = len(images) / len(x)
            losses = losses.plus(self._part(lower, upper, images, labels, eps, now, share, add=k > 0))
        return losses

    def captures_clean(self, lower: Objective | None, upper: Objective | None) -> bool:
        """Whether a clean pass comes first, for BatchNorm's statistics."""
        return upper is not None and (lower is None or self.batchnorm_of == "clean")

    def _part(
        self,
        lower: Objective | None,
        upper: Objective | None,
        x: Tensor,
        y: Tensor,
        eps: float,
        now: Now,
        share: float,
        add: bool,
    ) -> Losses:
        net, rows = self.stages.net, (0, 1) if lower and upper else (-1, -1)
        below = above = fosc = None
        inputs = self.stages.inputs(x, eps)
        with batchnorm.step(net, self.trains_batchnorm) as statistics, recomputing(inputs.net, self.recompute):
            if statistics and self.captures_clean(lower, upper):
                statistics.capture(inputs.net, self.stages.clean(x))
            if lower:
                loss, point = lower(inputs.net, inputs.x, y, inputs.eps, inputs.within, now)
                wanted = [] if point is None else [point]
                keep = bool(upper and statistics)  # the bounds' gradient flows back through BatchNorm's statistics
                at_point = self.gradients.take(rows[0], loss, wanted, share=share, add=add, keep_graph=keep)
                below = loss.detach() * share
                if point is not None:
                    fosc = inputs.fosc(point, at_point[0]) * share
            if upper:
                loss = upper(inputs.net, inputs.x, y, inputs.eps, inputs.within, now).loss
                self.gradients.take(rows[1], loss, share=share, add=add)
                above = loss.detach() * share
        return Losses(below, above, fosc)
