"""The restart loop that PGD and APGD share.

The loop chooses the starting points, remembers the best iterate of each input and drops inputs that are already
misclassified. An `UpdateRule` decides how the iterates move.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from advibp.attacks.attack_loss import Net, gradient_sign, wrong_by
from advibp.attacks.feasible_set import Range, inner_ball, uniform_start
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy


@dataclass(frozen=True)
class AttackResult:
    """The result of an attack.

    Attributes:
        x_adv: the best iterate of each input, (B, ...).
        broken: whether `x_adv` is misclassified, (B,) of bool.

    Examples:
        >>> import torch, advibp
        >>> x, y = torch.tensor([[0.5, 0.4]]), torch.tensor([0])
        >>> advibp.attacks.linf_pgd(torch.nn.Identity(), x, y, eps=0.1).broken
        tensor([True])
    """

    x_adv: Tensor
    broken: Tensor


@dataclass
class Iterates:
    """The inputs of one restart that are still attacked. Every field has one row per input."""

    rows: Tensor  # (b,) index of the input in the batch
    label: Tensor  # (b,)
    lower: Tensor  # (b, ...) lower end of the feasible set
    upper: Tensor  # (b, ...) upper end of the feasible set
    radius: Tensor  # (b, ...) eps of each element
    now: Tensor  # (b, ...) current iterate

    def keep(self, mask: Tensor) -> None:
        """Drop the inputs for which `mask` (b,) is False."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[mask])


class UpdateRule(Protocol):
    """How an attack moves its iterates."""

    def begin(self, iterates: Iterates, restart: int, first_logits: Tensor | None) -> Any:
        """Return the iterates of a new restart, with the state that the rule needs.

        `first_logits` (B, K) are the logits at the starting points of restart 0; None in restart 0.
        """

    def loss(self, iterates: Any, logits: Tensor) -> Tensor:
        """Return the loss (b,) that the iterates maximize."""

    def move(self, iterates: Any, step: int, loss: Tensor, sign: Tensor) -> None:
        """Replace `iterates.now`, given the loss (b,) and the sign of its gradient (b, ...) at the current iterates."""


@torch.no_grad()
def run_restarts(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    rule: UpdateRule,
    score: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
    restarts: int,
    random_start: bool,
    stop_on_success: bool,
    within: Range,
    generators: Sequence[torch.Generator] | None,
    required_margin: float | Tensor,
) -> AttackResult:
    """Run an iterative attack several times and return the best iterate of each input.

    A misclassified iterate is better than a correctly classified one. Of two misclassified or two correctly classified
    iterates, the one with the higher score is kept. Every iterate lies exactly in the
    feasible set, also when it is compared in real arithmetic.

    Args:
        rule: how iterates move.
        score: maps logits (b, K) and labels (b,) to the score (b,).

    The other arguments are those of `linf_pgd`.
    """
    if generators is not None and len(generators) != len(x):
        raise UserError(f"There are {len(generators)} generators, but must be {len(x)}: one for each input.")
    best, broken = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    highest = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    lower, upper = inner_ball(x, eps, within)
    radius = torch.as_tensor(eps, dtype=x.dtype, device=x.device).expand_as(x)
    margins = torch.as_tensor(required_margin, dtype=x.dtype, device=x.device).expand(len(x))
    first_logits = None
    for restart in range(restarts):
        rows = torch.nonzero(~broken).flatten() if stop_on_success else torch.arange(len(x), device=x.device)
        if len(rows) == 0:
            break
        ends = lower[rows], upper[rows]
        row_generators = None if generators is None else [generators[i] for i in rows.tolist()]
        start = uniform_start(x[rows], radius[rows], *ends, row_generators) if random_start else x[rows]
        iterates = rule.begin(Iterates(rows, y[rows], *ends, radius[rows], start), restart, first_logits)
        for step in range(steps + 1):
            # The last iterates need no gradient, because they do not move any more.
            sign, logits = (
                gradient_sign(net, iterates.now, partial(rule.loss, iterates))
                if step < steps
                else (None, run_on_copy(net, iterates.now))
            )
            if first_logits is None:
                first_logits = logits
            # An iterate at which the network overflows is never the best one.
            finite = logits.isfinite().all(1)
            wrong = wrong_by(logits, iterates.label, margins[iterates.rows])
            value = score(logits, iterates.label).where(finite, -torch.inf)
            was_broken = broken[iterates.rows]
            better = (wrong & ~was_broken) | ((wrong == was_broken) & (value > highest[iterates.rows]))
            improved = iterates.rows[better]
            best[improved], highest[improved], broken[improved] = iterates.now[better], value[better], wrong[better]
            if sign is None or (stop_on_success and bool(wrong.all())):
                break
            rule.move(iterates, step, rule.loss(iterates, logits).where(finite, -torch.inf), sign)
            if stop_on_success and bool(wrong.any()):
                iterates.keep(~wrong)
    return AttackResult(best, broken)
