"""Complete verification by branch and bound: subproblems fix ReLUs as active or inactive until all are decided.

In networks with sigmoids or tanhs they confine pre-activations to smaller and smaller intervals. Such a search ends
only if the margin is not too close to 0, or if the pool is full.

A subproblem is closed when its bound proves that the conjunction can't hold. The open subproblems of all conjunctions
are in one pool. Each round takes those with the lowest bounds, searches for a counterexample where their linear bounds
are lowest, and splits each in two at a neuron. Subproblems with few unstable ReLUs are solved exactly, so that the
search ends. If the pool of a ReLU network is full, the deepest subproblems are solved exactly, so that it does not
grow.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from advibp.bounds.linear.beta_crown import SplitBackwardResult, SplitBounds
from advibp.bounds.linear.interval_splits import IntervalBounds
from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.linear.reduced import Reduced
from advibp.verify.exact.branching import to_split
from advibp.verify.exact.falsify import downhill
from advibp.verify.exact.leaves import Leaves
from advibp.verify.exact.pool import Pool
from advibp.verify.exact.question import PROVED, Answer, Question
from advibp.verify.exact.trace import Trace


def branch(
    question: Question,
    *,
    seconds: float = math.inf,
    batch: int = 64,
    most_open: int = 10_000,
    steps: int = 20,
    leaf: int = 10,
    trace: Trace | None = None,
) -> Answer:
    """Decide a question by branch and bound.

    Args:
        question: The network, the box and the unsafe conjunctions.
        seconds: Time limit.
        batch: Number of subproblems that are split together.
        most_open: Largest size of the pool, unless there are more conjunctions. A subproblem takes 9 bytes for each
            unstable ReLU, or 28 bytes for each neuron of a network with curves.
        steps: Gradient steps to the best bound of a subproblem.
        leaf: A subproblem with at most this many unstable ReLUs is solved exactly.
        trace: Records the progress.
    """
    deadline = time.monotonic() + seconds
    with torch.no_grad():
        bounds = question.refined()
        if bounds is None:
            return Answer(-math.inf)
        if not all(margin > PROVED for margin in question.refined_margins):
            question.tighten(until=time.monotonic() + ROOT_SHARE * (deadline - time.monotonic()))
        kinks = Kinks(bounds, curves=True)
        margins = list(question.refined_margins)
        left = [k for k, margin in enumerate(margins) if not margin > PROVED]
        if any(len(question.unsafe[k][0]) == 0 for k in left):  # an empty conjunction always holds
            return Answer(-math.inf, question.broken_by(question.lower))
        if not left or kinks.too_many:
            return Answer(min(margins, default=math.inf))
        search = _Search(question, kinks, left, _Effort(batch, most_open, steps, leaf), deadline, trace or Trace())
        return search.answer(margins)


#: Largest number of gradient steps in networks with curves, whose splits are many and gain little each.
_STEPS_OF_CURVES = 10
#: Share of the time in which intermediate bounds are optimized before the search.
ROOT_SHARE = 0.15


@dataclass(frozen=True)
class _Effort:
    """Options of `branch`."""

    batch: int
    most_open: int
    steps: int
    leaf: int


class _Search:
    def __init__(
        self, question: Question, kinks: Kinks, left: list[int], effort: _Effort, deadline: float, trace: Trace
    ) -> None:
        """`left`: numbers of the undecided conjunctions."""
        self._question, self._left, self._effort, self._deadline = question, left, effort, deadline
        output = kinks.bounds.tape.output
        functions = [kinks.linear(output, *question.conjunction(k)) for k in left]
        if kinks.has_curves:
            self._effort = replace(effort, steps=min(effort.steps, _STEPS_OF_CURVES))
        bounds = IntervalBounds(Reduced(kinks), functions) if kinks.has_curves else SplitBounds(kinks, functions)
        self._bounds: Any = bounds
        self._fast: Any = bounds.single()
        self._leaves = Leaves(question, kinks)
        self._settled = math.inf  # lowest bound of the closed subproblems
        self._broken: Tensor | None = None
        self._late = self._full = (
            False  # whether time is over; whether the pool is full of subproblems without a solver
        )
        self._trace = trace

    def answer(self, margins: list[float]) -> Answer:
        """Run the search. `margins`: bounds of all conjunctions by linear bounds."""
        self._settled = min((margin for margin in margins if margin > PROVED), default=math.inf)
        whole = self._bounds.whole()
        known = torch.tensor([margins[k] for k in self._left], dtype=torch.float64, device=whole.which.device)
        # How much rounding errors lower the bounds: a search in float32 needs to be above PROVED by as much.
        errors = self._fast.back(whole).lower.double() - self._bounds.back(whole).lower
        self._enough = PROVED + 2 * max(0.0, float(errors.max()))
        pool = self._bound(Pool(whole, known))
        while True:
            lowest = pool.lowest(self._settled)
            self._trace.note("neuron-split", lowest, len(pool))
            if self._broken is not None:
                return Answer(lowest, self._broken)
            if len(pool) == 0 or self._full:
                return Answer(lowest)
            if self._late or time.monotonic() > self._deadline:
                return Answer(lowest, in_time=False)
            pool = self._round(pool)

    def _round(self, pool: Pool[Any]) -> Pool[Any]:
        """One round of the search; the new pool has at most `most_open` subproblems."""
        room = self._effort.most_open - len(pool)
        order = pool.bounds if room >= self._effort.batch else -self._bounds.depths(pool.parts)
        count = max(1, min(self._effort.batch, room, len(order)))
        some = torch.zeros_like(order, dtype=torch.bool)
        some[order.topk(count, largest=False).indices] = True
        chosen, others = pool.partition(some)
        if room <= 0 and not self._bounds.solvable:
            self._full = True
            return pool
        if room <= 0:
            return others.join(self._solve(chosen))
        back = self._fast.back(chosen.parts)
        self._broken = self._find_counterexample(chosen.parts, back)
        if self._broken is not None:
            return pool
        halves = self._fast.split(chosen.parts, to_split(self._fast, chosen.parts, back))
        return others.join(self._bound(Pool(halves, chosen.bounds.repeat(2))))

    def _find_counterexample(self, parts: Any, back: SplitBackwardResult) -> Tensor | None:
        """Look for a counterexample where the linear bounds are lowest, and by descent from the lowest points."""
        points = self._fast.lowest(back.inputs).double().view(-1, *self._question.lower.shape[1:])
        broken = self._question.broken_by(points)
        if broken is not None:
            return broken
        some = back.lower.topk(min(8, len(points)), largest=False).indices
        return downhill(self._question, points[some], torch.tensor(self._left)[parts.which[some].cpu()])

    def _bound(self, pool: Pool[Any]) -> Pool[Any]:
        """Bound the subproblems and return the undecided ones. `pool.bounds` are the parents' bounds.

        Parameters are searched in float32. The bounds are then computed with them in the arithmetic of the certificate.
        """
        self._trace.count(len(pool))
        _, parts = self._fast.ascend(pool.parts, steps=self._effort.steps, enough=self._enough, deadline=self._deadline)
        bounds = torch.fmax(self._bounds.back(parts).lower, pool.bounds)
        closed, still = Pool(parts, bounds).partition(bounds > PROVED)
        self._settled = min([self._settled, *closed.bounds.tolist()])
        leaves, others = still.partition(self._bounds.leaves(still.parts, self._effort.leaf))
        return others.join(self._solve(leaves))

    def _solve(self, pool: Pool[Any]) -> Pool[Any]:
        """Solve subproblems exactly, and return those that are undecided because time ran out.

        If rounding errors prevent both a proof and a counterexample, the subproblem is closed with its best bound.
        """
        if not self._bounds.solvable:  # the intervals are too narrow to be split
            self._settled = min([self._settled, *pool.bounds.tolist()])
            return pool.take(slice(0))
        still = torch.ones_like(pool.bounds, dtype=torch.bool)
        for index, (k, bound) in enumerate(zip(pool.parts.which.tolist(), pool.bounds.tolist(), strict=True)):
            if self._late or self._broken is not None:
                break
            solved = self._leaves.solve(self._left[k], pool.parts.signs[index], self._deadline)
            self._broken, self._late = solved.counterexample, not solved.in_time
            if solved.in_time:
                still[index] = False
                self._settled = min(self._settled, max(bound, solved.margin))
        return pool.take(still)
