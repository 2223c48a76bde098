"""Losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from advibp.moved import renamed
from advibp.objectives.ball import PIXELS, Ball
from advibp.objectives.lower import adversarial, fgsm, pgd, regular
from advibp.objectives.objective import (
    DEFAULT_CONTEXT,
    Context,
    Cost,
    Evaluation,
    Objective,
    Settings,
    as_objective,
    cost_of,
    costs,
)
from advibp.objectives.upper import abstract, crown_ibp, ibp, margin_loss

__all__ = [
    "DEFAULT_CONTEXT",
    "PIXELS",
    "Ball",
    "Context",
    "Cost",
    "Evaluation",
    "Objective",
    "Settings",
    "abstract",
    "adversarial",
    "as_objective",
    "cost_of",
    "costs",
    "crown_ibp",
    "fgsm",
    "ibp",
    "margin_loss",
    "pgd",
    "regular",
]

__getattr__ = renamed(__name__, {"Now": "Context", "AT_THE_END": "DEFAULT_CONTEXT"})
