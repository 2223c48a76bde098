"""FGSM and PGD in the l_inf norm.

The feasible set is the l_inf ball of radius eps around x, intersected with the range `within`. eps and
the ends of the range may be tensors with one number per element, so a latent box is attacked with `x=box.center,
eps=box.radius, within=None`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from advibp.attacks.attack_checks import check_attack
from advibp.attacks.attack_loss import LossName, Net, attack_loss, gradient_sign
from advibp.attacks.feasible_set import Range, feasible, uniform_start
from advibp.attacks.restarts import AttackResult, Iterates, run_restarts
from advibp.execution.keywords import known_keywords


def linf_gradient_steps(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 1,
    rel_stepsize: float = 1.0,
    random_start: bool = False,
    within: Range = (0.0, 1.0),
    loss: LossName = "ce",
) -> Tensor:
    """Take projected signed gradient steps and return the last iterate, as adversarial training needs it.

    The last iterate is not evaluated, so k steps cost k forward and k backward passes.

    Args:
        net: maps inputs (B, ...) to logits (B, K).
        x: inputs, (B, ...).
        y: labels, (B,).
        eps: radius of the ball, a number or a tensor that broadcasts to x.
        steps: number of steps.
        rel_stepsize: length of a step, relative to eps.
        random_start: start at a uniform random point of the ball instead of x.
        within: range of valid inputs, or None.
        loss: see `attack_loss`.

    Returns:
        x_adv, (B, ...).
    """
    check_attack(x, y, eps, steps=steps, rel_stepsize=rel_stepsize, within=within, loss=loss)
    eps = eps.to(x.dtype) if isinstance(eps, Tensor) else eps
    lower, upper = feasible(x, eps, within)
    now = uniform_start(x, eps, lower, upper) if random_start else x
    for _ in range(steps):
        sign, _ = gradient_sign(net, now, partial(attack_loss, y=y, loss=loss))
        now = torch.clamp(now + rel_stepsize * eps * sign, lower, upper)
    return now


@known_keywords
def linf_fgsm(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    rel_stepsize: float = 1.0,
    random_start: bool = False,
    within: Range = (0.0, 1.0),
    loss: LossName = "ce",
) -> Tensor:
    """Fast gradient sign method: one signed gradient step, projected on the feasible set (Goodfellow et al. 2015).

    Args and Returns are those of `linf_gradient_steps`.

    Examples:
        >>> import torch, advibp
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.rand(2, 4), torch.tensor([0, 2])
        >>> advibp.attacks.linf_fgsm(net, x, y, eps=0.1).shape
        torch.Size([2, 4])
    """
    return linf_gradient_steps(
        net, x, y, eps, rel_stepsize=rel_stepsize, random_start=random_start, within=within, loss=loss
    )


def linf_fgsm_random(
    net: Net, x: Tensor, y: Tensor, eps: Tensor | float, *, rel_stepsize: float = 1.25, within: Range = (0.0, 1.0)
) -> Tensor:
    """FGSM from a uniform random start with a step of 1.25 eps: the paper's attack in training (Wong et al. 2020).

    Args and Returns are those of `linf_gradient_steps`.
    """
    return linf_gradient_steps(net, x, y, eps, rel_stepsize=rel_stepsize, random_start=True, within=within)


@dataclass(frozen=True)
class _SignedSteps:
    """PGD's update rule: signed gradient steps of one length."""

    loss_name: LossName
    rel_stepsize: float

    def begin(self, iterates: Iterates, restart: int, first_logits: Tensor | None) -> Iterates:
        return iterates

    def loss(self, iterates: Iterates, logits: Tensor) -> Tensor:
        return attack_loss(logits, iterates.label, self.loss_name)

    def move(self, iterates: Iterates, step: int, loss: Tensor, sign: Tensor) -> None:
        moved = iterates.now + self.rel_stepsize * iterates.radius * sign
        iterates.now = torch.clamp(moved, iterates.lower, iterates.upper)


@known_keywords
def linf_pgd(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 200,
    rel_stepsize: float = 0.1,
    restarts: int = 1,
    random_start: bool = True,
    loss: LossName = "ce",
    stop_on_success: bool = True,
    within: Range = (0.0, 1.0),
    generators: Sequence[torch.Generator] | None = None,
    required_margin: float | Tensor = 0.0,
) -> AttackResult:
    """Projected gradient descent in the l_inf norm (Madry et al. 2018).

    An input counts as broken if any iterate is misclassified, and that iterate is returned. Every iterate lies exactly
    in the feasible set, not only up to rounding.

    Args:
        net: maps inputs (B, ...) to logits (B, K).
        x: inputs, (B, ...).
        y: labels, (B,).
        eps: radius of the ball, a number or a tensor that broadcasts to x.
        steps: number of steps of each restart.
        rel_stepsize: length of a step, relative to eps.
        restarts: how often the attack runs. A later restart skips inputs that are already broken.
        random_start: start at a uniform random point of the ball instead of x.
        loss: see `attack_loss`.
        stop_on_success: stop attacking an input once it is misclassified; otherwise continue to a higher loss.
        within: range of valid inputs, or None.
        generators: one random generator per input, so that its random starts do not depend on the batch; None for
            torch's global generator.
        required_margin: how much larger than the label's logit another one must be, a number or (B,).

    Returns:
        An `AttackResult` with `x_adv` (B, ...) and `broken` (B,).

    Examples:
        >>> import torch, advibp
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.rand(2, 4), torch.tensor([0, 2])
        >>> result = advibp.attacks.linf_pgd(net, x, y, eps=0.1, steps=20)
        >>> bool(((result.x_adv - x).abs() <= 0.1).all())
        True
    """
    check_attack(x, y, eps, steps=steps, rel_stepsize=rel_stepsize, restarts=restarts, within=within, loss=loss)
    return run_restarts(
        net,
        x,
        y,
        eps,
        _SignedSteps(loss, rel_stepsize),
        partial(attack_loss, loss=loss),
        steps=steps,
        restarts=restarts,
        random_start=random_start,
        stop_on_success=stop_on_success,
        within=within,
        generators=generators,
        required_margin=required_margin,
    )
