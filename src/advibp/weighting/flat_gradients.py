"""Gradients of several losses as rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatGradients:
    """Gradients of several losses as rows of one matrix (rows, n), and their combination (n,), which the parameters'
    .grad show: views into one buffer, in the order of `params`."""

    def __init__(self, params: Sequence[Tensor], rows: int = 2) -> None:
        self.params = params
        buffer = params[0].new_zeros(rows + 1, sum(p.numel() for p in params))
        self.rows, self.final = buffer[:-1], buffer[-1]
        self._views = [self._shaped(row) for row in buffer]
        # A .grad must have the strides of its parameter; where those are not the usual ones it can't be a view.
        self._strided = []
        for p, view in zip(params, self._views[-1], strict=True):
            p.grad = view if p.stride() == view.stride() else torch.zeros_like(p)
            if p.grad is not view:
                self._strided.append((p.grad, view))

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def take(
        self,
        row: int,
        loss: Tensor,
        extra: Sequence[Tensor] = (),
        *,
        share: float = 1.0,
        add: bool = False,
        keep_graph: bool = False,
    ) -> tuple[Tensor, ...]:
        """Backward pass of `loss`, the gradient times `share` into one row or added to it; row -1 is `final`.

        Returns the gradients with respect to `extra`.
        """
        found = torch.autograd.grad(loss, [*self.params, *extra], materialize_grads=True, retain_graph=keep_graph)
        grads = list(found[: len(self.params)])
        if add:
            torch._foreach_add_(self._views[row], grads, alpha=share)
        else:
            torch._foreach_copy_(self._views[row], grads)
            if share != 1:
                torch._foreach_mul_(self._views[row], share)
        return found[len(self.params) :]

    def deliver(self) -> None:
        """Let every .grad be its part of `final`."""
        if self._strided:
            grads, views = zip(*self._strided, strict=True)
            torch._foreach_copy_(list(grads), list(views))
