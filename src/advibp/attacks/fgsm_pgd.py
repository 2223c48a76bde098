"""FGSM, FGSM with random start, PGD: points of a set at which the loss is high.

The set is always the ball of radius eps around x, intersected with `within`. eps may be a tensor, one radius per
element, so a latent box is attacked as `x=box.center, eps=box.radius, within=None`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.attacks.feasible_set import Range, feasible, inner_ball, uniform_start
from advibp.execution.image_gradient import image
from advibp.execution.own_copy import run_on_copy

Net = Callable[[Tensor], Tensor]
LossName = Literal["ce", "margin"]


def attack_loss(logits: Tensor, y: Tensor, loss: LossName) -> Tensor:
    """Loss of each sample (B,), large where the attack is near success: cross-entropy, or max_k z_k - z_y."""
    if loss == "ce":
        return F.cross_entropy(logits, y, reduction="none")
    true = logits.gather(1, y[:, None])
    return (logits - true).scatter(1, y[:, None], -torch.inf).amax(1)


def ascend(net: Net, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Sign of the input gradient at x of loss(logits) (B,), and the logits there. Parameters get no gradient."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = run_on_copy(net, image(x))
        (grad,) = torch.autograd.grad(loss(logits).sum(), x)
    return grad.sign_(), logits.detach()


def climb(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 1,
    step: float = 1.0,
    random_start: bool = False,
    within: Range = (0.0, 1.0),
    loss: LossName = "ce",
) -> Tensor:
    """Signed gradient steps of `step` * eps, each projected on the feasible set; the last point, which is not looked
    at. x (B, ...), y (B,) -> x_adv (B, ...). One step is FGSM; more of them, PGD as it is used in training."""
    lower, upper = feasible(x, eps, within)
    now = uniform_start(x, eps, lower, upper) if random_start else x
    for _ in range(steps):
        sign, _ = ascend(net, now, partial(attack_loss, y=y, loss=loss))
        now = torch.clamp(now + step * eps * sign, lower, upper)
    return now


def fgsm(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    step: float = 1.0,
    random_start: bool = False,
    within: Range = (0.0, 1.0),
    loss: LossName = "ce",
) -> Tensor:
    """One signed gradient step of `step` * eps, projected on the feasible set. x (B, ...), y (B,) -> x_adv (B, ...)."""
    return climb(net, x, y, eps, step=step, random_start=random_start, within=within, loss=loss)


def fgsm_random(
    net: Net, x: Tensor, y: Tensor, eps: Tensor | float, *, step: float = 1.25, within: Range = (0.0, 1.0)
) -> Tensor:
    """The paper's attack in training: start U(-eps, eps), step 1.25 eps (Wong et al. 2020)."""
    return climb(net, x, y, eps, step=step, random_start=True, within=within)


@dataclass(frozen=True)
class Attacked:
    """What an attack found: x_adv (B, ...) and whether it is misclassified, broken (B,)."""

    x_adv: Tensor
    broken: Tensor


@torch.no_grad()
def pgd(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 200,
    step: float = 0.1,
    restarts: int = 1,
    random_start: bool = True,
    loss: LossName = "ce",
    stop_on_success: bool = True,
    within: Range = (0.0, 1.0),
    generators: Sequence[torch.Generator] | None = None,
    by: float | Tensor = 0.0,
) -> Attacked:
    """Projected gradient descent, each step `step` * eps long. Every iterate lies in the ball of real numbers.

    An image counts as broken if any iterate is misclassified, and that iterate is the one returned. With
    `stop_on_success` broken images leave the batch; without it their search goes on to a higher loss. With
    `generators`, one per image, an image's random starts do not depend on the rest of its batch. `by`: how much larger
    than the label's another logit must be, a number or one for each image.
    """
    best, broken = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    highest = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    lower, upper = inner_ball(x, eps, within)
    reach = torch.as_tensor(eps, dtype=x.dtype, device=x.device).expand_as(x)
    least = torch.as_tensor(by, dtype=x.dtype, device=x.device).expand(len(x))
    for _ in range(restarts):
        rows = torch.nonzero(~broken).flatten() if stop_on_success else torch.arange(len(x), device=x.device)
        lo, up, far, label = lower[rows], upper[rows], reach[rows], y[rows]
        chances = [generators[i] for i in rows.tolist()] if generators is not None and len(rows) else None
        now = uniform_start(x[rows], far, lo, up, chances) if random_start else x[rows]
        for k in range(steps + 1):
            if len(rows) == 0:
                break
            objective = partial(attack_loss, y=label, loss=loss)
            # The last iterate is only looked at; every other one costs a single forward and backward.
            sign, logits = ascend(net, now, objective) if k < steps else (None, run_on_copy(net, now))
            wrong = wrong_by(logits, label, least[rows])
            value = objective(logits)
            # A misclassified point always beats a correctly classified one, whatever their losses.
            better = (wrong & ~broken[rows]) | ((wrong == broken[rows]) & (value > highest[rows]))
            hit = rows[better]
            best[hit], highest[hit], broken[hit] = now[better], value[better], broken[hit] | wrong[better]
            if sign is None:
                break
            now = torch.clamp(now + step * far * sign, lo, up)
            if stop_on_success and bool(wrong.any()):
                keep = ~wrong
                rows, now, lo, up, far, label = (t[keep] for t in (rows, now, lo, up, far, label))
    return Attacked(best, broken)


def wrong_by(logits: Tensor, y: Tensor, by: float | Tensor = 0.0) -> Tensor:
    """Which images (B,) another class wins by more than `by`. Neither a tie nor an overflow is a counterexample."""
    return (attack_loss(logits, y, "margin") > by) & logits.isfinite().all(1)
