"""The losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from advibp.attacks import Range

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
