"""APGD in the l_inf norm: PGD that adapts its step size, with targeted restarts (Croce and Hein 2020).

The step size of an input starts at 2 eps, the width of the ball. At a few checkpoints it is halved if the loss has
stopped rising, and the input then returns to its best iterate so far. Every update has momentum. The number of steps is
the only hyperparameter.

The default loss is the margin, because the gradient of cross-entropy vanishes on a confident network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from advibp.attacks.attack_checks import check_attack
from advibp.attacks.attack_loss import LossName, Net, attack_loss, targeted_loss
from advibp.attacks.feasible_set import Range
from advibp.attacks.restarts import AttackResult, Iterates, run_restarts
from advibp.execution.keywords import known_keywords

ALPHA = 0.75  # weight of the gradient step in an update; the rest is momentum
RHO = 0.75  # the step size is halved if a smaller share of the updates raised the loss


def checkpoints(steps: int) -> dict[int, int]:
    """Return the steps at which progress is checked, each with the number of updates since the previous one.

    They are w_j = ceil(p_j * steps) with p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06). The p_j
    are computed in percent as integers, so that rounding does not shift a checkpoint.
    """
    percent = [0, 22]
    while percent[-1] < 100:
        percent.append(percent[-1] + max(percent[-1] - percent[-2] - 3, 6))
    at = sorted({-(-p * steps // 100) for p in percent if p <= 100})
    return {w: w - previous for previous, w in zip([0, *at], at, strict=False)}


@dataclass
class _AdaptiveIterates(Iterates):
    """Iterates with APGD's state."""

    target: Tensor  # (b,) target class; unused without targets
    stepsize: Tensor  # (b, ...) step size of each element
    before: Tensor  # (b, ...) previous iterate
    value: Tensor  # (b,) loss at the previous update
    best: Tensor  # (b, ...) iterate with the highest loss so far
    best_sign: Tensor  # (b, ...) sign of the gradient there
    best_value: Tensor  # (b,) loss there
    best_at_checkpoint: Tensor  # (b,) `best_value` at the last checkpoint
    rises: Tensor  # (b,) number of updates since the last checkpoint that raised the loss
    halved: Tensor  # (b,) whether the last checkpoint halved the step size

    @classmethod
    def begin(cls, iterates: Iterates, target: Tensor) -> _AdaptiveIterates:
        start, rows = iterates.now, iterates.rows
        lowest = start.new_full(rows.shape, -torch.inf)
        zeros = torch.zeros_like(rows)
        return cls(
            **vars(iterates),
            target=target,
            stepsize=2 * iterates.radius,
            before=start,
            value=-lowest,
            best=start.clone(),
            best_sign=torch.zeros_like(start),
            best_value=lowest,
            best_at_checkpoint=lowest.clone(),
            rises=zeros,
            halved=zeros.bool(),
        )

    def observe(self, value: Tensor, sign: Tensor) -> None:
        """Record the loss (b,) and the sign of the gradient (b, ...) at the current iterates."""
        self.rises = self.rises + (value > self.value)
        self.value, higher = value, value > self.best_value
        self.best[higher], self.best_sign[higher] = self.now[higher], sign[higher]
        self.best_value[higher] = value[higher]

    def check_progress(self, updates: int, sign: Tensor) -> None:
        """Halve the step size of inputs whose loss has stopped rising, and return them to their best iterates.

        `updates` is the number of updates since the last checkpoint. `sign` is changed in place.
        """
        stuck = (self.rises < RHO * updates) | (~self.halved & (self.best_value == self.best_at_checkpoint))
        self.stepsize[stuck] *= 0.5
        self.now[stuck] = self.before[stuck] = self.best[stuck]
        sign[stuck], self.value[stuck] = self.best_sign[stuck], self.best_value[stuck]
        self.halved, self.best_at_checkpoint = stuck, self.best_value.clone()
        self.rises = torch.zeros_like(self.rises)

    def update(self, sign: Tensor, alpha: float) -> None:
        """x + alpha (z - x) + (1 - alpha) (x - x_before), projected, where z is the projected gradient step."""
        z = torch.clamp(self.now + self.stepsize * sign, self.lower, self.upper)
        x = self.now + alpha * (z - self.now) + (1 - alpha) * (self.now - self.before)
        self.now, self.before = torch.clamp(x, self.lower, self.upper), self.now


@dataclass
class _AdaptiveSteps:
    """APGD's update rule. Restart r > 0 is targeted at the r-th most likely wrong class, if `targeted` is True."""

    loss_name: LossName
    targeted: bool
    checkpoints: dict[int, int]
    y: Tensor  # labels of the batch (B,)
    has_target: bool = False  # whether the current restart is targeted

    def begin(self, iterates: Iterates, restart: int, first_logits: Tensor | None) -> _AdaptiveIterates:
        self.has_target = self.targeted and restart > 0
        target = iterates.label
        if self.has_target and first_logits is not None:
            wrong_classes = first_logits.scatter(1, self.y[:, None], -torch.inf).argsort(1, descending=True)
            target = wrong_classes[iterates.rows, (restart - 1) % (wrong_classes.shape[1] - 1)]
        return _AdaptiveIterates.begin(iterates, target)

    def loss(self, iterates: _AdaptiveIterates, logits: Tensor) -> Tensor:
        if self.has_target:
            return targeted_loss(logits, iterates.label, iterates.target)
        return attack_loss(logits, iterates.label, self.loss_name)

    def move(self, iterates: _AdaptiveIterates, step: int, loss: Tensor, sign: Tensor) -> None:
        iterates.observe(loss, sign)
        if step in self.checkpoints:
            iterates.check_progress(self.checkpoints[step], sign)
        iterates.update(sign, ALPHA if step else 1.0)


@known_keywords
def linf_apgd(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 100,
    restarts: int = 1,
    loss: LossName = "margin",
    targeted: bool = True,
    random_start: bool = True,
    stop_on_success: bool = True,
    within: Range = (0.0, 1.0),
    generators: Sequence[torch.Generator] | None = None,
    required_margin: float | Tensor = 0.0,
) -> AttackResult:
    """Auto-PGD in the l_inf norm (Croce and Hein 2020).

    Each step costs one forward and one backward pass.

    Args:
        targeted: restart r > 0 maximizes the logit of the r-th most likely wrong class minus the label's. The classes
            are ordered by the logits at the first starting point.

    The other arguments and the result are those of `linf_pgd`.

    Examples:
        >>> import torch, advibp
        >>> net = torch.nn.Linear(4, 3)
        >>> x, y = torch.rand(2, 4), torch.tensor([0, 2])
        >>> result = advibp.attacks.linf_apgd(net, x, y, eps=0.1, steps=20, restarts=3)
        >>> bool(((result.x_adv - x).abs() <= 0.1).all())
        True
    """
    check_attack(x, y, eps, steps=steps, restarts=restarts, within=within, loss=loss)
    return run_restarts(
        net,
        x,
        y,
        eps,
        _AdaptiveSteps(loss, targeted, checkpoints(steps), y),
        partial(attack_loss, loss=loss),
        steps=steps,
        restarts=restarts,
        random_start=random_start,
        stop_on_success=stop_on_success,
        within=within,
        generators=generators,
        required_margin=required_margin,
    )
