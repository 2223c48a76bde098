"""Bounds of subproblems, in which some ReLUs are known to be active or inactive: beta-CROWN (Wang et al. 2021).

The pre-activations of the kinks of a network (`Kinks`) are z = M (x, 1, v), where v are the outputs of earlier kinks. A
backward pass through these matrices is much cheaper than one through the network. All subproblems share the matrices.
They differ only in the relaxations of the kinks, which are exact where a kink is split.

The constraint z_j >= 0 of a split enters by its Lagrange multiplier beta_j >= 0. For all points of the subproblem

    f >= f - beta_j z_j,    since beta_j z_j >= 0,

so a lower bound of f - beta_j z_j is one of f. For z_j <= 0 it is f + beta_j z_j. In general, with the sign s_j of z_j,

    min f  >=  max over beta >= 0 of  min (f - sum_j beta_j s_j z_j)

where the inner minimum is bounded by the backward pass: the coefficient of z_j changes by -beta_j s_j.

The bounded function is the maximum of rows f_1, ..., f_R. Every weighted mean of the rows is a lower bound of the
maximum. The weights are optimized together with the slopes of the lower lines and the multipliers.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.linear.activations import backward_relaxation
from advibp.bounds.linear.ascent import Variable, ascend
from advibp.bounds.linear.kinks import Curves, Kinks, Linear, UndecidedWindows, UnstableRelus
from advibp.bounds.linear.relaxation import LinearRelaxation


class Subproblems(NamedTuple):
    """Subproblems, one per row, and the parameters of their bounds.

    Attributes:
        which: index of the bounded function (D,).
        signs: signs (D, V) of the pre-activations of the kinks: 1 or -1 if known, otherwise 0.
        slopes: slopes (D, V) of the lower lines, from 0 (as if inactive) to 1.
        multipliers: multipliers beta (D, V) >= 0 of the known signs.
        weights: weights (D, R) of the rows, before a softmax.
    """

    which: Tensor
    signs: Tensor
    slopes: Tensor
    multipliers: Tensor
    weights: Tensor

    def take(self, some: Tensor | slice) -> Subproblems:
        """Select some of the subproblems."""
        return Subproblems(*(numbers[some] for numbers in self))

    @staticmethod
    def join(parts: Sequence[Subproblems]) -> Subproblems:
        """Concatenate subproblems."""
        return Subproblems(*(torch.cat(numbers) for numbers in zip(*parts, strict=True)))

    def split(self, kinks: Tensor) -> Subproblems:
        """Split each subproblem at one of its kinks (D,): first all with the kink active, then all with it inactive."""
        return Subproblems.join(
            [self._replace(signs=self.signs.scatter(1, kinks.unsqueeze(1), sign)) for sign in (1, -1)]
        )


class _Block(NamedTuple):
    """The kinks of an activation, their pre-activations as linear functions, and rounding errors.

    Attributes:
        columns: indices of its K kinks.
        matrix: coefficients (K, M) of the pre-activations, for the M columns before them.
        slack: error (K,) of the pre-activations.
        relaxations: error (K,) of the relaxations, per coefficient of the kinks' outputs.
        sums: error (M,) of sums of coefficients, per coefficient of the columns before.
    """

    columns: slice
    matrix: Tensor
    slack: Tensor
    relaxations: Tensor
    sums: Tensor


class SplitBackwardResult(NamedTuple):
    """The result of a backward pass.

    Attributes:
        lower: lower bounds (D,).
        inputs: coefficients (D, N) of the input.
        kinks: coefficients (D, V) of the outputs of the kinks.
    """

    lower: Tensor
    inputs: Tensor
    kinks: Tensor


class SplitBounds:
    """Lower bounds, over subproblems of the box of `kinks`, of functions of its input and kinks.

    It stores V (N + V) numbers for N inputs and V kinks.

    Args:
        kinks: the kinks of a network.
        functions: the bounded functions. Each is the maximum of its rows.

    Attributes:
        is_relu: (V,), whether a kink is a ReLU, which can be split.
        solvable: True, because subproblems with few undecided kinks are solved as mixed integer programs.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp import Box
        >>> from advibp.bounds import crown
        >>> from advibp.bounds.linear.beta_crown import SplitBounds
        >>> from advibp.bounds.linear.kinks import Kinks
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2)).double()
        >>> bounds = crown(net, Box(center=torch.zeros(1, 2).double(), radius=1.0))
        >>> kinks = Kinks(bounds)
        >>> rows, _, _ = bounds.margin_rows(torch.tensor([0]))
        >>> split = SplitBounds(kinks, [kinks.linear(bounds.tape.output, rows)])
        >>> lower = split.back(split.whole()).lower  # of z_0 - z_1 over the whole box: the same as CROWN
        >>> torch.allclose(lower, bounds.margins(torch.tensor([0]))[0, 1])
        True
    """

    solvable = True

    def __init__(self, kinks: Kinks, functions: Sequence[Linear]) -> None:
        box = kinks.bounds.box
        self._center, self._radius = box.center.flatten(), box.radius.flatten()
        # Unit roundoff of these bounds; 0 in real arithmetic, which ignores rounding.
        self._unit = 0.0 if kinks.bounds.rounding is None else kinks.bounds.rounding.w
        self._magnitudes = torch.cat(
            [self._center.abs() + self._radius, self._center.new_ones(1)]
        )  # magnitudes of the columns so far
        self._input_radius = self._radius + 2 * len(self._center) * self._unit * self._magnitudes[:-1]
        functions = [replace(f, constants=f.constants - f.slack) for f in functions]
        max_rows = max(len(f.constants) for f in functions)
        self._functions = torch.stack(
            [F.pad(_coefficients(f), (0, 0, 0, max_rows - len(f.constants))) for f in functions]
        )
        rows = torch.tensor([len(f.constants) for f in functions], device=self._center.device)
        self._present = torch.arange(max_rows, device=rows.device) < rows.unsqueeze(1)  # (F, R)
        self._blocks: list[_Block] = []
        lines = [
            self._add(kinks, number, kinks_found)
            for number, kinks_found in kinks.of.items()
            if len(kinks_found.outputs) and not isinstance(kinks_found, Curves)
        ]
        none = (self._center.new_zeros(0),) * 5
        self._negative_slope, self._upper_slope, self._upper_intercept, self._lower, self._upper = (
            torch.cat(numbers) for numbers in zip(none, *lines, strict=True)
        )
        self.is_relu = self._upper.isfinite()

    def _add(self, kinks: Kinks, number: int, kinks_found: UnstableRelus | UndecidedWindows) -> tuple[Tensor, ...]:
        """Add the block of an activation, and return its lower slope if inactive, upper lines and bounds."""
        columns = kinks.columns(number)
        if isinstance(kinks_found, UnstableRelus):
            elements, negative_slope = kinks_found.elements, torch.full_like(kinks_found.lower, kinks_found.slope)
            share = kinks_found.upper / (kinks_found.upper - kinks_found.lower)
            upper_slope, upper_intercept = (
                negative_slope + (1 - negative_slope) * share,
                (negative_slope - 1) * kinks_found.lower * share,
            )
            ends = kinks_found.lower, kinks_found.upper
        else:  # lower line: the element with the largest lower bound; upper line: a constant
            pick = [int(lower.argmax()) for lower in kinks_found.lower]
            elements = torch.stack([e[p] for e, p in zip(kinks_found.elements, pick, strict=True)])
            upper_intercept = torch.stack([upper.max() for upper in kinks_found.upper])
            upper_slope = negative_slope = torch.zeros_like(upper_intercept)
            ends = (torch.full_like(upper_intercept, math.inf),) * 2
        pre_activation = kinks.elements(kinks_found.pre_activation, elements)
        matrix = _coefficients(pre_activation)[:, : len(self._center) + 1 + columns.start]
        if isinstance(kinks_found, UnstableRelus):
            sizes = torch.maximum(kinks_found.lower.abs(), kinks_found.upper.abs())
        else:
            pairs = zip(kinks_found.lower, kinks_found.upper, strict=True)
            sizes = torch.stack([torch.maximum(a.abs(), b.abs()).max() for a, b in pairs])
        # Rounding of the relaxations and of the backward pass through them, as in `relaxation.cover_rounding`.
        upper_intercept = upper_intercept + 32 * self._unit * sizes
        sum_error = 2 * (len(sizes) + matrix.shape[1]) * self._unit
        self._blocks.append(
            _Block(
                columns,
                matrix,
                pre_activation.slack + sum_error * (matrix.abs() @ self._magnitudes),
                64 * self._unit * sizes + sum_error * upper_intercept.abs(),
                sum_error * self._magnitudes,
            )
        )
        self._magnitudes = torch.cat([self._magnitudes, sizes])
        return negative_slope, upper_slope, upper_intercept, *ends

    def single(self) -> SplitBounds:
        """Return a copy in float32, whose bounds do not cover rounding errors.

        It serves to search for parameters and for ReLUs to split. The bounds that count are computed with the same
        parameters by `back` of this object.
        """
        fast = copy.copy(self)
        fast._unit = 0.0
        for name, value in vars(self).items():
            if isinstance(value, Tensor) and value.is_floating_point():
                setattr(fast, name, value.float())
        fast._blocks = [_Block(block.columns, *(part.float() for part in block[1:])) for block in self._blocks]
        return fast

    def whole(self) -> Subproblems:
        """Return the whole box as a subproblem, once for each function."""
        count, kinks = len(self._functions), len(self._negative_slope)
        signs = torch.zeros(count, kinks, dtype=torch.int8, device=self._negative_slope.device)
        slopes = ((self._upper > -self._lower) | ~self.is_relu).to(torch.float32).repeat(count, 1)
        which = torch.arange(count, device=signs.device)
        weights = torch.zeros(self._present.shape, device=signs.device)
        return Subproblems(which, signs, slopes, torch.zeros_like(slopes), weights)

    def split(self, parts: Subproblems, kinks: Tensor) -> Subproblems:
        """Split each subproblem at one of its kinks (D,): first all with the kink active, then all with it inactive."""
        return parts.split(kinks)

    def leaves(self, parts: Subproblems, most: int) -> Tensor:
        """Return which subproblems (D,) have at most so many ReLUs that can be split."""
        return ((parts.signs == 0) & self.is_relu).sum(1) <= most  # pooling windows can't be split

    def depths(self, parts: Subproblems) -> Tensor:
        """Return the number of splits of each subproblem (D,)."""
        return (parts.signs != 0).sum(1)

    def back(self, parts: Subproblems) -> SplitBackwardResult:
        """Run the backward pass with the parameters of the subproblems."""
        return self._back(self._objectives(parts), self._relaxations(parts), parts)

    def lowest(self, inputs: Tensor) -> Tensor:
        """Return the points (D, N) of the box at which linear functions of the input (D, N) are smallest."""
        return self._center - self._radius * inputs.sign()

    def _objectives(self, parts: Subproblems) -> Tensor:
        """Return the weighted mean of the rows, (D, N + 1 + V), for each subproblem."""
        rows = self._functions[parts.which]
        if rows.shape[1] == 1:
            return rows.squeeze(1)
        weights = parts.weights.to(rows).masked_fill(~self._present[parts.which], -math.inf).softmax(1)
        return torch.einsum("dr,drn->dn", weights, rows)

    def _relaxations(self, parts: Subproblems) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the relaxations of the subproblems: the smallest lower slope, the range of the lower slope above it,
        the upper slope and the upper intercept, (D, V) each. Where the sign is known both lines are the ReLU itself.
        """
        known = parts.signs != 0
        exact = torch.where(parts.signs > 0, 1.0, self._negative_slope)
        least_slope, upper_slope = (
            torch.where(known, exact, self._negative_slope),
            torch.where(known, exact, self._upper_slope),
        )
        return least_slope, (1 - self._negative_slope) * ~known, upper_slope, self._upper_intercept * ~known

    def _back(self, a: Tensor, relaxations: tuple[Tensor, ...], parts: Subproblems) -> SplitBackwardResult:
        """Carry objectives (D, N + 1 + V) back through all blocks."""
        constant, at_kinks, rounds = a.new_zeros(len(a)), [], self._unit > 0
        least_slope, slope_range, upper_slope, upper_intercept = relaxations
        slopes, multipliers = least_slope + slope_range * parts.slopes, parts.signs * parts.multipliers
        first = len(self._center) + 1
        lost = constant
        if rounds and self._functions.shape[1] > 1:  # the mean of the rows was rounded
            sizes = (self._functions.abs() @ self._magnitudes).amax(1)[parts.which]
            lost = 4 * self._functions.shape[1] * self._unit * sizes
        for columns, matrix, slack, relaxation_errors, sum_errors in reversed(self._blocks):
            a, after = a[:, : first + columns.start], a[:, first + columns.start :]
            relaxation = LinearRelaxation(
                slopes[:, None, columns], None, upper_slope[:, None, columns], upper_intercept[:, None, columns]
            )
            before, constants = backward_relaxation(relaxation, after.unsqueeze(1))
            coefficients = before.squeeze(1) - multipliers[:, columns]
            if rounds:
                lost = lost + coefficients.abs() @ slack + after.abs() @ relaxation_errors + a.abs() @ sum_errors
            a = torch.addmm(a, coefficients, matrix)
            constant = constant + constants.squeeze(1)
            at_kinks.append(after)
        inputs = a[:, :-1]
        middle, spread = inputs @ self._center, inputs.abs() @ self._input_radius
        lower = constant + a[:, -1] + middle - spread
        if rounds:
            lower = lower - 1.001 * lost - 2.0**-45 * (constant.abs() + a[:, -1].abs() + middle.abs() + spread)
        return SplitBackwardResult(lower, inputs, torch.cat([a[:, :0], *reversed(at_kinks)], 1))

    def losses(self, parts: Subproblems, arrived: Tensor) -> Tensor:
        """Return how much the relaxation of each kink can lower the bounds.

        Args:
            parts: the subproblems.
            arrived: coefficients (D, V) of the outputs of the kinks.

        Returns:
            (D, V); -1 for kinks that cannot be split or are split already.
        """
        slopes = parts.slopes.to(arrived)
        below = torch.maximum((1 - slopes) * self._upper, -slopes * self._lower) * (1 - self._negative_slope)
        losses = torch.where(arrived < 0, -arrived * self._upper_intercept, arrived * below)
        return losses.masked_fill(~self.is_relu | (parts.signs != 0), -1.0)

    def ascend(
        self, parts: Subproblems, *, steps: int, enough: float, deadline: float = math.inf
    ) -> tuple[Tensor, Subproblems]:
        """Optimize the bounds over slopes, multipliers and weights.

        Args:
            parts: the subproblems.
            steps: maximal number of steps.
            enough: stop when all bounds are above this number.
            deadline: a time of `time.monotonic`. After it only the first evaluation is made.

        Returns:
            The bounds (D,), and the subproblems with the best parameters.
        """
        relaxations, dtype, fixed = self._relaxations(parts), self._center.dtype, self._objectives(parts)
        known, unit = parts.signs != 0, self._units(self._back(fixed, relaxations, parts).kinks.detach())
        variables = [
            Variable(parts.slopes.to(dtype), self.is_relu & ~known, (0.0, 1.0)),
            Variable(parts.multipliers / unit, known, (0.0, math.inf)),
        ]
        if parts.weights.shape[1] > 1:
            variables.append(Variable(parts.weights.to(dtype), self._present[parts.which], (-math.inf, math.inf)))

        def with_values(values: list[Tensor]) -> Subproblems:
            slopes, multipliers, *weights = values
            return Subproblems(parts.which, parts.signs, slopes, multipliers * unit, *(weights or [parts.weights]))

        def lower(values: list[Tensor]) -> Tensor:
            changed = with_values(values)
            return self._back(self._objectives(changed) if len(values) > 2 else fixed, relaxations, changed).lower

        best = ascend(lower, variables, steps=steps, lr=0.25, enough=enough, deadline=deadline)
        return best.bounds, Subproblems(
            *(new.to(old) for new, old in zip(with_values(best.values), parts, strict=True))
        )

    def _units(self, arrived: Tensor) -> Tensor:
        """Return the units of the multipliers: a share of the mean coefficient at the same activation.

        With them one step size suits slopes and multipliers, for networks of any scale.
        """
        means = [arrived[:, columns].abs().mean(1, keepdim=True).expand(-1, len(m)) for columns, m, *_ in self._blocks]
        return 0.2 * torch.cat([arrived[:, :0], *means], 1).clamp(min=1e-6)


def _coefficients(functions: Linear) -> Tensor:
    """Return coefficients (R, N + 1 + V) of the input, of 1 and of the kinks."""
    return torch.cat([functions.inputs, functions.constants.unsqueeze(1), functions.kinks], 1)
