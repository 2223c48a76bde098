"""Attacks in the l_inf norm (FGSM, PGD, APGD), and FOSC, which measures how strong an attack is."""

from advibp.attacks.attack_loss import LossName, Net, attack_loss, wrong_by
from advibp.attacks.attack_strength import fosc
from advibp.attacks.auto_pgd import linf_apgd
from advibp.attacks.feasible_set import Range, feasible, inner_ball, uniform_start
from advibp.attacks.fgsm_pgd import linf_fgsm, linf_fgsm_random, linf_gradient_steps, linf_pgd
from advibp.attacks.restarts import AttackResult
from advibp.moved import renamed

__all__ = [
    "AttackResult",
    "LossName",
    "Net",
    "Range",
    "attack_loss",
    "feasible",
    "fosc",
    "inner_ball",
    "linf_apgd",
    "linf_fgsm",
    "linf_fgsm_random",
    "linf_gradient_steps",
    "linf_pgd",
    "uniform_start",
    "wrong_by",
]

__getattr__ = renamed(
    __name__,
    {
        "Attacked": "AttackResult",
        "apgd": "linf_apgd",
        "climb": "linf_gradient_steps",
        "fgsm": "linf_fgsm",
        "fgsm_random": "linf_fgsm_random",
        "pgd": "linf_pgd",
    },
    keywords={"by": "required_margin", "step": "rel_stepsize"},
)
