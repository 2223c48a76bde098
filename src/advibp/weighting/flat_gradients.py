"""The gradients of several losses as rows of one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class FlatGradients:
    """A matrix with one flat gradient per loss, and their combination, which the parameters' .grad refer to.

    Args:
        params: the n parameters' tensors, in the order of the columns.
        rows: number of losses.

    Attributes:
        rows: the gradients of the losses, (rows, n).
        final: the combined gradient, (n,). Each parameter's .grad is a view of its part, if the strides allow it.

    Examples:
        >>> import torch
        >>> from advibp.weighting import FlatGradients
        >>> w = torch.ones(2, requires_grad=True)
        >>> gradients = FlatGradients([w])
        >>> _ = gradients.take(0, w.sum())
        >>> _ = gradients.take(1, (2 * w).sum())
        >>> gradients.rows
        tensor([[1., 1.],
                [2., 2.]])
    """

    def __init__(self, params: Sequence[Tensor], rows: int = 2) -> None:
        self.params = params
        buffer = params[0].new_zeros(rows + 1, sum(p.numel() for p in params))
        self.rows, self.final = buffer[:-1], buffer[-1]
        self._views = [self._parameter_views(row) for row in buffer]
        # A .grad must have the strides of its parameter. If those are not contiguous, it can't be a view.
        self._strided = []
        for p, view in zip(params, self._views[-1], strict=True):
            p.grad = view if p.stride() == view.stride() else torch.zeros_like(p)
            if p.grad is not view:
                self._strided.append((p.grad, view))

    def _parameter_views(self, flat: Tensor) -> list[Tensor]:
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
        """Run the backward pass of a loss and store its gradient in a row.

        Args:
            row: index of the row; -1 is `final`.
            loss: a scalar.
            extra: further tensors whose gradients are returned.
            share: factor of the stored gradient.
            add: add to the row instead of replacing it.
            keep_graph: keep the autograd graph for another backward pass.

        Returns:
            The gradients with respect to `extra`.
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
        """Copy `final` to every .grad that is not a view of it."""
        if self._strided:
            grads, views = zip(*self._strided, strict=True)
            torch._foreach_copy_(list(grads), list(views))
