"""The losses that attacks maximize, and the signs of their input gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.errors import UserError
from advibp.execution.image_gradient import as_image
from advibp.execution.own_copy import run_on_copy

Net = Callable[[Tensor], Tensor]
LossName = Literal["ce", "margin", "dlr"]


def attack_loss(logits: Tensor, y: Tensor, loss: LossName) -> Tensor:
    """Return the loss of each sample, which is large if the attack is close to success.

    Args:
        logits: (B, K).
        y: labels, (B,).
        loss: "ce", cross-entropy; "margin", max_{k != y} z_k - z_y; or "dlr", the margin divided by the difference
            between the largest and the third largest logit, which does not change if the logits are scaled (Croce and
            Hein 2020). "dlr" needs at least 3 classes.

    Returns:
        The losses, (B,).
    """
    if loss == "ce":
        return F.cross_entropy(logits, y, reduction="none")
    true = logits.gather(1, y[:, None])
    margin = (logits - true).scatter(1, y[:, None], -torch.inf).amax(1)
    if loss == "margin":
        return margin
    if logits.shape[1] < 3:
        raise UserError(f"The loss dlr needs 3 classes, and the network has {logits.shape[1]}; use margin.")
    first, _, third = logits.topk(3, 1).values.unbind(1)
    return margin / (first - third).clamp_min(1e-12)


def targeted_loss(logits: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """Return z_target - z_y (B,) for one target class per sample (B,)."""
    return (logits.gather(1, target[:, None]) - logits.gather(1, y[:, None])).squeeze(1)


def gradient_sign(net: Net, x: Tensor, loss: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return the sign of the gradient of loss(net(x)) with respect to x, and the logits.

    Parameters get no gradient. `loss` maps logits (B, K) to losses (B,).
    """
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        logits = run_on_copy(net, as_image(x))
        (grad,) = torch.autograd.grad(loss(logits).sum(), x)
    return grad.sign_(), logits.detach()


def wrong_by(logits: Tensor, y: Tensor, margin: float | Tensor = 0.0) -> Tensor:
    """Return which samples (B,) have a wrong class whose logit exceeds the label's by more than `margin`.

    Neither a tie nor a logit that is not finite counts as misclassified.
    """
    return (attack_loss(logits, y, "margin") > margin) & logits.isfinite().all(1)
