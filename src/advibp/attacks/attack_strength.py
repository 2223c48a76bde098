"""FOSC: the first-order stationary condition, which measures how strong an attack is (Wang et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


def fosc(x_adv: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """First-order stationary condition of each sample (B,): how much a linear model of the loss could still rise.

    c = max over x' in [lower, upper] of <x' - x_adv, g>, which separates per element. Zero means a stationary point,
    the strongest attack of first order. On the unclipped ball this is the paper's eps |g|_1 - <x_adv - x, g>.
    """
    gain = torch.maximum((upper - x_adv).mul_(gradient), (lower - x_adv).mul_(gradient))
    return gain.flatten(1).sum(1)
