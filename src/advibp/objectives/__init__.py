"""The losses below and above the robust loss: L_adv <= max over the set of L <= L_IBP (the paper's equation 4)."""

from advibp.objectives.lower import adversarial, fgsm, pgd, regular
from advibp.objectives.objective import AT_THE_END, PIXELS, Cost, Evaluation, Now, Objective, Settings, cost_of, costs
from advibp.objectives.upper import abstract, crown_ibp, ibp, margin_loss

__all__ = [
    "AT_THE_END",
    "PIXELS",
    "Cost",
    "Evaluation",
    "Now",
    "Objective",
    "Settings",
    "abstract",
    "adversarial",
    "cost_of",
    "costs",
    "crown_ibp",
    "fgsm",
    "ibp",
    "margin_loss",
    "pgd",
    "regular",
]
