"""The paper's Table 1 as data: a method is a lower objective, an upper objective and a rule that weighs them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from advibp import objectives
from advibp.objectives import Objective
from advibp.weighting import Fixed, Moments, Weighting


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. A method without an upper objective minimises the lower one alone, and the reverse."""

    says: str
    lower: Objective | None = None
    upper: Objective | None = None
    weighting: Callable[[float, float], Weighting] = lambda beta1, beta2: Fixed()
    warm_up: bool = True  # natural, then adversarial epochs before the joint phase


METHODS: dict[str, Method] = {
    "advibp": Method(
        says="adversarial + IBP loss, weights from past gradients (Algorithm 1)",
        lower=objectives.adversarial,
        upper=objectives.ibp,
        weighting=Moments,
    ),
    "advcrown-ibp": Method(
        says="adversarial + CROWN-IBP loss, which becomes the IBP loss over the ramp, weights from past gradients",
        lower=objectives.adversarial,
        upper=objectives.crown_ibp,
        weighting=Moments,
    ),
    "fixed": Method(
        says="adversarial + IBP loss, both weights 1: the paper's baseline",
        lower=objectives.adversarial,
        upper=objectives.ibp,
    ),
    "ibp": Method(says="IBP loss alone", upper=objectives.ibp),
    "fgsm-random": Method(says="adversarial loss alone (FGSM + random init)", lower=objectives.adversarial),
    "standard": Method(says="regular loss alone: no robustness", lower=objectives.regular, warm_up=False),
}
