"""A network over a box, reduced to affine functions between its kinks.

The pre-activations of the kinks of an activation (`Kinks`), its *block*, are affine functions of the input and of the
outputs of earlier kinks. A block stores one matrix per *source*, the input or an earlier block, and only for sources on
which it depends. A backward pass through these matrices is much cheaper than one through the network, and the rows of
many subproblems can be carried back together: they share the matrices and differ in their relaxations.

The errors of the network, and those of a backward pass in float64, are bounded over the whole box, so the bounds hold
for every part of it (docs/arithmetic.md).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.bounds.linear.activations import _BackwardRelaxation
from advibp.bounds.linear.ascent import Variable
from advibp.bounds.linear.kinks import Curves, Kinks, Linear, UndecidedWindows, UnstableRelus
from advibp.bounds.linear.relaxation import CURVE_RATE, LinearRelaxation, SShaped, curve_error, is_unstable

#: The number of the input among the sources of a block.
INPUT = -1


@dataclass(frozen=True)
class Block:
    """The kinks of one activation.

    Attributes:
        columns: their indices among all V kinks.
        matrices: matrices (K, n) by source: INPUT, or the number of an earlier block.
        bias: constants (K,) of the pre-activations.
        slack: error (K,) of the pre-activations, per coefficient.
        output_error: error (K,) of the relaxations, per coefficient of the kinks' outputs.
        sizes: largest magnitudes (K,) of the pre-activations.
        lower: lower bounds (K,) of the pre-activations; of pooling windows, infinite.
        upper: upper bounds (K,) of the pre-activations; of pooling windows, infinite.
        negative_slope: slope below 0 of a ReLU.
        curve: relaxation of an activation that is not piecewise linear.
        ceiling: upper bounds (K,) of pooling windows.
    """

    columns: slice
    matrices: dict[int, Tensor]
    bias: Tensor
    slack: Tensor
    output_error: Tensor
    sizes: Tensor
    lower: Tensor
    upper: Tensor
    negative_slope: float = 0.0
    curve: SShaped | None = None
    ceiling: Tensor | None = None

    @property
    def is_relu(self) -> bool:
        return self.curve is None and self.ceiling is None

    def relax(self, lower: Tensor, upper: Tensor, unit: float) -> Lines:
        """Return the lines (D, K) of the kinks for bounds (D, K) within those of the block.

        The lines are moved outward by the rounding errors of their computation in arithmetic of a unit roundoff.
        """
        if self.ceiling is not None:
            one = torch.ones_like(lower)
            return Lines(one, -one, (self.ceiling + 32 * unit * self.sizes).expand_as(lower))
        if self.curve is not None:
            return self._lines_of(self.curve(lower, upper), unit)
        a = self.negative_slope
        unstable = is_unstable(lower, upper)
        share = upper / torch.where(unstable, upper - lower, 1.0)
        on = torch.full_like(lower, a).masked_fill(upper > -lower, 1.0)  # exact where the neuron is stable
        chord = torch.where(unstable, a + (1 - a) * share, on)
        intercept = torch.where(unstable, (a - 1) * lower * share + 32 * unit * self.sizes, 0.0)
        return Lines(on, chord - on, intercept)

    def free_slopes(self, lines: Lines) -> Variable:
        """Return the slopes that may change, (D, K) or, of both lines of a curve, (D, 2, K); see `LinearRelaxation`."""
        if self.curve is None:
            return Variable(lines.slope, lines.gap > 0, (self.negative_slope, 1.0))
        both = torch.stack([lines.slope, lines.slope + lines.difference], 1) / self.curve.steepest
        return Variable(both, torch.ones_like(both, dtype=torch.bool), (0.0, 1.0), CURVE_RATE)

    def with_slopes(self, lines: Lines, slopes: Tensor, lower: Tensor, upper: Tensor, unit: float) -> Lines:
        """Return `lines` for bounds (1, K) or (R, K) with other free slopes (R, K) or (R, 2, K)."""
        if self.curve is not None:
            ends = (end.expand(len(slopes), -1) for end in (lower, upper))
            return self._lines_of(self.curve.with_slopes(slopes, *ends), unit)
        return lines._replace(
            slope=slopes, difference=lines.slope + lines.difference - slopes, gap=lines.gap.expand_as(slopes)
        )

    def _lines_of(self, curve: LinearRelaxation, unit: float) -> Lines:
        """Return the lines of a curve, moved outward."""
        assert curve.lower_intercept is not None
        moved = curve_error(self.sizes, unit)
        start = curve.lower_intercept - moved
        gap = curve.upper_intercept + moved - start
        return Lines(curve.lower_slope, curve.upper_slope - curve.lower_slope, gap, start)


class Lines(NamedTuple):
    """The relaxations (D, K) of the kinks of a block.

    Attributes:
        slope: slope of the lower line.
        difference: slope of the upper line minus that of the lower one.
        gap: intercept of the upper line minus that of the lower one.
        intercept: intercept of the lower line; None if it is 0.
    """

    slope: Tensor
    difference: Tensor
    gap: Tensor
    intercept: Tensor | None = None

    def take(self, rows: Tensor) -> Lines:
        """Return the lines of some rows."""
        return Lines(*(None if part is None else part[rows] for part in self))  # type: ignore[arg-type]


class Rows(NamedTuple):
    """Linear functions of the input and of the outputs of kinks, R of them.

    Attributes:
        of: coefficients (R, n) by source.
        constant: constants (R,).
        lost: maximal effect (R,) of rounding errors; 0 in real arithmetic.
        size: sum of the magnitudes (R,) of all terms of the constants.
    """

    of: dict[int, Tensor]
    constant: Tensor
    lost: Tensor
    size: Tensor


class Reduced:
    """The affine functions between the kinks of a network, in double precision.

    Args:
        kinks: the kinks of a network over a box.

    Attributes:
        blocks: one block per activation with kinks.
        count: V, the number of kinks.
        unit: unit roundoff that the bounds cover; 0 in real arithmetic.
        center: center (N,) of the box.
        radius: radius (N,) of the box.
    """

    def __init__(self, kinks: Kinks) -> None:
        box = kinks.bounds.box
        self.center, self.radius, self.count = box.center.flatten(), box.radius.flatten(), kinks.count
        self.unit = 0.0 if kinks.bounds.rounding is None else kinks.bounds.rounding.w
        self.magnitudes = {INPUT: self.center.abs() + self.radius}  # by source
        self.blocks: list[Block] = []
        self._sources: dict[int, slice] = {}  # block -> its columns
        for number, found in kinks.of.items():
            if len(found.outputs):
                self._add(kinks, number, found)
        self._sum_errors = {
            source: 2 * (self.count + len(self.center)) * self.unit * sizes for source, sizes in self.magnitudes.items()
        }

    def _add(self, kinks: Kinks, number: int, found: UnstableRelus | UndecidedWindows | Curves) -> None:
        options: dict[str, object] = {}
        if isinstance(found, UndecidedWindows):  # lower line: the element with the largest lower bound
            pick = [int(lower.argmax()) for lower in found.lower]
            elements = torch.stack([e[p] for e, p in zip(found.elements, pick, strict=True)])
            ceiling = torch.stack([upper.max() for upper in found.upper])
            pairs = zip(found.lower, found.upper, strict=True)
            sizes = torch.stack([torch.maximum(a.abs(), b.abs()).max() for a, b in pairs])
            lower, upper = torch.full_like(sizes, -torch.inf), torch.full_like(sizes, torch.inf)
            options, shifts = {"ceiling": ceiling}, ceiling.abs()
        else:
            elements, lower, upper = found.elements, found.lower, found.upper
            sizes = torch.maximum(lower.abs(), upper.abs())
            if isinstance(found, Curves):
                options, shifts = {"curve": found.relaxation}, 2 * (1 + sizes)
            else:
                options, shifts = {"negative_slope": found.slope}, sizes
        linear = kinks.elements(found.pre_activation, elements)
        matrices = self._by_source(linear)
        terms = len(sizes) + self.count + len(self.center)
        sum_error = 2 * terms * self.unit
        magnitude = linear.constants.abs() + sum(
            (matrix.abs() @ self.magnitudes[source] for source, matrix in matrices.items()), torch.zeros_like(sizes)
        )
        self._sources[len(self.blocks)] = kinks.columns(number)
        self.magnitudes[len(self.blocks)] = sizes.clamp(min=1.0) if isinstance(found, Curves) else sizes
        self.blocks.append(
            Block(
                kinks.columns(number),
                matrices,
                linear.constants,
                linear.slack + sum_error * magnitude,
                64 * self.unit * (1 + sizes) + sum_error * shifts,
                sizes,
                lower,
                upper,
                **options,  # type: ignore[arg-type]
            )
        )

    def single(self) -> Reduced:
        """Return a copy in float32, whose bounds do not cover rounding errors. It serves to search parameters."""
        part = copy.copy(self)
        part.unit, part.center, part.radius = 0.0, self.center.float(), self.radius.float()
        part.magnitudes, part._sum_errors = {}, {}
        part.blocks = [
            replace(
                block,
                matrices={source: matrix.float() for source, matrix in block.matrices.items()},
                ceiling=None if block.ceiling is None else block.ceiling.float(),
                **{name: getattr(block, name).float() for name in ("bias", "slack", "sizes", "lower", "upper")},
            )
            for block in self.blocks
        ]
        return part

    def _by_source(self, linear: Linear) -> dict[int, Tensor]:
        """Return the matrices of linear functions, without those that are zero."""
        parts = {source: linear.kinks[:, columns] for source, columns in self._sources.items()}
        parts[INPUT] = linear.inputs
        return {source: part.contiguous() for source, part in parts.items() if bool((part != 0).any())}

    def rows(self, linear: Linear) -> Rows:
        """Return linear functions as rows. Their error is subtracted from their constants."""
        slack = 2.0**-50 * (linear.constants.abs() + linear.slack) if self.unit else 0.0
        return Rows(
            self._by_source(linear),
            linear.constants - linear.slack - slack,
            torch.zeros_like(linear.slack),
            linear.constants.abs(),
        )

    def pre_activations(self, number: int, neurons: Tensor) -> Rows:
        """Return pre-activations (R,) of kinks of a block, and then their negatives, as 2 R rows."""
        block = self.blocks[number]
        slack, bias = block.slack[neurons].repeat(2), block.bias[neurons]
        of = {source: _with_negative(matrix[neurons]) for source, matrix in block.matrices.items()}
        return Rows(of, torch.cat([bias, -bias]) - slack, torch.zeros_like(slack), bias.abs().repeat(2) + slack)

    def backward(
        self,
        rows: Rows,
        lines: Callable[[int], Lines],
        multipliers: Callable[[int], Tensor] | None = None,
        arrived: dict[int, Tensor] | None = None,
    ) -> Rows:
        """Carry rows back to the input.

        Args:
            rows: linear functions.
            lines: block -> its relaxation (R, K) for each row, or (R / n, K) if n rows in a row of R / n share it.
            multipliers: block -> numbers (R, K) that are subtracted from the coefficients of its pre-activations.
            arrived: gets the coefficients (R, K) of the outputs of each block.

        Returns:
            Lower bounds as linear functions of the input.
        """
        of, constant, lost, size = dict(rows.of), rows.constant, rows.lost, rows.size
        for number in range(len(self.blocks) - 1, -1, -1):
            block, after = self.blocks[number], of.pop(number, None)
            if after is None:
                if multipliers is None:
                    continue
                after = constant.new_zeros(len(constant), len(block.bias))
            if arrived is not None:
                arrived[number] = after
            before, more = _through(lines(number), after)
            if self.unit:  # slopes are at most 1, so coefficients do not grow
                lost = lost + after.abs() @ (block.slack + block.output_error)
            if multipliers is not None:
                subtracted = multipliers(number)
                before = before - subtracted
                if self.unit:
                    lost = lost + subtracted.abs() @ block.slack
            bias = before @ block.bias
            constant = constant + more + bias
            if self.unit:
                size = size + more.abs() + bias.abs()
            for source, matrix in block.matrices.items():
                if source in of:
                    if self.unit:
                        lost = lost + of[source].abs() @ self._sum_errors[source]
                    of[source] = torch.addmm(of[source], before, matrix)
                else:
                    of[source] = before @ matrix
        return Rows({INPUT: of.get(INPUT, constant.new_zeros(len(constant), len(self.center)))}, constant, lost, size)

    def minimum(self, rows: Rows, center: Tensor, radius: Tensor) -> Tensor:
        """Return lower bounds (R,) of rows of the input over parts of the box, with centers and radii (R, N).

        Each part is widened by the rounding errors of center and radius.
        """
        a = rows.of[INPUT]
        middle, spread = (a * center).sum(1), (a.abs() * radius).sum(1)
        lower = rows.constant + middle - spread
        if not self.unit:
            return lower
        error = a.abs() @ ((2 * len(self.center) + 8) * self.unit * self.magnitudes[INPUT])
        return lower - error - 1.001 * rows.lost - 2.0**-45 * (rows.size + middle.abs() + spread)


def _through(lines: Lines, after: Tensor) -> tuple[Tensor, Tensor]:
    """Carry rows (R, K) back through lines (R, K) or (R / n, K)."""
    slope, difference, gap, intercept = lines
    if torch.is_grad_enabled() and len(slope) == len(after):
        before, constants = (
            part.squeeze(1)
            for part in _BackwardRelaxation.apply(*(v.unsqueeze(1) for v in (after, slope, difference, gap)))
        )
        return before, constants if intercept is None else constants + (after * intercept).sum(1)
    after = after.reshape(-1, *slope.shape)
    negative = after.clamp(max=0)
    before = torch.addcmul(after * slope, negative, difference)
    constants = torch.linalg.vecdot(negative, gap)
    if intercept is not None:
        constants = constants + torch.linalg.vecdot(after, intercept)
    return before.flatten(0, 1), constants.flatten()


def _with_negative(rows: Tensor) -> Tensor:
    return torch.cat([rows, -rows])
