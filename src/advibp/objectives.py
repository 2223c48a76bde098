"""The losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp import attacks, batchnorm, door
from advibp.attacks import Range
from advibp.bounds import Box, LinearBounds, Zonotope
from advibp.image_gradient import image

PIXELS: Range = (0.0, 1.0)


class Evaluation(NamedTuple):
    """A scalar loss (batch mean) and, for an adversarial one, the point it was taken at, if FOSC is wanted there."""

    loss: Tensor
    point: Tensor | None = None


@dataclass(frozen=True)
class Settings:
    """What a recipe says to objectives that leave a choice."""

    attack_steps: int = 8
    beta: float = 0.0  # share of CROWN-IBP that is left after the ramp
    domain: str = "box"  # box, hybrid or deepz
    symbols: int = 8  # of a hybrid zonotope, at most
    regulariser: float = 0.0  # weight of what is added to the loss
    projections: int = 16  # that estimate a latent zonotope


@dataclass(frozen=True)
class Now:
    """What an objective may depend on besides the set: `ramped`, the share of the eps ramp that is over, whether FOSC
    will be asked for, whether the set is a latent one, and the recipe's settings."""

    ramped: float = 1.0
    wants_fosc: bool = False
    latent: bool = False
    settings: Settings = Settings()

    @property
    def beta(self) -> float:
        """The share of CROWN-IBP in the margins: from 1 to `settings.beta` over the ramp (Zhang et al. 2020)."""
        return 1 - self.ramped * (1 - self.settings.beta)


AT_THE_END = Now()


class Objective(Protocol):
    """A loss over the set of all points within eps of x, and within `within`. A latent set is given by its centre, its
    radius per neuron, and no `within`."""

    def __call__(
        self, net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
    ) -> Evaluation: ...


Cost = Callable[[Now, int], float]
_O = TypeVar("_O", bound=Objective)


def costs(cost: float | Cost) -> Callable[[_O], _O]:
    """Say what an objective and its gradient cost, in forward passes, given the moment and the number of classes. A
    backward pass counts two, one to the input alone counts one, an interval counts as two points."""

    def told(objective: _O) -> _O:
        objective.cost = cost if callable(cost) else lambda now, classes: cost  # type: ignore[attr-defined]
        return objective

    return told


def cost_of(objective: Objective | None, now: Now = AT_THE_END, classes: int = 10) -> float:
    """In forward passes; an objective that does not say is taken for one pass and its gradient."""
    if objective is None:
        return 0.0
    return float(getattr(objective, "cost", lambda now, classes: 3.0)(now, classes))


@costs(3)
def regular(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x), y)."""
    return Evaluation(F.cross_entropy(door.run(net, x), y))


@costs(5)
def adversarial(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with x_adv from FGSM + random init. With `now.wants_fosc` x_adv asks for its gradient, which comes
    out of the loss's own backward pass."""
    with batchnorm.quietly():
        x_adv = attacks.fgsm_random(net, x, y, eps, within=within)
    return _at(net, x_adv, y, now)


@costs(5)
def fgsm(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with one step of eps from x itself (Goodfellow et al. 2015)."""
    with batchnorm.quietly():
        x_adv = attacks.fgsm(net, x, y, eps, within=within)
    return _at(net, x_adv, y, now)


@costs(lambda now, _: 3 + 2 * now.settings.attack_steps)
def pgd(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(f(x_adv), y) with PGD from a random start; its steps could cross the ball's radius 2.5 times (Madry et al.)."""
    steps = now.settings.attack_steps
    with batchnorm.quietly():
        x_adv = attacks.climb(net, x, y, eps, steps=steps, step=2.5 / steps, random_start=True, within=within)
    return _at(net, x_adv, y, now)


def _at(net: Any, x_adv: Tensor, y: Tensor, now: Now) -> Evaluation:
    if not now.wants_fosc:
        return Evaluation(F.cross_entropy(net(x_adv), y))
    x_adv.requires_grad_()
    return Evaluation(F.cross_entropy(door.run(net, image(x_adv)), y), x_adv)


def margin_loss(margins: Tensor, y: Tensor) -> Tensor:
    """L(-m, y): an upper bound of the robust cross-entropy when m are lower bounds of the margins (B, K), m_y = 0."""
    return F.cross_entropy(-margins, y)


@costs(6)
def ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m_IBP, y): the abstract loss over the set."""
    return Evaluation(margin_loss(net(Box.ball(x, eps, within)).lower_margins(y), y))


# Measured on dm-small: each margin's way back, with its gradient, takes four to five forward passes.
@costs(lambda now, classes: 6 + (4.5 * (classes - 1) if now.beta > 0 else 0))
def crown_ibp(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m, y) with m = beta m_CROWN-IBP + (1 - beta) m_IBP, and beta falling from 1 over the eps ramp (Zhang et al.
    2020): a mean of two lower bounds is one."""
    if now.beta <= 0:
        return ibp(net, x, y, eps, within)
    bounds = LinearBounds(net, Box.ball(x, eps, within))
    return Evaluation(margin_loss(torch.lerp(bounds.interval_margins(y), bounds.margins(y), now.beta), y))


# Measured on dm-small, where DeepZ has some five thousand symbols.
@costs(lambda now, _: 6 + 5.5 * {"box": 0, "hybrid": now.settings.symbols}.get(now.settings.domain, 5000))
def abstract(
    net: Any, x: Tensor, y: Tensor, eps: float | Tensor, within: Range = PIXELS, now: Now = AT_THE_END
) -> Evaluation:
    """L(-m, y) with margins by the recipe's domain (DiffAI): boxes, DeepZ's zonotopes, or between them the hybrid ones,
    of whose noise symbols the largest `symbols` are kept apart and the others become a box."""
    if now.settings.domain == "box":
        return ibp(net, x, y, eps, within)
    most = now.settings.symbols if now.settings.domain == "hybrid" else None
    return Evaluation(margin_loss(net(Zonotope.ball(x, eps, within, most_symbols=most)).lower_margins(y), y))
