"""The losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from advibp import attacks
from advibp.bounds import Box


class Evaluation(NamedTuple):
    """A scalar loss (batch mean) and, for an adversarial one, the point it was taken at, for FOSC."""

    loss: Tensor
    point: Tensor | None = None


Objective = Callable[[nn.Module, Tensor, Tensor, float], Evaluation]


def regular(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> Evaluation:
    """L(f(x), y)."""
    return Evaluation(F.cross_entropy(net(x), y))


def adversarial(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> Evaluation:
    """L(f(x_adv), y) with x_adv from FGSM + random init. x_adv asks for its gradient: FOSC comes out of the
    loss's own backward pass."""
    x_adv = attacks.fgsm_random(net, x, y, eps).requires_grad_()
    return Evaluation(F.cross_entropy(net(x_adv), y), x_adv)


def margin_loss(margins: Tensor, y: Tensor) -> Tensor:
    """L(-m, y): an upper bound of the robust cross-entropy when m are lower bounds of the margins (B, K), m_y = 0."""
    return F.cross_entropy(-margins, y)


def ibp(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> Evaluation:
    """L(-m_IBP, y): the abstract loss over the ball intersected with [0, 1]."""
    return Evaluation(margin_loss(net(Box.ball(x, eps)).lower_margins(y), y))
