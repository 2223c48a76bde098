"""The losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp import attacks, batchnorm
from advibp.attacks import Range
from advibp.bounds import Box, LinearBounds
from advibp.image_gradient import image

PIXELS: Range = (0.0, 1.0)


class Evaluation(NamedTuple):
    """A scalar loss (batch mean) and, for an adversarial one, the point it was taken at, if FOSC is wanted there."""

    loss: Tensor
    point: Tensor | None = None


@dataclass(frozen=True)
class Now:
    """What an objective may depend on besides the set: `ramped`, the share of the eps ramp that is over, and whether
    FOSC will be asked for."""

    ramped: float = 1.0
    wants_fosc: bool = False


AT_THE_END = Now()


class Objective(Protocol):
    """A loss over the set of all points within eps of x, and within `within`. A latent set is given by its centre, its
    radius per neuron, and no `within`."""

    def __call__(
        self, net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
    ) -> Evaluation: ...


def regular(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x), y)."""
    return Evaluation(F.cross_entropy(net(x), y))


def adversarial(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with x_adv from FGSM + random init. With `now.wants_fosc` x_adv asks for its gradient, which comes
    out of the loss's own backward pass."""
    with batchnorm.quietly():
        x_adv = attacks.fgsm_random(net, x, y, eps, within=within)
    if not now.wants_fosc:
        return Evaluation(F.cross_entropy(net(x_adv), y))
    x_adv.requires_grad_()
    return Evaluation(F.cross_entropy(net(image(x_adv)), y), x_adv)


def margin_loss(margins: Tensor, y: Tensor) -> Tensor:
    """L(-m, y): an upper bound of the robust cross-entropy when m are lower bounds of the margins (B, K), m_y = 0."""
    return F.cross_entropy(-margins, y)


def ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m_IBP, y): the abstract loss over the set."""
    return Evaluation(margin_loss(net(Box.ball(x, eps, within)).lower_margins(y), y))


def crown_ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m, y) with m = beta m_CROWN-IBP + (1 - beta) m_IBP, and beta falling from 1 to 0 over the eps ramp (Zhang et
    al. 2020): a mean of two lower bounds is one."""
    beta = 1 - now.ramped
    if beta <= 0:
        return ibp(net, x, y, eps, within)
    bounds = LinearBounds(net, Box.ball(x, eps, within))
    return Evaluation(margin_loss(torch.lerp(bounds.interval_margins(y), bounds.margins(y), beta), y))
