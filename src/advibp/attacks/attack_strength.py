"""FOSC, the first-order stationary condition: how far an attack is from a local maximum (Wang et al. 2019)."""

from __future__ import annotations

import torch
from torch import Tensor


def fosc(x_adv: Tensor, gradient: Tensor, lower: Tensor, upper: Tensor) -> Tensor:
    """Return the first-order stationary condition of each sample.

    c = max over x' in [lower, upper] of <x' - x_adv, g>: by how much a linear model of the loss could still rise. The
    maximum separates per element. c = 0 at a stationary point, i.e. for the strongest attack of first order. On a ball
    that is not clipped, c = eps |g|_1 - <x_adv - x, g>, which is the paper's formula.

    Args:
        x_adv: adversarial examples, (B, ...).
        gradient: gradient of each sample's loss at x_adv, (B, ...).
        lower: lower ends of the feasible set, (B, ...).
        upper: upper ends of the feasible set, (B, ...).

    Returns:
        c, (B,), 0 or more.
    """
    gain = torch.maximum((upper - x_adv).mul_(gradient), (lower - x_adv).mul_(gradient))
    return gain.flatten(1).sum(1)
