"""Exact answers by branch and bound: the box falls into parts, in which ReLUs are on or off, until all are bounded.

A part is closed when the bound of a conjunction's margin proves that it can't be reached there. The open parts of all
conjunctions are in one pool. Round by round those with the lowest bounds are searched for a counterexample, where the
linear bound is lowest, and split in two at a ReLU. Parts with few kinks left are solved exactly, so that the search
comes to an end; so are the deepest when the pool is full, so that it does not grow.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.bounds.linear.beta_crown import Back, Parts, SplitBounds
from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact.branching import to_split
from advibp.verify.exact.falsify import downhill
from advibp.verify.exact.leaves import Leaves
from advibp.verify.exact.question import PROVED, Answer, Question


def branch(
    question: Question,
    *,
    seconds: float = math.inf,
    batch: int = 64,
    most_open: int = 10_000,
    steps: int = 20,
    leaf: int = 10,
) -> Answer:
    """Whether the question can be answered with yes or no in so many seconds.

    batch: how many parts are split together. most_open: how many are in memory, unless there are more conjunctions; a
    part takes 9 bytes for each kink of the network over the whole box. steps: of the ascent to the best bound of a
    part. leaf: a part with so many ReLUs left to split is solved exactly.
    """
    deadline = time.monotonic() + seconds
    with torch.no_grad():
        bounds = question.refined()
        if bounds is None:
            return Answer(-math.inf)
        kinks = Kinks(bounds)
        margins = [question.linear_margin(k) for k in range(len(question.unsafe))]
        left = [k for k, margin in enumerate(margins) if not margin > PROVED]
        if any(len(question.unsafe[k][0]) == 0 for k in left):  # it holds everywhere
            return Answer(-math.inf, question.broken_by(question.lower))
        if not left or kinks.too_many:
            return Answer(min(margins, default=math.inf))
        search = _Search(question, kinks, left, _Effort(batch, most_open, steps, leaf), deadline)
        return search.answer(margins)


@dataclass(frozen=True)
class _Effort:
    batch: int
    most_open: int
    steps: int
    leaf: int


class _Pool(NamedTuple):
    """Open parts, and bounds (D,) of their margins."""

    parts: Parts
    bounds: Tensor

    def take(self, some: Tensor) -> _Pool:
        return _Pool(self.parts.take(some), self.bounds[some])

    def join(self, other: _Pool) -> _Pool:
        return _Pool(Parts.join([self.parts, other.parts]), torch.cat([self.bounds, other.bounds]))

    def apart(self, mask: Tensor) -> tuple[_Pool, _Pool]:
        """Those in the mask (D,), and the others."""
        return self.take(mask), self.take(~mask)


class _Search:
    def __init__(self, question: Question, kinks: Kinks, left: list[int], effort: _Effort, deadline: float) -> None:
        """left: the conjunctions that are open."""
        self._question, self._left, self._effort, self._deadline = question, left, effort, deadline
        output = kinks.bounds.tape.output
        self._bounds = SplitBounds(kinks, [kinks.linear(output, *question.conjunction(k)) for k in left])
        self._leaves = Leaves(question, kinks)
        self._settled = math.inf  # the lowest bound of what is in the pool no more
        self._broken: Tensor | None = None
        self._late = False

    def answer(self, margins: list[float]) -> Answer:
        """margins: what linear bounds say of all conjunctions."""
        self._settled = min((margin for margin in margins if margin > PROVED), default=math.inf)
        whole = self._bounds.whole()
        known = torch.tensor([margins[k] for k in self._left], dtype=torch.float64, device=whole.which.device)
        pool = self._bounded(_Pool(whole, known))
        while True:
            lowest = min([self._settled, *pool.bounds.tolist()])
            if self._broken is not None:
                return Answer(lowest, self._broken)
            if len(pool.bounds) == 0:
                return Answer(lowest)
            if self._late or time.monotonic() > self._deadline:
                return Answer(lowest, in_time=False)
            pool = self._round(pool)

    def _round(self, pool: _Pool) -> _Pool:
        """One step of the search, from a pool of at most `most_open` parts to another."""
        room = self._effort.most_open - len(pool.bounds)
        order = pool.bounds if room >= self._effort.batch else -(pool.parts.signs != 0).sum(1)
        count = max(1, min(self._effort.batch, room, len(order)))
        some = torch.zeros_like(order, dtype=torch.bool)
        some[order.topk(count, largest=False).indices] = True
        chosen, others = pool.apart(some)
        if room <= 0:
            return others.join(self._solved(chosen))
        back = self._bounds.back(chosen.parts)
        self._broken = self._tried(chosen.parts, back)
        if self._broken is not None:
            return pool
        halves = chosen.parts.split(to_split(self._bounds, chosen.parts, back))
        return others.join(self._bounded(_Pool(halves, chosen.bounds.repeat(2))))

    def _tried(self, parts: Parts, back: Back) -> Tensor | None:
        """A counterexample among the points where the linear bounds are lowest, or downhill from the lowest of them."""
        points = self._bounds.lowest(back.inputs).view(-1, *self._question.lower.shape[1:])
        broken = self._question.broken_by(points)
        if broken is not None:
            return broken
        some = back.lower.topk(min(8, len(points)), largest=False).indices
        return downhill(self._question, points[some], torch.tensor(self._left)[parts.which[some].cpu()])

    def _bounded(self, pool: _Pool) -> _Pool:
        """What stays open of parts; the bounds they come with are those of what they are parts of."""
        found, parts = self._bounds.ascend(pool.parts, steps=self._effort.steps, enough=PROVED, deadline=self._deadline)
        bounds = torch.fmax(found, pool.bounds)
        closed, still = _Pool(parts, bounds).apart(bounds > PROVED)
        self._settled = min([self._settled, *closed.bounds.tolist()])
        undecided = still.parts.signs == 0
        leaf = (undecided & self._bounds.bends).sum(1) <= self._effort.leaf  # windows can't be split
        leaves, others = still.apart(leaf)
        return others.join(self._solved(leaves))

    def _solved(self, pool: _Pool) -> _Pool:
        """What stays open, for want of time, of parts that are solved exactly.

        Where rounding lets a solver neither prove nor find a counterexample, the part is settled by what is known.
        """
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
