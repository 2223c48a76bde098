"""Exact answers by branch and bound: the box falls into parts, in which ReLUs are on or off, until all are bounded.

A part is closed when the bound of its conjunction's margin proves that it can't be reached there. Open parts of all
conjunctions are in one pool. Round by round those with the lowest bounds are tried, at the point where the linear bound
is lowest, and split in two at a ReLU. Parts with few kinks left are solved exactly, so the search comes to an end.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from advibp.bounds.kinks import Kinks
from advibp.bounds.split import Back, Parts, SplitBounds
from advibp.verify.branching import to_split
from advibp.verify.downhill import downhill
from advibp.verify.leaves import Leaves
from advibp.verify.question import PROVED, Answer, Question


@dataclass(frozen=True)
class Effort:
    """How parts are bounded, and how many at once. A part takes 9 bytes for each kink of the network over the box."""

    batch: int = 64  # parts that are split together
    most_open: int = 10_000  # parts in memory, besides one for each conjunction and those of the batch at hand
    steps: int = 20  # of the ascent to a part's best bound
    lr: float = 0.25
    candidates: int = 8  # ReLUs that are tried for a split
    downhill: int = 8  # steps on the network from the points where bounds are lowest
    leaf: int = 10  # so many kinks left are for the exact solver


def branch(question: Question, *, seconds: float = math.inf, effort: Effort = Effort()) -> Answer:
    """Whether the question can be answered with yes or no in so many seconds."""
    deadline = time.monotonic() + seconds
    with torch.no_grad():
        bounds = question.bounds.refine()
        kinks = Kinks(bounds)
        margins = [question.linear_margin(k) for k in range(len(question.unsafe))]
        left = [k for k, margin in enumerate(margins) if not margin > PROVED]
        if any(len(question.conjunction(k)[0]) == 0 for k in left):  # it holds everywhere
            return Answer(-math.inf, question.broken_by(question.lower))
        search = _Search(question, kinks, left, effort, deadline)
        search.settled = min((margin for margin in margins if margin > PROVED), default=math.inf)
        return search.answer([margins[k] for k in left])


class _Pool(NamedTuple):
    """Open parts, and the bounds (D,) of their margins."""

    parts: Parts
    bounds: Tensor

    def take(self, some: Tensor) -> _Pool:
        return _Pool(self.parts.take(some), self.bounds[some])

    def join(self, other: _Pool) -> _Pool:
        return _Pool(Parts.join([self.parts, other.parts]), torch.cat([self.bounds, other.bounds]))


class _Search:
    def __init__(self, question: Question, kinks: Kinks, left: list[int], effort: Effort, deadline: float) -> None:
        """left: the conjunctions that are open."""
        self._question, self._effort, self._deadline, self._left = question, effort, deadline, left
        output = kinks.bounds.tape.output
        self._bounds = SplitBounds(kinks, [kinks.linear(output, *question.conjunction(k)) for k in left])
        self._leaves = Leaves(question, kinks)
        self.settled = math.inf  # the lowest bound of what is not in the pool any more
        self._end: Answer | None = None
        self.rounds = self.nodes = self.leaves = 0

    def answer(self, margins: list[float]) -> Answer:
        """margins: what is known of those of the conjunctions."""
        whole = self._bounds.whole()
        pool = self._bounded(_Pool(whole, torch.tensor(margins).to(whole.slopes.device, torch.float64)))
        while self._end is None and len(pool.bounds):
            lowest = min(self.settled, float(pool.bounds.min()))
            if time.monotonic() > self._deadline:
                return Answer(lowest, in_time=False)
            chosen, others = self._chosen(pool)
            if len(others.bounds) + 2 * len(chosen.bounds) > self._effort.most_open:
                pool = others.join(self._without_leaves(chosen, every=True))
                continue
            back = self._bounds.back(chosen.parts)
            broken = self._tried(chosen.parts, back)
            if broken is not None:
                return Answer(lowest, broken)
            kinks = to_split(self._bounds, chosen.parts, back, self._effort.candidates)
            halves = _Pool(chosen.parts.split(kinks), chosen.bounds.repeat(2))
            pool = others.join(self._bounded(halves))
        return self._end or Answer(self.settled)

    def _tried(self, parts: Parts, back: Back) -> Tensor | None:
        """A counterexample among the points where the linear bounds are lowest, or downhill from the lowest of them."""
        points = self._bounds.lowest(back.inputs).view(-1, *self._question.lower.shape[1:])
        broken = self._question.broken_by(points)
        if broken is not None or self._effort.downhill == 0:
            return broken
        some = back.lower.topk(min(len(points), 8), largest=False).indices
        which = [self._left[k] for k in parts.which[some].tolist()]
        return downhill(self._question, points[some], which, steps=self._effort.downhill)

    def _chosen(self, pool: _Pool) -> tuple[_Pool, _Pool]:
        """The parts to split next: the lowest, but the deepest when there is little room; and the others."""
        room = self._effort.most_open - len(pool.bounds)
        deepest = room < self._effort.batch
        order = -(pool.parts.signs != 0).sum(1) if deepest else pool.bounds
        count = max(1, min(self._effort.batch, room, len(pool.bounds)))
        some = order.topk(count, largest=False).indices
        others = torch.ones_like(order, dtype=torch.bool).index_fill(0, some, False)
        return pool.take(some), pool.take(others.nonzero().flatten())

    def _bounded(self, pool: _Pool) -> _Pool:
        """What stays open of parts, of which what is known is not more than of those they are part of."""
        effort = self._effort
        found, parts = self._bounds.ascend(
            pool.parts, steps=effort.steps, lr=effort.lr, enough=PROVED, deadline=self._deadline
        )
        bounds = torch.fmax(found, pool.bounds)
        self.settled = min([self.settled, *bounds[bounds > PROVED].tolist()])
        self.rounds += 1
        self.nodes += len(bounds)
        return self._without_leaves(_Pool(parts, bounds).take((~(bounds > PROVED)).nonzero().flatten()))

    def _without_leaves(self, pool: _Pool, every: bool = False) -> _Pool:
        """Those that are no leaves, the others being solved."""
        undecided = pool.parts.signs == 0
        leaf = (undecided.sum(1) <= self._effort.leaf) | ~(undecided & self._bounds.bends).any(1)
        if every:
            leaf[:] = True
        for index in leaf.nonzero().flatten().tolist():
            if self._end is not None:
                break
            self.leaves += 1
            bound, k = float(pool.bounds[index]), self._left[int(pool.parts.which[index])]
            solved = self._leaves.solve(k, pool.parts.signs[index], self._deadline)
            self.settled = min(self.settled, max(bound, solved.margin))
            if solved.counterexample is not None or not solved.in_time:
                others = min([math.inf, *pool.bounds.tolist()])
                self._end = Answer(min(self.settled, others), solved.counterexample, solved.in_time)
        return pool.take((~leaf).nonzero().flatten())
