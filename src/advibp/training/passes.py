"""The forward and backward passes of one step: the losses of a batch and their gradients.

Besides the losses of the method a step may have terms that stand outside of their combination: Shi's regularizers, and
a share of the regular loss. With two losses the terms have a gradient of their own, row 2. With one loss the step has a
single backward pass.

A batch may be split into parts to save memory. A loss is a mean over the batch, so its gradient is the sum of the
parts' gradients, each multiplied by its share of the batch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.execution import batchnorm
from advibp.execution.own_copy import run_on_copy
from advibp.execution.recompute import recompute_activations
from advibp.objectives import DEFAULT_CONTEXT, Ball, Context, Objective, Shared
from advibp.objectives.shi import propagate
from advibp.training.stages import Stages
from advibp.weighting import FlatGradients


class Losses(NamedTuple):
    """Mean losses, mean FOSC and terms outside of the losses of a batch; None for what was not computed."""

    lower: Tensor | None = None
    upper: Tensor | None = None
    fosc: Tensor | None = None
    regularizer: Tensor | None = None
    clean: Tensor | None = None

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
        taps_layers: number of layers behind the latent box of TAPS; None for other methods.
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
        taps_layers: int | None = None,
    ) -> None:
        self.stages, self.gradients = stages, gradients
        self.trains_batchnorm, self.batchnorm_of = trains_batchnorm, batchnorm_of
        self.at_once, self.recompute, self.taps_layers = at_once, recompute, taps_layers

    def prepare(self, x: Tensor) -> None:
        """Cut the network for batches of this shape. Call it before a step, because it runs the network."""
        for part in self._split(x) if self.stages.stage or self.taps_layers else ():
            if self.stages.stage:
                self.stages.cut(part)
            if self.taps_layers:
                self.stages.split(part, self.taps_layers)

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
        clean_share: float = 0.0,
    ) -> Losses:
        """Return the losses of a batch x (B, ...), y (B,).

        The gradients are written to rows 0 and 1 of `gradients`, and that of the other terms to row 2. If there is one
        objective, the gradient of the whole step is written to `final`.

        Args:
            lower: the lower objective, or None.
            upper: the upper objective, or None.
            x: inputs, (B, ...).
            y: labels, (B,).
            eps: the radius.
            context: what else the objectives depend on.
            clean_share: share of the regular loss in the step.
        """
        losses = Losses()
        for k, (images, labels) in enumerate(zip(self._split(x), self._split(y), strict=True)):
            share = len(images) / len(x)
            losses = losses.plus(self._part(lower, upper, images, labels, eps, context, clean_share, share, add=k > 0))
        return losses

    def captures_clean(self, lower: Objective | None, upper: Objective | None, clean_share: float = 0.0) -> bool:
        """Return whether a clean pass computes BatchNorm's statistics first, always if its loss has a share."""
        return clean_share > 0 or (upper is not None and (lower is None or self.batchnorm_of == "clean"))

    def _part(
        self,
        lower: Objective | None,
        upper: Objective | None,
        x: Tensor,
        y: Tensor,
        eps: float,
        context: Context,
        clean_share: float,
        share: float,
        add: bool,
    ) -> Losses:
        net, gradients = self.stages.net, self.gradients
        lower_loss = upper_loss = fosc = clean = None
        inputs, shared = self.stages.inputs(x, eps), Shared()
        cut = self.stages.split(x, self.taps_layers) if self.taps_layers else None
        context = replace(context, shared=shared, cut=cut)
        two, outside = bool(lower and upper), bool(clean_share or context.shi)
        recompute = recompute_activations(inputs.net, self.recompute)
        with batchnorm.step(net, self.trains_batchnorm) as statistics, recompute:
            if statistics and self.captures_clean(lower, upper, clean_share):
                logits = statistics.capture(inputs.net, self.stages.clean(x))
            elif clean_share:
                logits = run_on_copy(inputs.net, self.stages.clean(x))
            if clean_share:
                clean = F.cross_entropy(logits, y)
            if lower:
                loss, point = lower(inputs.net, inputs.ball, y, context)
                wanted = [] if point is None else [point]
                if two:
                    keep = bool(statistics)  # the other losses differentiate BatchNorm's statistics too
                    at_point = gradients.take(0, loss, wanted, share=share, add=add, keep_graph=keep)
                else:
                    total = self._with_terms(loss, clean, inputs.net, inputs.ball, context, clean_share)
                    at_point = gradients.take(-1, total, wanted, share=share, add=add)
                lower_loss = loss.detach() * share
                if point is not None:
                    # A single loss has the share 1 - clean_share of the differentiated total.
                    fosc = inputs.fosc(point, at_point[0]) * (share if two else share / (1 - clean_share))
            if upper:
                loss = upper(inputs.net, inputs.ball, y, context).loss
                if two:
                    gradients.take(1, loss, share=share, add=add, keep_graph=outside)
                    if outside:
                        total = self._with_terms(None, clean, inputs.net, inputs.ball, context, clean_share)
                        gradients.take(2, total, share=share, add=add)
                else:
                    total = self._with_terms(loss, clean, inputs.net, inputs.ball, context, clean_share)
                    gradients.take(-1, total, share=share, add=add)
                upper_loss = loss.detach() * share
        regularizer = None if shared.regularizer is None else shared.regularizer.detach() * share
        return Losses(lower_loss, upper_loss, fosc, regularizer, None if clean is None else clean.detach() * share)

    @staticmethod
    def _with_terms(
        loss: Tensor | None, clean: Tensor | None, net: Any, ball: Ball, context: Context, clean_share: float
    ) -> Tensor:
        """Return (1 - clean_share) loss + clean_share clean + regularizers; without `loss`, the other terms."""
        assert context.shared is not None
        if context.shi and context.shared.regularizer is None:  # no objective has run the network on a box
            propagate(net, ball.box(), context)
        terms = [] if loss is None else [loss if clean is None else (1 - clean_share) * loss]
        terms += [] if clean is None else [clean_share * clean]
        terms += [] if context.shared.regularizer is None else [context.shared.regularizer]
        return torch.stack(terms).sum() if len(terms) > 1 else terms[0]
