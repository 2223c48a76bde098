"""Bounds of subproblems in which pre-activations of ReLU, leaky ReLU, sigmoid or tanh lie in intervals.

beta_crown.py splits ReLUs, whose halves are linear. The halves of a sigmoid are not, so it is split again and again,
and each half has a tighter relaxation over its smaller interval [l, u]. That z lies in [l, u] enters by a multiplier mu
of any sign: for all points of the subproblem

    f = (f - mu z) + mu z  >=  min (f - mu z) + min(mu l, mu u)

The first minimum is bounded by a backward pass in which the coefficient of z changes by -mu. Slopes and multipliers are
optimized together. Bounds of other pre-activations stay those of the whole box.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.bounds.linear.ascent import Variable, ascend
from advibp.bounds.linear.beta_crown import SplitBackwardResult
from advibp.bounds.linear.kinks import Linear
from advibp.bounds.linear.reduced import INPUT, Lines, Reduced, Rows
from advibp.bounds.linear.relaxation import CURVE_RATE, is_unstable

#: An interval of a curve is not split if it is narrower than this, relative to 1 and the magnitude of its ends.
_NARROW = 1e-9


class Intervals(NamedTuple):
    """Subproblems, one per row, and the parameters of their bounds.

    Attributes:
        which: index of the bounded function (D,).
        lower: lower bounds (D, V) of the pre-activations of the kinks.
        upper: upper bounds (D, V) of the pre-activations of the kinks.
        slopes: free slopes (D, 2, V), see `LinearRelaxation.free_slopes`; of a ReLU only the first one counts.
        multipliers: multipliers mu (D, V) of the pre-activations; 0 where there is no split.
    """

    which: Tensor
    lower: Tensor
    upper: Tensor
    slopes: Tensor
    multipliers: Tensor

    def take(self, some: Tensor | slice) -> Intervals:
        """Select some of the subproblems."""
        return Intervals(*(numbers[some] for numbers in self))

    @staticmethod
    def join(parts: Sequence[Intervals]) -> Intervals:
        """Concatenate subproblems."""
        return Intervals(*(torch.cat(numbers) for numbers in zip(*parts, strict=True)))


class IntervalBounds:
    """Lower bounds, over subproblems of the box of a reduced network, of functions of its input and kinks.

    Args:
        reduced: the network.
        functions: the bounded functions. Each is the maximum of its rows, and is bounded by its best row.

    Attributes:
        solvable: False, because subproblems with few undecided kinks are no mixed integer programs.
    """

    solvable = False

    def __init__(self, reduced: Reduced, functions: Sequence[Linear]) -> None:
        self._reduced = reduced
        blocks, none = reduced.blocks, reduced.center[:0]
        self._lower, self._upper = (torch.cat([none, *(getattr(b, end) for b in blocks)]) for end in ("lower", "upper"))
        self._is_relu = torch.cat([none.bool(), *(torch.full_like(b.lower, b.is_relu).bool() for b in blocks)])
        self._is_curve = torch.cat(
            [none.bool(), *(torch.full_like(b.lower, b.curve is not None).bool() for b in blocks)]
        )
        rows = [self._best_row(reduced.rows(function)) for function in functions]
        sources = {source for row in rows for source in row.of}
        width = {INPUT: len(reduced.center), **{n: len(block.bias) for n, block in enumerate(blocks)}}
        empty = {source: reduced.center.new_zeros(1, width[source]) for source in sources}
        of = {source: torch.cat([row.of.get(source, empty[source]) for row in rows]) for source in sources}
        self._rows = Rows(of, *(torch.cat(numbers) for numbers in zip(*(row[1:] for row in rows), strict=True)))

    def _best_row(self, rows: Rows) -> Rows:
        """Return the row with the largest bound over the whole box."""
        lines = [b.relax(b.lower[None], b.upper[None], self._reduced.unit) for b in self._reduced.blocks]
        count = len(rows.constant)
        ends = (end.expand(count, -1) for end in (self._reduced.center, self._reduced.radius))
        back = self._reduced.backward(rows, lambda n: lines[n].take(torch.zeros(count, dtype=torch.long)))
        best = int(self._reduced.minimum(back, *ends).argmax())
        one = slice(best, best + 1)
        return Rows({source: a[one] for source, a in rows.of.items()}, *(numbers[one] for numbers in rows[1:]))

    def single(self) -> IntervalBounds:
        """Return a copy in float32, whose bounds do not cover rounding errors. It serves to search parameters."""
        fast = copy.copy(self)
        fast._reduced = self._reduced.single()
        of = {source: a.float() for source, a in self._rows.of.items()}
        fast._rows = Rows(of, *(numbers.float() for numbers in self._rows[1:]))
        return fast

    def whole(self) -> Intervals:
        """Return the whole box as a subproblem, once for each function."""
        count = len(self._rows.constant)
        slopes = [self._lower.new_zeros(1, 2, 0)]
        for block in self._reduced.blocks:
            free = block.free_slopes(block.relax(block.lower[None], block.upper[None], self._reduced.unit)).start
            slopes.append(free if free.dim() == 3 else torch.stack([free, free], 1))
        lower, upper = (end.expand(count, -1) for end in (self._lower, self._upper))
        which = torch.arange(count, device=lower.device)
        return Intervals(which, lower, upper, torch.cat(slopes, 2).float().expand(count, -1, -1), lower.float() * 0)

    def split(self, parts: Intervals, kinks: Tensor) -> Intervals:
        """Split each subproblem at one of its kinks (D,): first all upper halves, then all lower halves.

        A ReLU is split at 0. A curve is split at 0 if that is in the middle half of its interval, otherwise in the
        middle.
        """
        at = kinks.unsqueeze(1)
        lower, upper = parts.lower.gather(1, at), parts.upper.gather(1, at)
        quarter = (upper - lower) / 4
        zero = self._is_relu[at] | ((lower < -quarter) & (upper > quarter))
        point = torch.where(zero, 0.0, torch.lerp(lower, upper, 0.5)).clamp(lower, upper)
        above = parts._replace(lower=parts.lower.scatter(1, at, point))
        return Intervals.join([above, parts._replace(upper=parts.upper.scatter(1, at, point))])

    def back(self, parts: Intervals) -> SplitBackwardResult:
        """Run the backward pass with the parameters of the subproblems."""
        return self._back(parts, parts.slopes, parts.multipliers)

    def _back(self, parts: Intervals, slopes: Tensor, multipliers: Tensor) -> SplitBackwardResult:
        reduced, arrived = self._reduced, dict[int, Tensor]()
        lower, upper, slopes, multipliers = (
            part.to(reduced.center) for part in (parts.lower, parts.upper, slopes, multipliers)
        )
        rows = Rows(
            {source: a[parts.which] for source, a in self._rows.of.items()},
            *(numbers[parts.which] for numbers in self._rows[1:]),
        )

        def lines(number: int) -> Lines:
            block = reduced.blocks[number]
            low, high, free = lower[:, block.columns], upper[:, block.columns], slopes[:, :, block.columns]
            found = block.relax(low, high, reduced.unit)
            if block.is_relu:
                free = torch.where(found.gap > 0, free[:, 0].clamp(block.negative_slope, 1), found.slope)
            return found if block.ceiling is not None else block.with_slopes(found, free, low, high, reduced.unit)

        back = reduced.backward(rows, lines, lambda n: multipliers[:, reduced.blocks[n].columns], arrived)
        ends = (end.expand(len(lower), -1) for end in (reduced.center, reduced.radius))
        # At mu = 0 the middle gives a gradient in the direction of the interval.
        chosen = torch.where(multipliers > 0, lower, torch.where(multipliers < 0, upper, (lower + upper) / 2))
        least = chosen.masked_fill(~upper.isfinite(), 0.0) * multipliers
        bound = reduced.minimum(back, *ends) + least.sum(1)
        if reduced.unit:  # the sum has V terms and is added to the bound, in float64
            bound = bound - 2.0**-50 * (2 + least.shape[1]) * (least.abs().sum(1) + bound.abs())
        at_kinks = [arrived[n] for n in range(len(reduced.blocks))]
        return SplitBackwardResult(bound, back.of[INPUT], torch.cat([bound.new_zeros(len(bound), 0), *at_kinks], 1))

    def lowest(self, inputs: Tensor) -> Tensor:
        """Return the points (D, N) of the box at which linear functions of the input (D, N) are smallest."""
        return self._reduced.center - self._reduced.radius * inputs.sign()

    def losses(self, parts: Intervals, arrived: Tensor) -> Tensor:
        """Return about how much the relaxation of each kink lowers the bounds; -1 for kinks that cannot be split.

        Args:
            parts: the subproblems.
            arrived: coefficients (D, V) of the outputs of the kinks.
        """
        found = [arrived[:, :0]]
        for block in self._reduced.blocks:
            lower, upper = (end[:, block.columns].to(arrived) for end in (parts.lower, parts.upper))
            lines = block.relax(lower, upper, 0.0)
            found.append(lines.difference * (lower + upper) / 2 + lines.gap)  # distance of the lines in the middle
        return (arrived.abs() * torch.cat(found, 1)).masked_fill(~self.can_split(parts), -1.0)

    def can_split(self, parts: Intervals) -> Tensor:
        """Return which kinks (D, V) can be split."""
        unstable = is_unstable(parts.lower, parts.upper)
        size = 1 + torch.maximum(parts.lower.abs(), parts.upper.abs())
        return (self._is_relu & unstable) | (self._is_curve & (parts.upper - parts.lower > _NARROW * size))

    def leaves(self, parts: Intervals, most: int) -> Tensor:
        """Return which subproblems (D,) have no kink that can be split."""
        return ~self.can_split(parts).any(1)

    def depths(self, parts: Intervals) -> Tensor:
        """Return the number of kinks that were split in each subproblem (D,)."""
        return self._were_split(parts).sum(1)

    def _were_split(self, parts: Intervals) -> Tensor:
        return (parts.lower > self._lower) | (parts.upper < self._upper)

    def ascend(
        self, parts: Intervals, *, steps: int, enough: float, deadline: float = math.inf
    ) -> tuple[Tensor, Intervals]:
        """Optimize the bounds over slopes and multipliers.

        Args:
            parts: the subproblems.
            steps: maximal number of steps.
            enough: stop when all bounds are above this number.
            deadline: a time of `time.monotonic`. After it only the first evaluation is made.

        Returns:
            The bounds (D,), and the subproblems with the best parameters.
        """
        unit = self._units(self.back(parts).kinks)
        free = torch.ones_like(parts.slopes, dtype=torch.bool)
        variables = [
            Variable(parts.slopes, free, (0.0, 1.0), CURVE_RATE),
            Variable(parts.multipliers / unit, self._were_split(parts), (-math.inf, math.inf)),
        ]

        def lower(values: list[Tensor]) -> Tensor:
            return self._back(parts, values[0], values[1] * unit).lower

        best = ascend(lower, variables, steps=steps, lr=0.25, enough=enough, deadline=deadline)
        slopes, multipliers = best.values
        return best.bounds, parts._replace(slopes=slopes, multipliers=multipliers * unit)

    def _units(self, arrived: Tensor) -> Tensor:
        """Return the units (D, V) of the multipliers: a share of the mean coefficient at the same activation."""
        blocks = self._reduced.blocks
        means = [arrived[:, b.columns].abs().mean(1, keepdim=True).expand(-1, len(b.bias)) for b in blocks]
        return (0.2 * torch.cat([arrived[:, :0], *means], 1).clamp(min=1e-6)).float()
