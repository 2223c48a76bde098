"""Bounds over parts of a box, in which some ReLUs are known to be on or off: beta-CROWN (Wang et al. 2021).

A network over a box is no more than its kinks (`Kinks`): what enters them is z = M (x, 1, v), with v the outputs of
earlier kinks. A way back through these matrices costs a fraction of one through the network, and parts of the box share
them: they differ only in the lines around their kinks, which are exact where a kink is split. That z_j >= 0 in a part
enters by its Lagrange multiplier beta_j >= 0: since -beta_j z_j <= 0 there, what is a lower bound of f - beta_j z_j is
one of f; likewise of f + beta_j z_j for z_j <= 0.

What is bounded is the largest of some rows f_1, ..., f_R, and so any mean of them is a lower bound: its weights are
moved together with the slopes of the lower lines and the multipliers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.linear.activations import through_lines
from advibp.bounds.linear.ascent import Variable, ascend
from advibp.bounds.linear.kinks import Bends, Choices, Kinks, Linear
from advibp.bounds.linear.relaxation import Lines


class Parts(NamedTuple):
    """Parts of the box, one in each row, and the numbers by which their bounds are computed."""

    which: Tensor  # (D,) the function that is bounded
    signs: Tensor  # (D, V) of what enters the kinks: 1 or -1 where it is known, else 0
    slopes: Tensor  # (D, V) of the lower lines: from 0, as if it were off, to 1
    multipliers: Tensor  # (D, V) >= 0, of the signs that are known
    weights: Tensor  # (D, R) of the rows, before a softmax

    def take(self, some: Tensor) -> Parts:
        return Parts(*(numbers[some] for numbers in self))

    @staticmethod
    def join(parts: Sequence[Parts]) -> Parts:
        return Parts(*(torch.cat(numbers) for numbers in zip(*parts, strict=True)))

    def split(self, kinks: Tensor) -> Parts:
        """The parts of each in which one of its kinks (D,) is on, and after them those in which it is off."""
        return Parts.join([self._replace(signs=self.signs.scatter(1, kinks.unsqueeze(1), sign)) for sign in (1, -1)])


class _Block(NamedTuple):
    """The kinks of an activation, what enters them as rows of columns before them, and what rounding adds.

    Attributes:
        columns: of its K kinks.
        matrix: (K, M) of what enters them.
        slack: (K,) by how much that is off.
        lines: (K,) error of the lines, for coefficients of the kinks' outputs.
        sums: (M,) error of a sum of coefficients, for those of the columns before.
    """

    columns: slice
    matrix: Tensor
    slack: Tensor
    lines: Tensor
    sums: Tensor


class Back(NamedTuple):
    """Lower bounds (D,), and the coefficients that arrived at the input (D, N) and at the outputs of kinks (D, V)."""

    lower: Tensor
    inputs: Tensor
    kinks: Tensor


class SplitBounds:
    """Lower bounds, over parts of the box of `kinks`, of functions of its input and kinks.

    Takes memory for V (N + V) numbers, of an input of N and V kinks.
    """

    def __init__(self, kinks: Kinks, functions: Sequence[Linear]) -> None:
        """functions: of each the rows whose largest is bounded."""
        box = kinks.bounds.box
        self._center, self._radius = box.center.flatten(), box.radius.flatten()
        #: Unit roundoff of these bounds; 0 in real arithmetic, which ignores rounding.
        self._unit = 0.0 if kinks.bounds.rounding is None else kinks.bounds.rounding.w
        self._sizes = torch.cat([self._center.abs() + self._radius, self._center.new_ones(1)])  # of the columns so far
        self._reach = self._radius + 2 * len(self._center) * self._unit * self._sizes[:-1]
        functions = [replace(f, constants=f.constants - f.slack) for f in functions]
        most = max(len(f.constants) for f in functions)
        self._functions = torch.stack([F.pad(_joined(f), (0, 0, 0, most - len(f.constants))) for f in functions])
        rows = torch.tensor([len(f.constants) for f in functions], device=self._center.device)
        self._present = torch.arange(most, device=rows.device) < rows.unsqueeze(1)  # (F, R)
        self._blocks: list[_Block] = []
        lines = [self._add(kinks, number, found) for number, found in kinks.of.items() if len(found.outputs)]
        none = (self._center.new_zeros(0),) * 5
        self._off, self._up_slope, self._up_shift, self._lower, self._upper = (
            torch.cat(numbers) for numbers in zip(none, *lines, strict=True)
        )
        #: (V,) whether a kink is a ReLU, which can be split.
        self.bends = self._upper.isfinite()

    def _add(self, kinks: Kinks, number: int, found: Bends | Choices) -> tuple[Tensor, ...]:
        columns = kinks.columns(number)
        if isinstance(found, Bends):
            elements, off = found.elements, torch.full_like(found.lower, found.slope)
            share = found.upper / (found.upper - found.lower)
            chord, shift = off + (1 - off) * share, (off - 1) * found.lower * share
            ends = found.lower, found.upper
        else:  # below a window is the element whose lower bound is largest, above it a constant
            pick = [int(lower.argmax()) for lower in found.lower]
            elements = torch.stack([e[p] for e, p in zip(found.elements, pick, strict=True)])
            shift = torch.stack([upper.max() for upper in found.upper])
            chord = off = torch.zeros_like(shift)
            ends = (torch.full_like(shift, math.inf),) * 2
        entering = kinks.elements(found.entering, elements)
        matrix = _joined(entering)[:, : len(self._center) + 1 + columns.start]
        if isinstance(found, Bends):
            sizes = torch.maximum(found.lower.abs(), found.upper.abs())
        else:
            ends_of = zip(found.lower, found.upper, strict=True)
            sizes = torch.stack([torch.maximum(a.abs(), b.abs()).max() for a, b in ends_of])
        # As in `relaxation.widened`: what the lines and a way back through them round.
        shift = shift + 32 * self._unit * sizes
        own = 2 * (len(sizes) + matrix.shape[1]) * self._unit
        self._blocks.append(
            _Block(
                columns,
                matrix,
                entering.slack + own * (matrix.abs() @ self._sizes),
                64 * self._unit * sizes + own * shift.abs(),
                own * self._sizes,
            )
        )
        self._sizes = torch.cat([self._sizes, sizes])
        return off, chord, shift, *ends

    def whole(self) -> Parts:
        """The whole box, once for each function."""
        count, kinks = len(self._functions), len(self._off)
        signs = torch.zeros(count, kinks, dtype=torch.int8, device=self._off.device)
        slopes = ((self._upper > -self._lower) | ~self.bends).to(torch.float32).repeat(count, 1)
        which = torch.arange(count, device=signs.device)
        weights = torch.zeros(self._present.shape, device=signs.device)
        return Parts(which, signs, slopes, torch.zeros_like(slopes), weights)

    # ------------------------------------------------------------------------------------------ one way back

    def back(self, parts: Parts) -> Back:
        """By the numbers that the parts come with."""
        return self._back(self._objectives(parts), self._decided(parts), parts)

    def lowest(self, inputs: Tensor) -> Tensor:
        """Where in the box linear functions of the input (D, N) are smallest (D, N)."""
        return self._center - self._radius * inputs.sign()

    def _objectives(self, parts: Parts) -> Tensor:
        """One row (D, N + 1 + V) for each part."""
        rows = self._functions[parts.which]
        if rows.shape[1] == 1:
            return rows.squeeze(1)
        weights = parts.weights.to(rows).masked_fill(~self._present[parts.which], -math.inf).softmax(1)
        return torch.einsum("dr,drn->dn", weights, rows)

    def _decided(self, parts: Parts) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of the lower lines where they have a choice: the least slope, and the slope more there can be; of the upper
        ones slopes and shifts."""
        decided = parts.signs != 0
        exact = torch.where(parts.signs > 0, 1.0, self._off)
        least, up = torch.where(decided, exact, self._off), torch.where(decided, exact, self._up_slope)
        return least, (1 - self._off) * ~decided, up, self._up_shift * ~decided

    def _back(self, a: Tensor, decided: tuple[Tensor, ...], parts: Parts) -> Back:
        constant, arrived, rounds = a.new_zeros(len(a)), [], self._unit > 0
        least, more, up, shift = decided
        slopes, added = least + more * parts.slopes, parts.signs * parts.multipliers
        first = len(self._center) + 1
        lost = constant
        if rounds and self._functions.shape[1] > 1:  # a mean of rows was computed
            sizes = (self._functions.abs() @ self._sizes).amax(1)[parts.which]
            lost = 4 * self._functions.shape[1] * self._unit * sizes
        for columns, matrix, slack, of_lines, of_sums in reversed(self._blocks):
            a, after = a[:, : first + columns.start], a[:, first + columns.start :]
            own = Lines(slopes[:, None, columns], None, up[:, None, columns], shift[:, None, columns])
            before, constants = through_lines(own, after.unsqueeze(1))
            coefficients = before.squeeze(1) - added[:, columns]
            if rounds:
                lost = lost + coefficients.abs() @ slack + after.abs() @ of_lines + a.abs() @ of_sums
            a = torch.addmm(a, coefficients, matrix)
            constant = constant + constants.squeeze(1)
            arrived.append(after)
        inputs = a[:, :-1]
        middle, spread = inputs @ self._center, inputs.abs() @ self._reach
        lower = constant + a[:, -1] + middle - spread
        if rounds:
            lower = lower - 1.001 * lost - 2.0**-45 * (constant.abs() + a[:, -1].abs() + middle.abs() + spread)
        return Back(lower, inputs, torch.cat([a[:, :0], *reversed(arrived)], 1))

    def losses(self, parts: Parts, arrived: Tensor) -> Tensor:
        """What the bounds lose at most (D, V) by the lines around each kink, for the coefficients that `arrived` there;
        -1 for those that can't be split, or are."""
        slopes = parts.slopes.to(arrived)
        below = torch.maximum((1 - slopes) * self._upper, -slopes * self._lower) * (1 - self._off)
        lost = torch.where(arrived < 0, -arrived * self._up_shift, arrived * below)
        return lost.masked_fill(~self.bends | (parts.signs != 0), -1.0)

    # ------------------------------------------------------------------------------------------ the best of many

    def ascend(self, parts: Parts, *, steps: int, enough: float, deadline: float = math.inf) -> tuple[Tensor, Parts]:
        """Higher bounds (D,), and the parts with the numbers that led to them. What is above `enough` may stay."""
        decided, like, fixed = self._decided(parts), self._center.dtype, self._objectives(parts)
        known, unit = parts.signs != 0, self._units(self._back(fixed, decided, parts).kinks.detach())
        variables = [
            Variable(parts.slopes.to(like), self.bends & ~known, (0.0, 1.0)),
            Variable(parts.multipliers / unit, known, (0.0, math.inf)),
        ]
        if parts.weights.shape[1] > 1:
            variables.append(Variable(parts.weights.to(like), self._present[parts.which], (-math.inf, math.inf)))

        def at(numbers: list[Tensor]) -> Parts:
            slopes, multipliers, *weights = numbers
            return Parts(parts.which, parts.signs, slopes, multipliers * unit, *(weights or [parts.weights]))

        def lower(numbers: list[Tensor]) -> Tensor:
            own = at(numbers)
            return self._back(self._objectives(own) if len(numbers) > 2 else fixed, decided, own).lower

        best = ascend(lower, variables, steps=steps, lr=0.25, enough=enough, deadline=deadline)
        return best.bounds, Parts(*(new.to(old) for new, old in zip(at(best.at), parts, strict=True)))

    def _units(self, arrived: Tensor) -> Tensor:
        """What multipliers are counted in: a share of the coefficients that arrive at the same activation. Otherwise
        steps that suit slopes would be too long for some networks, and too short for others."""
        means = [arrived[:, columns].abs().mean(1, keepdim=True).expand(-1, len(m)) for columns, m, *_ in self._blocks]
        return 0.2 * torch.cat([arrived[:, :0], *means], 1).clamp(min=1e-6)


def _joined(functions: Linear) -> Tensor:
    """Coefficients (R, N + 1 + V) of the input, of 1 and of the kinks."""
    return torch.cat([functions.inputs, functions.constants.unsqueeze(1), functions.kinks], 1)
