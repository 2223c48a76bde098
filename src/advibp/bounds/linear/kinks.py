"""A network over a box is affine but at its kinks: the ReLUs and pooling windows that the bounds leave undecided.

Every value is therefore a linear function of the input and of the outputs of the kinks before it. Those functions are
found by a way back that goes straight through what is decided and stops at kinks. They are all that an exact solver
needs to know of the network, and in a network that was trained to be provable they are few.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from advibp.bounds.domain import unsupported, without_autocast
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.relaxation import KINKED, Windows, crossing

#: Searches keep V (N + V) numbers, of an input of N and V kinks; networks that need more are left alone.
MOST_NUMBERS = 2**28


@dataclass(frozen=True)
class Linear:
    """Functions x . inputs + v . kinks + constants of the input x (N,) and of the outputs v (V,) of kinks.

    What the network computes differs from them by at most `slack`, its rounding errors; 0 in real arithmetic.
    """

    inputs: Tensor  # (R, N)
    kinks: Tensor  # (R, V)
    constants: Tensor  # (R,)
    slack: Tensor  # (R,)

    def __neg__(self) -> Linear:
        return Linear(-self.inputs, -self.kinks, -self.constants, self.slack)


@dataclass(frozen=True)
class Bends:
    """ReLUs max(z, slope z) that may be on either side of 0: which elements z of what enters, and where they lie."""

    entering: int  # node
    elements: Tensor  # (K,) of its flattened value
    lower: Tensor  # (K,)
    upper: Tensor
    slope: float  # below 0

    @property
    def outputs(self) -> Tensor:
        return self.elements


@dataclass(frozen=True)
class Choices:
    """Pooling windows of which more than one element z may be the largest."""

    entering: int
    outputs: Tensor  # (K,) of the flattened value of the pooling
    elements: list[Tensor]  # of what enters: those of each window that may be the largest
    lower: list[Tensor]
    upper: list[Tensor]


class Kinks:
    """The kinks of a network over the box of one image, and everything else as linear functions of them."""

    def __init__(self, bounds: LinearBounds) -> None:
        if len(bounds.box) != 1:
            unsupported(f"kinks are those of one image, not of {len(bounds.box)}", "take one of them.")
        self.bounds = bounds
        self.of = {number: self._found(number) for number in bounds.activations}
        starts = torch.tensor([0, *(len(kinks.outputs) for kinks in self.of.values())]).cumsum(0).tolist()
        self._columns = {
            number: slice(start, stop) for number, start, stop in zip(self.of, starts, starts[1:], strict=False)
        }
        self.count: int = starts[-1]

    def _found(self, number: int) -> Bends | Choices:
        bounds = self.bounds
        entering, lines = bounds.tape.nodes[number].refs[0], bounds.lines(number)
        lower, upper = (end.flatten() for end in bounds.boxes[entering])
        if isinstance(lines, Windows):
            return _choices(entering, lines, lower, upper)
        if bounds.tape.nodes[number].func not in KINKED:
            unsupported(
                f"{bounds.tape.name(number)} is curved, so no exact answer is known here",
                "verify it by crown or alpha-crown.",
            )
        where = crossing(lower, upper).nonzero().flatten()
        return Bends(entering, where, lower[where], upper[where], lines.span[0])

    @property
    def too_many(self) -> bool:
        """Whether a search would not fit into memory."""
        return self.count * (self.bounds.box.center.numel() + self.count) > MOST_NUMBERS

    def columns(self, number: int) -> slice:
        """Where the outputs of an activation's kinks are among those of all."""
        return self._columns[number]

    def before(self, index: int) -> dict[int, Bends | Choices]:
        """The kinks, by activation, on which the value of a node may depend."""
        needed = set(self.bounds.tape.needed(0, index))
        return {number: kinks for number, kinks in self.of.items() if number in needed}

    def elements(self, index: int, where: Tensor) -> Linear:
        """Some elements (K,) of the flattened value of a node."""
        shape = self.bounds.tape.nodes[index].shape
        assert shape is not None
        rows = self.bounds.box.center.new_zeros(len(where), shape[1:].numel())
        rows[torch.arange(len(where), device=where.device), where] = 1.0
        return self.linear(index, rows.view(-1, *shape[1:]))

    @torch.no_grad()
    def linear(self, index: int, a: Tensor, offsets: Tensor | float = 0.0) -> Linear:
        """Rows of A (R, ...) at the value of a node, plus offsets (R,)."""
        parts = [self._linear(index, part) for part in a.split(self.bounds.at_once)]
        inputs, kinks, constants, slack = (torch.cat(same) for same in zip(*parts, strict=True))
        constants = constants + offsets
        if self.bounds.rounding is not None:
            slack = slack + 2.0**-50 * constants.abs()
        return Linear(inputs, kinks, constants, slack)

    def _linear(self, index: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        kinks = a.new_zeros(len(a), self.count)

        def through(number: int, rows: Tensor) -> tuple[Tensor, Tensor]:
            kinks[:, self._columns[number]] += rows.flatten(1)[:, self.of[number].outputs]
            return self._straight(number, rows), rows.new_zeros(len(rows))

        with without_autocast(a.device.type):
            back = self.bounds.take_back(index, a, through)
        return back.a.flatten(1), kinks, back.constant, back.lost + 2.0**-45 * back.size

    def _straight(self, number: int, rows: Tensor) -> Tensor:
        """Through what is decided, and nothing of what is a kink."""
        lines = self.bounds.lines(number)
        if isinstance(lines, Windows):
            return lines.spread(rows.flatten(2).unsqueeze(2) * lines.certain)
        return rows * self._slopes[number]

    @cached_property
    def _slopes(self) -> dict[int, Tensor]:
        found = {}
        for number, kinks in self.of.items():
            if isinstance(kinks, Bends):
                lower, _ = self.bounds.boxes[kinks.entering]
                slopes = torch.full_like(lower, kinks.slope).masked_fill(lower >= 0, 1.0)
                slopes.view(-1)[kinks.elements] = 0.0
                found[number] = slopes
        return found


def _choices(entering: int, lines: Windows, lower: Tensor, upper: Tensor) -> Choices:
    """The windows without a certain winner, (C, n, L) of which are numbered c L + l as in the pooling's value."""
    _, channels, size, windows = lines.pick.shape
    number = torch.arange(1.0, lower.numel() + 1, dtype=torch.float64, device=lower.device).view(lines.size)
    origin = _windows(number, lines).view(channels, size, windows).long() - 1  # -1 where there is padding
    origin = origin.transpose(1, 2).flatten(0, 1)  # (C L, n)
    outputs = (lines.certain.sum(2)[0].flatten() == 0).nonzero().flatten()
    elements, lowers, uppers = [], [], []
    for inside in origin[outputs]:
        inside = inside[inside >= 0]
        surely = lower[inside].max()
        inside = inside[(upper[inside] > surely) | (lower[inside] >= surely)]
        elements.append(inside)
        lowers.append(lower[inside])
        uppers.append(upper[inside])
    return Choices(entering, outputs, elements, lowers, uppers)


def _windows(x: Tensor, lines: Windows) -> Tensor:
    """The elements of each window, 0 where there is padding."""
    return torch.nn.functional.unfold(x.flatten(0, 1)[:, None], **lines.fold)
