"""Check the arguments of an attack. A typo must not look like a robust network."""

from __future__ import annotations

import math
from typing import Any, get_args

import torch
from torch import Tensor

from advibp.attacks.attack_loss import LossName
from advibp.errors import UserError


def check_attack(
    x: Any, y: Any, eps: Any, *, steps: Any, rel_stepsize: Any = 1.0, restarts: Any = 1, within: Any, loss: Any
) -> None:
    """Raise a UserError if an argument of an attack is not valid. The arguments are those of `linf_pgd`."""
    if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() == 0:
        raise UserError("x must be a floating-point tensor of inputs (B, ...).")
    if not isinstance(y, Tensor) or y.is_floating_point() or y.shape != x.shape[:1]:
        raise UserError(f"y must be a tensor of {len(x)} integers, the class of each input.")
    _check_eps(x, eps)
    for name, value in (("steps", steps), ("restarts", restarts)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"{name} is {value!r}, but must be a whole number of at least 1.")
    if not isinstance(rel_stepsize, int | float) or not 0 < rel_stepsize < math.inf:
        raise UserError(f"rel_stepsize is {rel_stepsize!r}, but must be a number above 0: a step relative to eps.")
    if loss not in get_args(LossName):
        raise UserError(f"There is no loss {loss!r}; choose from {', '.join(get_args(LossName))}.")
    if within is not None and not (isinstance(within, tuple | list) and len(within) == 2):
        raise UserError(f"within is {within!r}, but must be (lowest, highest) value of the inputs, or None.")
    if within is not None and not all(isinstance(end, int | float | Tensor) for end in within):
        raise UserError(f"within is {within!r}, but must be two numbers or tensors, or None.")
    if within is not None and not bool((torch.as_tensor(within[0]) <= torch.as_tensor(within[1])).all()):
        raise UserError(f"within is {within!r}, but its lowest value must not be above its highest.")


def _check_eps(x: Tensor, eps: Any) -> None:
    if isinstance(eps, Tensor):
        try:
            fits = torch.broadcast_shapes(eps.shape, x.shape) == x.shape
        except RuntimeError:
            fits = False
        if not fits:
            raise UserError(f"eps has the shape {tuple(eps.shape)}, but must broadcast to x, {tuple(x.shape)}.")
    elif not isinstance(eps, int | float):
        raise UserError(f"eps is {eps!r}, but must be a number or a tensor that broadcasts to x.")
    if not bool(((torch.as_tensor(eps) >= 0) & torch.as_tensor(eps).isfinite()).all()):
        raise UserError("eps must be finite and not negative.")
