"""The set of inputs over which an objective is computed."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from advibp.attacks import Range, feasible
from advibp.bounds import Box, Perturbation, Zonotope

PIXELS: Range = (0.0, 1.0)


@dataclass(frozen=True)
class Ball:
    """The l_inf ball of radius eps around each input of a batch, intersected with the range of valid inputs.

    A latent box is such a set too: `x` is its center, `eps` its radius per neuron, and `within` is None.

    Args:
        x: centers, (B, ...).
        eps: radius, a number or a tensor that broadcasts to x.
        within: range of valid inputs, (lowest, highest), numbers or tensors that broadcast to x, or None. Default:
            (0, 1), the range of pixels.

    Examples:
        >>> import torch
        >>> from advibp.objectives import Ball
        >>> box = Ball(torch.tensor([[0.1, 0.5]]), 0.2).box()
        >>> bool((box.lower <= torch.tensor([[0.0, 0.3]])).all())
        True
    """

    x: Tensor
    eps: float | Tensor
    within: Range = PIXELS

    @classmethod
    def of(cls, x: Tensor, eps: float, perturbation: Perturbation) -> Ball:
        """Return the set of a perturbation of radius eps around inputs x (B, ...)."""
        return cls(x, perturbation.radius(eps, x), perturbation.on(x).within)

    def box(self) -> Box:
        """Return the set as a `Box`, for interval bounds and CROWN."""
        return Box.ball(self.x, self.eps, self.within)

    def zonotope(self, max_symbols: int | None = None) -> Zonotope:
        """Return the set as a `Zonotope` with at most `max_symbols` noise symbols (None: no limit)."""
        return Zonotope.ball(self.x, self.eps, self.within, max_symbols=max_symbols)

    def ends(self) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the set, (B, ...) each."""
        return feasible(self.x, self.eps, self.within)
