"""Margins by interval bound propagation (IBP)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from advibp.bounds import Perturbation
from advibp.bounds.labels import smallest_margin
from advibp.bounds.perturbation import PIXELS
from advibp.execution.own_copy import run_on_copy


@torch.no_grad()
def lower_margin(
    net: nn.Module, x: Tensor, y: Tensor, eps: float | Tensor, perturbation: Perturbation = PIXELS
) -> Tensor:
    """Lower bound by IBP of the smallest margin of each input over its set: (B, ...) -> (B,)."""
    return smallest_margin(net(perturbation.box(x, eps)).lower_margins(y), y)


class Evaluation(NamedTuple):
    """Predictions and IBP proofs of images.

    Attributes:
        labels: (B,).
        predictions: (B,).
        proved: whether the label is proved, (B,). A NaN margin counts as not proved.
    """

    labels: Tensor
    predictions: Tensor
    proved: Tensor

    @property
    def standard_error(self) -> float:
        """Share of misclassified images."""
        return int((self.predictions != self.labels).sum()) / len(self.labels)

    @property
    def verified_error(self) -> float:
        """Share of images whose label is not proved."""
        return int((~self.proved).sum()) / len(self.labels)


@torch.no_grad()
def evaluate(
    net: nn.Module, x: Tensor, y: Tensor, eps: float, perturbation: Perturbation = PIXELS, *, batch_size: int = 1000
) -> Evaluation:
    """Classify inputs, and bound them by IBP."""
    parts = [
        (run_on_copy(net, xs).argmax(1), lower_margin(net, xs, ys, eps, perturbation) > 0)
        for xs, ys in zip(x.split(batch_size), y.split(batch_size), strict=True)
    ]
    predictions, proved = (torch.cat(part) for part in zip(*parts, strict=True))
    return Evaluation(y, predictions, proved)
