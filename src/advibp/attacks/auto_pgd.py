"""APGD: projected gradient ascent that finds its own step size, and restarts that aim at one class each.

PGD's one step size is too long near a maximum and too short far from it. Croce and Hein (2020) begin with 2 eps, which
crosses the whole ball, and halve the step of an image whenever its loss has stopped rising, which sends the image back
to the best point it has seen; momentum carries it over small ridges. Nothing is left to tune but the number of steps.

The margin is the default loss: cross-entropy saturates on a confident network, and its gradient vanishes with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from advibp.attacks.feasible_set import Range, inner_ball, uniform_start
from advibp.attacks.fgsm_pgd import Attacked, Net, ascend, attack_loss, wrong_by
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy

Loss = Literal["margin", "ce", "dlr"]

ALPHA = 0.75  # the share of the gradient step in a move; the rest is momentum
RHO = 0.75  # the share of the moves that must raise the loss for the step to stay


def climb_loss(logits: Tensor, y: Tensor, *, loss: Loss, target: Tensor | None = None) -> Tensor:
    """Loss of each sample (B,). With a target class (B,) it is z_k - z_y, whatever `loss` is.

    dlr, the difference of logits ratio, is the margin over the first logit's lead on the third: it cannot be made
    small by scaling the logits.
    """
    if target is not None:
        return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)
    if loss != "dlr":
        return attack_loss(logits, y, loss)
    if logits.shape[1] < 3:
        raise UserError(f"The loss dlr needs 3 classes, and the network has {logits.shape[1]}; use margin.")
    first, _, third = logits.topk(3, 1).values.unbind(1)
    return attack_loss(logits, y, "margin") / (first - third).clamp_min(1e-12)


def checkpoints(steps: int) -> dict[int, int]:
    """The steps w_j = ceil(p_j * steps) at which progress is judged, each with how many moves it was since the last.

    p_0 = 0, p_1 = 0.22, p_{j+1} = p_j + max(p_j - p_{j-1} - 0.03, 0.06): the shorter the step, the sooner. In percent,
    so that no rounding moves a checkpoint.
    """
    percent = [0, 22]
    while percent[-1] < 100:
        percent.append(percent[-1] + max(percent[-1] - percent[-2] - 3, 6))
    found = sorted({-(-p * steps // 100) for p in percent if p <= 100})
    return {w: w - before for before, w in zip([0, *found], found, strict=False)}


@dataclass
class _Climb:
    """Where each image of one restart stands: one row per image in every field, so that images can leave."""

    rows: Tensor  # which image of the batch
    label: Tensor
    target: Tensor
    lower: Tensor
    upper: Tensor
    stride: Tensor  # (B, ...), the step of each element, 2 eps at first
    now: Tensor
    before: Tensor
    value: Tensor  # the loss at `now`
    peak: Tensor  # the point of the highest loss so far
    slope: Tensor  # the gradient's sign there: going back costs no pass
    top: Tensor  # the loss there
    top_then: Tensor  # what `top` was at the last checkpoint
    rises: Tensor  # moves since the last checkpoint that raised the loss
    halved: Tensor  # whether the last checkpoint halved the step

    @classmethod
    def begin(
        cls, rows: Tensor, label: Tensor, target: Tensor, lower: Tensor, upper: Tensor, eps: Tensor, start: Tensor
    ) -> _Climb:
        flat, low, none = torch.zeros_like(start), start.new_full(rows.shape, -torch.inf), torch.zeros_like(rows)
        places = (2 * eps, start, start, -low, start.clone(), flat, low, low.clone())
        return cls(rows, label, target, lower, upper, *places, none, none.bool())

    def look(self, value: Tensor, sign: Tensor) -> None:
        """Note the loss (B,) and the gradient's sign (B, ...) at `now`."""
        self.rises = self.rises + (value > self.value)
        self.value, higher = value, value > self.top
        self.peak[higher], self.slope[higher], self.top[higher] = self.now[higher], sign[higher], value[higher]

    def judge(self, moves: int, sign: Tensor) -> None:
        """At a checkpoint: an image that no longer rises goes back to its peak, with half the step and no momentum."""
        stuck = (self.rises < RHO * moves) | (~self.halved & (self.top == self.top_then))
        self.stride[stuck] *= 0.5
        self.now[stuck] = self.before[stuck] = self.peak[stuck]
        sign[stuck], self.value[stuck] = self.slope[stuck], self.top[stuck]
        self.halved, self.top_then, self.rises = stuck, self.top.clone(), torch.zeros_like(self.rises)

    def move(self, sign: Tensor, alpha: float) -> None:
        """x + alpha (z - x) + (1 - alpha) (x - x_before), projected, where z is the projected gradient step."""
        z = torch.clamp(self.now + self.stride * sign, self.lower, self.upper)
        x = self.now + alpha * (z - self.now) + (1 - alpha) * (self.now - self.before)
        self.now, self.before = torch.clamp(x, self.lower, self.upper), self.now

    def keep(self, images: Tensor) -> None:
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name)[images])


@torch.no_grad()
def apgd(
    net: Net,
    x: Tensor,
    y: Tensor,
    eps: Tensor | float,
    *,
    steps: int = 100,
    restarts: int = 1,
    loss: Loss = "margin",
    targeted: bool = True,
    random_start: bool = True,
    stop_on_success: bool = True,
    within: Range = (0.0, 1.0),
    generators: Sequence[torch.Generator] | None = None,
    by: float | Tensor = 0.0,
) -> Attacked:
    """Auto-PGD on x (B, ...), y (B,); like `attacks.pgd`, it returns a misclassified iterate of every broken image.

    With `targeted`, restart r > 0 climbs towards the r-th most likely wrong class (most likely at the first start):
    the class that leads there need not be the one that can be reached. Each step costs one forward and one backward.
    """
    best, broken = x.clone(), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    highest = torch.full((len(x),), -torch.inf, device=x.device, dtype=x.dtype)
    lower, upper = inner_ball(x, eps, within)
    reach = torch.as_tensor(eps, dtype=x.dtype, device=x.device).expand_as(x)
    least = torch.as_tensor(by, dtype=x.dtype, device=x.device).expand(len(x))
    turns, likely = checkpoints(steps), y[:, None]
    for restart in range(restarts):
        rows = torch.nonzero(~broken).flatten() if stop_on_success else torch.arange(len(x), device=x.device)
        if len(rows) == 0:
            break
        aimed = targeted and restart > 0
        target = likely[rows, (restart - 1) % (likely.shape[1] - 1)] if aimed else y[rows]
        lo, up, far = lower[rows], upper[rows], reach[rows]
        chances = None if generators is None else [generators[i] for i in rows.tolist()]
        start = uniform_start(x[rows], far, lo, up, chances) if random_start else x[rows]
        at = _Climb.begin(rows, y[rows], target, lo, up, far, start)
        for k in range(steps + 1):
            goal = partial(climb_loss, y=at.label, loss=loss, target=at.target if aimed else None)
            sign, logits = (
                ascend(net, at.now, goal) if k < steps else (None, run_on_copy(net, at.now))
            )  # the last is only seen
            if restart == k == 0:
                likely = logits.scatter(1, y[:, None], -torch.inf).argsort(1, descending=True)
            # A point at which the network overflows is no counterexample, and nowhere to go back to.
            finite = logits.isfinite().all(1)
            wrong = wrong_by(logits, at.label, least[at.rows])
            value = climb_loss(logits, at.label, loss=loss).where(finite, -torch.inf)
            # A misclassified point always beats a correctly classified one, whatever their losses.
            better = (wrong & ~broken[at.rows]) | ((wrong == broken[at.rows]) & (value > highest[at.rows]))
            hit = at.rows[better]
            best[hit], highest[hit], broken[hit] = at.now[better], value[better], wrong[better]
            if sign is None or (stop_on_success and bool(wrong.all())):
                break
            at.look(goal(logits).where(finite, -torch.inf), sign)
            if k in turns:
                at.judge(turns[k], sign)
            at.move(sign, ALPHA if k else 1.0)
            if stop_on_success and bool(wrong.any()):
                at.keep(~wrong)
    return Attacked(best, broken)
