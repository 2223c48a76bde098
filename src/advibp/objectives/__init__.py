"""Losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4).

SABR, TAPS, STAPS, MTL-IBP, CC-IBP and EXP-IBP approximate the robust loss. They are no bounds: see `is_bound`.
"""

from advibp.moved import renamed
from advibp.objectives.ball import PIXELS, Ball
from advibp.objectives.combined import cc_ibp, exp_ibp, mtl_ibp
from advibp.objectives.lower import adversarial, fgsm, pgd, regular
from advibp.objectives.objective import (
    DEFAULT_CONTEXT,
    Context,
    Cost,
    Evaluation,
    Objective,
    Settings,
    Shared,
    as_objective,
    cost_of,
    costs,
    is_bound,
)
from advibp.objectives.sabr import sabr
from advibp.objectives.taps import staps, taps
from advibp.objectives.training_attack import adversarial_examples, attacked, joint_cost
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
    "Shared",
    "abstract",
    "adversarial",
    "adversarial_examples",
    "as_objective",
    "attacked",
    "cc_ibp",
    "cost_of",
    "costs",
    "crown_ibp",
    "exp_ibp",
    "fgsm",
    "ibp",
    "is_bound",
    "joint_cost",
    "margin_loss",
    "mtl_ibp",
    "pgd",
    "regular",
    "sabr",
    "staps",
    "taps",
]

__getattr__ = renamed(__name__, {"Now": "Context", "AT_THE_END": "DEFAULT_CONTEXT"})
