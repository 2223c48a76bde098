"""Attacks under the l_inf norm: FGSM, PGD, APGD, and FOSC, the measure of how strong one is."""

from advibp.attacks.attack_strength import fosc
from advibp.attacks.feasible_set import Range, feasible, inner_ball, uniform_start
from advibp.attacks.fgsm_pgd import (
    Attacked,
    LossName,
    Net,
    ascend,
    attack_loss,
    climb,
    fgsm,
    fgsm_random,
    pgd,
    wrong_by,
)

__all__ = [
    "Attacked",
    "LossName",
    "Net",
    "Range",
    "ascend",
    "attack_loss",
    "climb",
    "feasible",
    "fgsm",
    "fgsm_random",
    "fosc",
    "inner_ball",
    "pgd",
    "uniform_start",
    "wrong_by",
]
