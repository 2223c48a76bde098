"""Lower and upper bounds of single neurons by backward passes.

Each neuron has two rows, +e and -e, which are carried back together. Rows of convolutional layers are patches, rows of
one image share its relaxations, and as many rows as fit into the cache are carried back at once.

The bounds of a stable ReLU need not be tight: its relaxation is exact. So at every pre-activation on the way, the rows
are bounded over the bounds of this pre-activation, and neurons that are stable by these bounds are not carried further.
This is omitted where it costs more than the rest of the way, a convolution of few channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.domain import without_autocast
from advibp.bounds.linear.backward import BackwardPass, BackwardResult
from advibp.bounds.linear.patches import Patches
from advibp.bounds.linear.transpose import has_few_channels, mixes_elements

#: Coefficients per backward pass.
_CACHE = 2**21
#: Rows of the first backward pass, which measures the size of a row.
_FIRST_ROWS = 64
#: With this many rows per image, or more, every image has its own backward passes.
_ROWS_OF_AN_IMAGE, _PATCHES_OF_AN_IMAGE = 8, 64


def neuron_bounds(linear: BackwardPass, index: int, wanted: Tensor, *, until_stable: bool) -> tuple[Tensor, Tensor]:
    """Compute bounds of some elements of a value.

    Args:
        linear: carries the rows back.
        index: the node of the value.
        wanted: which elements (B, ...) are bounded.
        until_stable: whether neurons are bounded only until they are stable.

    Returns:
        Lower and upper bounds (B, ...); -inf and inf for the other elements.
    """
    image, element = torch.nonzero(wanted.reshape(len(wanted), -1), as_tuple=True)
    shape = wanted.shape[1:]
    lower = linear.box.center.new_full((len(wanted), shape.numel()), -torch.inf)
    upper = torch.full_like(lower, torch.inf)
    apart = len(image) >= len(wanted) * (_PATCHES_OF_AN_IMAGE if len(shape) == 3 else _ROWS_OF_AN_IMAGE)
    counts = torch.bincount(image, minlength=len(wanted)).tolist() if apart else [len(image)]
    start, step = 0, _FIRST_ROWS
    for number, count in enumerate(counts):
        end = start + count
        while start < end:
            part = slice(start, min(start + step, end))
            rows_of = slice(number, number + 1) if apart else image[part]
            bounds = _Neurons(linear, index, element[part], shape, until_stable).bounds(rows_of)
            lower[image[part], element[part]], upper[image[part], element[part]] = bounds[0], -bounds[1]
            start, step = part.stop, max(1, _CACHE // linear.row_size)
    return lower.view(wanted.shape), upper.view(wanted.shape)


class _Neurons:
    """The rows of R neurons in one backward pass."""

    def __init__(
        self, linear: BackwardPass, index: int, elements: Tensor, shape: torch.Size, until_stable: bool
    ) -> None:
        self.linear, self.index, self.until_stable = linear, index, until_stable
        ones = linear.box.center.new_ones(len(elements))
        self.rows = _one_hot(elements, shape, ones)
        self.lower = ones.new_empty(2, len(elements))  # of the neurons and of their negatives
        self.rest = torch.arange(len(elements), device=elements.device)  # neurons that are carried on

    def bounds(self, images: Tensor | slice) -> Tensor:
        """Return lower bounds (2, R) of the neurons and of their negatives."""
        linear = self.linear
        with without_autocast(self.lower.device.type):
            undecided = self._undecided if self.until_stable else None
            back = linear.backward(self.index, self.rows, linear.through_relaxations(), images, undecided, True)
            if not len(self.rest):
                return self.lower
            if isinstance(images, Tensor):
                images = images[self.rest].repeat(2)
            self.lower[:, self.rest] = linear.minimize(back, images).to(self.lower.dtype).view(2, -1)
        return self.lower

    def _undecided(self, at: int, back: BackwardResult, images: Tensor | slice) -> Tensor | None:
        """Store the bounds of neurons that are stable, and return the rows of the others; None if there are none."""
        if at == 0 or _is_first_convolution(self.linear, at) or not self.linear.is_finite(at):
            return None
        lower = self.linear.minimize(back, images, at).to(self.lower.dtype).view(2, -1)
        stable = (lower > 0).any(0)
        if not bool(stable.any()):
            return None
        self.lower[:, self.rest[stable]] = lower[:, stable]
        self.rest, keep = self.rest[~stable], torch.nonzero(~stable).flatten()
        return torch.cat([keep, keep + len(stable)])


def _is_first_convolution(linear: BackwardPass, index: int) -> bool:
    """Return whether a value is computed from the input by one convolution of few channels and elementwise operations.

    To carry rows back through it costs less than to bound them over the value.
    """
    nodes = linear.tape.nodes
    before = [nodes[i] for i in linear.tape.needed(0, index) if nodes[i].from_input]
    mixing = [node for node in before if mixes_elements(node)]
    return len(mixing) == 1 and has_few_channels(mixing[0])


def _one_hot(elements: Tensor, shape: torch.Size, signs: Tensor) -> Tensor | Patches:
    """Return a row with one coefficient for each element of a value."""
    if len(shape) == 3:
        return Patches.one_hot(elements, shape, signs)
    rows = signs.new_zeros(len(signs), shape.numel())
    rows[torch.arange(len(signs), device=signs.device), elements] = signs
    return rows.view(-1, *shape)
