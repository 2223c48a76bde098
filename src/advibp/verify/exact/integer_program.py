"""A network over a box as a mixed integer linear program, solved by HiGHS.

Columns are the input x, and for each kink (an unstable ReLU or pooling window) its output v, its pre-activations z and
binary variables a:

    z = linear in x and earlier v                      l <= z <= u, by the tightest known bounds
    v >= z,  v >= s z                                  a ReLU is max(z, s z), s the slope below 0
    v <= z - (1 - s) l (1 - a)                         a = 1: active
    v <= s z + (1 - s) u a                             a = 0: inactive
    v >= z_i,  v <= z_i + (u - l_i)(1 - a_i),  sum a_i = 1        a pooling window

With a in [0, 1] instead of {0, 1}, this is the triangle relaxation of the ReLU, a linear program.

The outputs of the network differ from the linear functions by rounding errors. The rows of z are relaxed by the slack
of their functions, and the slack of the objective is subtracted from the bound.

The lower bound of a linear program is recomputed from its dual values, by weak duality and with a bound of the rounding
errors of this computation. It is valid whatever the tolerances of the solver. The bound of a mixed integer program is
that of HiGHS, the minimum over the linear programs of its nodes. These are solved up to tolerances: reduced costs may
have the wrong sign by at most _TOLERANCE. This changes the bound by at most _TOLERANCE times the widths of all columns
and rows, which is subtracted (`_doubt`). Rows and bounds are relaxed by ten times the tolerance, so that no point of
the network is cut off. Such a proof assumes that HiGHS respects its tolerances.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import highspy
import numpy as np
from torch import Tensor

from advibp.bounds.linear.kinks import Kinks, Linear, UnstableRelus

#: Feasibility tolerance. The default of 1e-6 times a large coefficient could reach the threshold of a proof. With 1e-9
#: HiGHS fails on some programs.
_TOLERANCE = 1e-7
#: Rows and bounds are relaxed by this share, so that the solver's tolerances do not cut off points of the network.
_SLACK = 10 * _TOLERANCE
_LARGE = 1e12
_SMALL = 1e-11
_ERROR = highspy.HighsStatus.kError
#: Model statuses after which the dual bound of a mixed integer program is valid. (After kSolveError it can be wrong.)
_BOUNDED = frozenset(
    getattr(highspy.HighsModelStatus, name) for name in ("kOptimal", "kInterrupt", "kTimeLimit", "kInfeasible")
)


class Split(NamedTuple):
    """Fixes the sign of one pre-activation of a ReLU."""

    entering: int
    element: int
    positive: bool


@dataclass(frozen=True)
class Solved:
    """Result of a minimization: a lower bound (inf if infeasible), and a point `x` (N,) near the minimum."""

    lower: float
    x: np.ndarray[Any, Any] | None
    finished: bool  # False if time ran out
    claimed: float = math.nan  # the solver's bound, before the tolerances are subtracted


class Program:
    """A program for the values of a node, in terms of the input and the kinks before it."""

    def __init__(
        self,
        kinks: Kinks,
        index: int,
        *,
        integer: bool,
        splits: Sequence[Split] = (),
        largest_of: Linear | None = None,
    ) -> None:
        """
        Args:
            kinks: The kinks of the network.
            index: The node.
            integer: Whether a is in {0, 1}; otherwise in [0, 1].
            splits: Fixed signs of pre-activations.
            largest_of: Linear functions, the largest of which is minimized if `minimize` is called without a row.
        """
        self._kinks, self._integer, self._whole = kinks, integer, not splits
        box = kinks.bounds.box
        self._lower, self._upper = [_numbers(box.lower)], [_numbers(box.upper)]
        self._inputs = box.lower.numel()
        self._choices: list[int] = []
        self._entries: list[tuple[np.ndarray[Any, Any], ...]] = []  # rows, columns, values
        self._row_lower: list[np.ndarray[Any, Any]] = []
        self._row_upper: list[np.ndarray[Any, Any]] = []
        self._rows = 0
        self._columns = self._inputs
        before = kinks.before(index)
        self._add_columns(np.zeros(kinks.count), np.zeros(kinks.count))  # the outputs; those of later kinks stay 0
        self._entering: dict[tuple[int, int], int] = {}  # node and element -> its column
        for number, found in before.items():
            first = self._inputs + kinks.columns(number).start
            if isinstance(found, UnstableRelus):
                self._add_relus(found, first)
            else:
                self._add_choices(found, first)
        for split in splits:
            self._add_split(split)
        self._largest = None if largest_of is None else self._add_largest(largest_of)
        self._pass()

    # ------------------------------------------------------------------------------------------ building

    def _add_columns(self, lower: np.ndarray[Any, Any], upper: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self._lower.append(lower)
        self._upper.append(upper)
        self._columns += len(lower)
        return np.arange(self._columns - len(lower), self._columns)

    def _add_rows(self, entries: Sequence[tuple[Any, Any, Any]], lower: Any, upper: Any, count: int) -> None:
        """Rows lower <= sum values * columns <= upper; entries are (rows from 0, columns, values)."""
        for rows, columns, values in entries:
            shape = np.broadcast_shapes(np.shape(rows), np.shape(columns), np.shape(values))
            broadcast = [np.broadcast_to(part, shape).ravel() for part in (rows, columns, values)]
            self._entries.append((broadcast[0] + self._rows, broadcast[1], broadcast[2]))
        self._row_lower.append(np.broadcast_to(lower, (count,)).astype(float))
        self._row_upper.append(np.broadcast_to(upper, (count,)).astype(float))
        self._rows += count

    def _add_entering(self, node: int, elements: Tensor, lower: Any, upper: Any) -> np.ndarray[Any, Any]:
        """Add columns for pre-activations, equal to their linear functions."""
        linear = self._kinks.elements(node, elements)
        slack = _SLACK * (1 + np.maximum(np.abs(lower), np.abs(upper)))
        z = self._add_columns(lower - slack, upper + slack)
        rows, columns, values = _sparse(linear)
        every = np.arange(len(z))
        constants, off = _numbers(linear.constants), _numbers(linear.slack) + slack
        self._add_rows([(every, z, 1.0), (rows, columns, -values)], constants - off, constants + off, len(z))
        self._entering |= {(node, element): int(column) for element, column in zip(elements.tolist(), z, strict=True)}
        return z

    def _add_relus(self, relus: UnstableRelus, first: int) -> None:
        count, s = len(relus.elements), relus.slope
        if count == 0:
            return
        lower, upper = _numbers(relus.lower), _numbers(relus.upper)
        slack = _SLACK * (1 + np.maximum(-lower, upper))
        lower, upper = lower - slack, upper + slack
        z = self._add_entering(relus.pre_activation, relus.elements, lower, upper)
        v, a = np.arange(first, first + count), self._add_columns(np.zeros(count), np.ones(count))
        self._choices += a.tolist()
        self._bound(v, s * lower, upper)
        every = np.arange(count)
        self._add_rows([(every, v, 1.0), (every, z, -1.0)], -slack, np.inf, count)
        if s > 0:
            self._add_rows([(every, v, 1.0), (every, z, -s)], -slack, np.inf, count)
        on = -(1 - s) * lower
        self._add_rows([(every, v, 1.0), (every, z, -1.0), (every, a, on)], -np.inf, on + slack, count)
        off = (every, a, -(1 - s) * upper)
        self._add_rows([(every, v, 1.0), *([(every, z, -s)] if s > 0 else []), off], -np.inf, slack, count)

    def _add_choices(self, windows: Any, first: int) -> None:
        for k, elements in enumerate(windows.elements):
            lower, upper = _numbers(windows.lower[k]), _numbers(windows.upper[k])
            new = [i for i, e in enumerate(elements.tolist()) if (windows.pre_activation, e) not in self._entering]
            if new:  # windows overlap
                self._add_entering(windows.pre_activation, elements[new], lower[new], upper[new])
            z = np.array([self._entering[windows.pre_activation, e] for e in elements.tolist()])
            count, v = len(z), first + k
            slack = _SLACK * (1 + max(abs(lower).max(), abs(upper).max()))
            highest, lower = upper.max() + slack, lower - slack
            self._bound(np.array([v]), lower.max(), highest)
            every, a = np.arange(count), self._add_columns(np.zeros(count), np.ones(count))
            self._choices += a.tolist()
            self._add_rows([(every, v, 1.0), (every, z, -1.0)], -slack, np.inf, count)
            room = highest - lower
            self._add_rows([(every, v, 1.0), (every, z, -1.0), (every, a, room)], -np.inf, room + slack, count)
            self._add_rows([(0, a, 1.0)], 1.0, 1.0, 1)

    def _add_split(self, split: Split) -> None:
        lower, upper = (
            float(end.flatten()[split.element]) for end in self._kinks.bounds.intermediate_bounds[split.entering]
        )
        element = self._kinks.bounds.box.center.new_tensor([split.element]).long()
        ends = (0.0, max(upper, 0.0)) if split.positive else (min(lower, 0.0), 0.0)
        self._add_entering(split.entering, element, np.array(ends[:1]), np.array(ends[1:]))

    def _add_largest(self, functions: Linear) -> int:
        """Add a column t that is at least each of the functions, bounded by interval arithmetic."""
        rows, columns, values = _sparse(functions)
        count, constants = len(functions.constants), _numbers(functions.constants - functions.slack)
        low, high = np.concatenate(self._lower), np.concatenate(self._upper)
        ends = [
            np.bincount(rows, _products(values * sign, low[columns], high[columns]), count) * sign + constants
            for sign in (1.0, -1.0)
        ]
        low, high = ends[0].max(keepdims=True), ends[1].max(keepdims=True)
        wide = _SLACK * (1 + np.maximum(abs(low), abs(high)))
        t = int(self._add_columns(low - wide, high + wide)[0])
        every = np.arange(count)
        self._add_rows([(every, t, 1.0), (rows, columns, -values)], constants, np.inf, count)
        return t

    def _bound(self, columns: np.ndarray[Any, Any], lower: Any, upper: Any) -> None:
        """Set bounds of outputs of kinks, whose columns exist already."""
        self._lower[1][columns - self._inputs] = lower
        self._upper[1][columns - self._inputs] = upper

    # ------------------------------------------------------------------------------------------ solving

    def _pass(self) -> None:
        self._low, self._high = np.concatenate(self._lower), np.concatenate(self._upper)
        self._row_low = np.concatenate(self._row_lower) if self._rows else np.zeros(0)
        self._row_high = np.concatenate(self._row_upper) if self._rows else np.zeros(0)
        parts = (
            [np.concatenate(part) for part in zip(*self._entries, strict=True)] if self._entries else [np.zeros(0)] * 3
        )
        order = np.argsort(parts[0], kind="stable")
        self._at, self._column, self._value = parts[0][order].astype(int), parts[1][order].astype(int), parts[2][order]
        self._drop_small()
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = self._columns, self._rows
        lp.col_cost_, lp.col_lower_, lp.col_upper_ = np.zeros(self._columns), self._low, self._high
        lp.row_lower_, lp.row_upper_ = self._row_low, self._row_high
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = np.searchsorted(self._at, np.arange(self._rows + 1)).astype(np.int32)
        lp.a_matrix_.index_, lp.a_matrix_.value_ = self._column.astype(np.int32), self._value
        if self._integer and self._choices:
            kinds = [highspy.HighsVarType.kContinuous] * self._columns
            for choice in self._choices:
                kinds[choice] = highspy.HighsVarType.kInteger
            lp.integrality_ = kinds
        self._highs = highspy.Highs()
        options: dict[str, Any] = {
            "output_flag": False,
            "threads": 1,  # workers solve several images at once
            "primal_feasibility_tolerance": _TOLERANCE,
            "dual_feasibility_tolerance": _TOLERANCE,
            "mip_feasibility_tolerance": _TOLERANCE,
            "mip_rel_gap": 0.0,
            "small_matrix_value": _SMALL / 10,  # HiGHS drops smaller coefficients
            # These ignore the time limit (50 seconds with a limit of 3), and help little here.
            "presolve_rule_off": 1 << 14,  # sparsify
            "mip_heuristic_run_feasibility_jump": False,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        numbers = (self._low, self._high, self._value)
        self._usable = all(_moderate(part) for part in numbers) and self._highs.passModel(lp) != _ERROR

    def _drop_small(self) -> None:
        """Remove coefficients that HiGHS would drop, and relax their rows by their largest contribution."""
        small = np.abs(self._value) < _SMALL
        if not small.any():
            return
        lost = np.bincount(
            self._at[small], (np.abs(self._value) * self._largest_of_columns[self._column])[small], self._rows
        )
        self._row_low, self._row_high = self._row_low - lost * (1 + 1e-9), self._row_high + lost * (1 + 1e-9)
        self._at, self._column, self._value = self._at[~small], self._column[~small], self._value[~small]

    @property
    def has_choices(self) -> bool:
        return self._integer and bool(self._choices)

    def minimize(
        self,
        row: Linear | None = None,
        *,
        seconds: float = math.inf,
        above: float = math.inf,
        below: float = -math.inf,
    ) -> Solved:
        """Minimize a linear function of input and kinks (one row), or `largest_of`.

        It may stop when the bound is above `above`, or when a point with a value below `below` is found.
        """
        cost, constant = np.zeros(self._columns), 0.0
        if row is None:
            assert self._largest is not None
            cost[self._largest] = 1.0
        else:
            _, columns, values = _sparse(row)
            cost[columns], constant = values, float(row.constants[0] - row.slack[0])
        if not self._usable or not _moderate(cost):
            return Solved(-math.inf, None, True)
        if seconds <= 0:
            return Solved(self._weak(cost, np.zeros(self._rows)) + constant, None, False)
        highs = self._highs
        highs.changeColsCost(self._columns, np.arange(self._columns, dtype=np.int32), cost)
        # For a linear program, HiGHS counts the time of all earlier runs too.
        before = 0.0 if self.has_choices else highs.getRunTime()
        highs.setOptionValue("time_limit", min(before + seconds, 1e20))
        highs.clearCallbacks()
        doubt = self._doubt(cost)
        if self.has_choices:

            def stop(event: Any) -> None:
                out = event.data_out
                # (set each time, because the flag keeps its value between runs)
                event.interrupt(
                    out.mip_dual_bound + constant - doubt > above or out.mip_primal_bound + constant < below
                )

            highs.cbMipInterrupt.subscribe(stop)
        highs.run()
        status, info = highs.getModelStatus(), highs.getInfo()
        solution = highs.getSolution()
        x = np.array(solution.col_value)[: self._inputs] if solution.value_valid else None
        finished = status != highspy.HighsModelStatus.kTimeLimit
        if status == highspy.HighsModelStatus.kInfeasible:
            # Without splits the network itself is a feasible point, so the solver is wrong.
            empty = not self._whole and (self.has_choices or self._is_empty())
            return Solved(math.inf if empty else -math.inf, None, True)
        if self.has_choices:
            # After an error, the reported bound can be above the value of a point.
            claimed = info.mip_dual_bound + constant if status in _BOUNDED else -math.inf
            return Solved(claimed - doubt, x, finished, claimed)
        dual = np.array(solution.row_dual) if solution.dual_valid else np.zeros(self._rows)
        lower = self._weak(cost, dual) + constant
        return Solved(lower, x, finished, lower)

    def _weak(self, cost: np.ndarray[Any, Any], dual: np.ndarray[Any, Any]) -> float:
        """Lower bound of cost . columns by weak duality. It is valid for any `dual` values of the rows."""
        dual = np.where(((dual > 0) & np.isinf(self._row_low)) | ((dual < 0) & np.isinf(self._row_high)), 0.0, dual)
        products = self._value * dual[self._at]
        rest = cost - np.bincount(self._column, products, self._columns)
        of_rows = _products(dual, self._row_low, self._row_high)
        bound = float(of_rows.sum() + _products(rest, self._low, self._high).sum())
        # Upper bound of the number of roundings of each term.
        roundings = 2.0**-52 * (len(products) + self._rows + self._columns + 16)
        sizes = np.abs(cost) + np.bincount(self._column, np.abs(products), self._columns)
        return bound - roundings * float(np.abs(of_rows).sum() + (sizes * self._largest_of_columns).sum())

    @cached_property
    def _largest_of_columns(self) -> np.ndarray[Any, Any]:
        return np.maximum(np.abs(self._low), np.abs(self._high))

    def _doubt(self, cost: np.ndarray[Any, Any]) -> float:
        """Upper bound of what the solver's tolerances add to the bound of a mixed integer program."""
        widths = self._high - self._low
        of_rows = np.bincount(self._at, np.abs(self._value) * widths[self._column], self._rows) if self._rows else 0.0
        rounding = 2.0**-40 * float((np.abs(cost) * self._largest_of_columns).sum())
        return _TOLERANCE * float(widths.sum() + np.sum(of_rows)) + rounding

    def _is_empty(self) -> bool:
        """Whether a dual ray proves that the program is infeasible."""
        self._highs.setOptionValue("presolve", "off")  # presolve gives no ray
        self._highs.run()
        self._highs.setOptionValue("presolve", "choose")
        found = self._highs.getDualRay()  # type: ignore[attr-defined]
        ray = np.array(found[-1]) if len(found) > 2 and found[1] else np.zeros(self._rows)
        nothing = np.zeros(self._columns)
        return max(self._weak(nothing, ray), self._weak(nothing, -ray)) > 0


def _moderate(numbers: np.ndarray[Any, Any]) -> bool:
    """Whether HiGHS can use these numbers: none is NaN or near 1e20, which it treats as infinite."""
    return bool((np.abs(numbers) < _LARGE).all())


def _products(factors: np.ndarray[Any, Any], low: np.ndarray[Any, Any], high: np.ndarray[Any, Any]) -> Any:
    """The minimum of each factor times a number in [low, high]; 0 times infinity is 0."""
    return factors * np.where(factors > 0, low, np.where(factors < 0, high, 0.0))


def _numbers(tensor: Tensor) -> np.ndarray[Any, Any]:
    return tensor.detach().double().flatten().cpu().numpy()


def _sparse(linear: Linear) -> tuple[Any, Any, Any]:
    """Rows, columns and values of the nonzero coefficients."""
    dense = np.concatenate([linear.inputs.double().cpu().numpy(), linear.kinks.double().cpu().numpy()], axis=1)
    rows, columns = np.nonzero(dense)
    return rows, columns, dense[rows, columns]
