"""Verification by branch and bound over boxes: the box of inputs is halved until linear bounds decide every part.

This suits networks with few inputs. All bounds are computed in the arithmetic of the certificate: half of all boxes of
such a search are leaves, which need a proof, so that a cheaper search would save nothing.

A part is closed when its bound proves that the conjunction can't hold in it. The linear bounds of the rows also cut a
part: where one of them is above 0 the conjunction does not hold, so only the rest is searched.

The bounds of a part use the network as it was reduced over a box that contains the part: its stable neurons, and its
rounding errors. When many parts of this box are open they are divided into groups of neighbors, and the network is
reduced again over the box of each group. Over a smaller box more neurons are stable, and the rounding errors are
smaller; with those of the whole box, parts with a small margin could not be decided at all.
"""

from __future__ import annotations

import heapq
import math
import time
from dataclasses import replace

import torch
from torch import Tensor

from advibp.bounds.linear.kinks import Kinks, UndecidedWindows
from advibp.bounds.linear.part_bounds import FunctionBounds, PartBounds, Parts, mix_rows
from advibp.bounds.linear.reduced import Reduced
from advibp.verify.exact.neighbors import neighbors
from advibp.verify.exact.pool import Pool
from advibp.verify.exact.question import PROVED, Answer, Question
from advibp.verify.exact.trace import Trace

#: Weight of the gaps of the relaxations in the choice of an input.
_GAPS = 3.0
#: The network is reduced again after this many bounded parts, if they took this much longer than the reduction.
_REGROUP_PARTS, _REGROUP_TIME = 512, 2.0
#: Parts in a group.
_GROUP = 128
#: The search gives up after this many parts: the margin may be exactly 0 in a whole region.
_MOST_PARTS = 2**22
#: A part is not halved any more if no input is wider than this share of the whole box.
_NARROW = 2.0**-40


def split_inputs(
    question: Question, *, seconds: float = math.inf, batch: int = 512, trace: Trace | None = None
) -> Answer:
    """Decide a question by halving its box.

    Args:
        question: The network, the box and the unsafe conjunctions.
        seconds: Time limit.
        batch: Number of parts that are bounded together.
        trace: Records the progress.
    """
    deadline = time.monotonic() + seconds
    with torch.no_grad():
        bounds = question.refined()
        if bounds is None:
            return Answer(-math.inf)
        kinks = Kinks(bounds, curves=True)
        margins = list(question.refined_margins)
        left = [k for k, margin in enumerate(margins) if not margin > PROVED]
        if any(len(question.unsafe[k][0]) == 0 for k in left):  # an empty conjunction always holds
            return Answer(-math.inf, question.broken_by(question.lower))
        pools = any(isinstance(found, UndecidedWindows) and len(found.outputs) for found in kinks.of.values())
        if not left or kinks.too_many or pools:
            return Answer(min(margins, default=math.inf))
        return _Search(question, kinks, left, batch, deadline, trace or Trace()).answer(margins)


class _Search:
    def __init__(
        self, question: Question, kinks: Kinks, left: list[int], batch: int, deadline: float, trace: Trace
    ) -> None:
        """`left`: numbers of the undecided conjunctions."""
        self._question, self._left, self._batch, self._deadline = question, left, batch, deadline
        self._trace = trace
        self._settled, self._bounded = math.inf, 0  # lowest bound of the closed parts, number of bounded parts
        ends = question.lower, question.upper
        self._low, self._high = (end.flatten().to(kinks.bounds.box.center) for end in ends)
        self._began, self._number = time.monotonic(), 0
        self._bounds = self._reduce(kinks)

    def _reduce(self, kinks: Kinks) -> PartBounds:
        output = kinks.bounds.tape.output
        functions = [kinks.linear(output, *self._question.conjunction(k)) for k in self._left]
        return PartBounds(Reduced(kinks), functions)

    def answer(self, margins: list[float]) -> Answer:
        """Run the search. `margins`: bounds of all conjunctions by linear bounds."""
        self._settled = min((margin for margin in margins if margin > PROVED), default=math.inf)
        pool = Pool(self._bounds.whole(self._low, self._high), self._low.new_tensor([margins[k] for k in self._left]))
        groups: list[tuple[float, int, Pool[Parts]]] = []  # a heap, the group with the lowest bound first
        waiting = reduced_at = 0  # parts in groups, number of bounded parts at the last reduction
        seconds, self._began = time.monotonic() - self._began, time.monotonic()
        while True:
            lowest = min([pool.lowest(self._settled), *(bound for bound, _, _ in groups[:1])])
            self._trace.note("input-split", lowest, waiting + len(pool))
            if time.monotonic() > self._deadline:
                return Answer(lowest, in_time=False)
            if self._bounded > _MOST_PARTS:
                return Answer(lowest)
            spent = time.monotonic() - self._began > _REGROUP_TIME * seconds
            if len(pool) > 1 and spent and self._bounded - reduced_at > _REGROUP_PARTS:
                waiting += len(pool)
                for some in neighbors(pool.parts, self._high - self._low, _GROUP):
                    group = Pool(pool.parts.take(some).without_bounds(), pool.bounds[some])
                    self._number += 1
                    heapq.heappush(groups, (group.lowest(math.inf), self._number, group))
                pool = pool.take(slice(0))
            if not len(pool):
                if not groups:
                    return Answer(self._settled)
                self._began = time.monotonic()
                pool = self._enter(heapq.heappop(groups)[2])
                waiting, reduced_at = waiting - len(pool), self._bounded
                seconds, self._began = time.monotonic() - self._began, time.monotonic()
            chosen = torch.zeros_like(pool.bounds, dtype=torch.bool)
            chosen[pool.bounds.topk(min(self._batch, len(pool)), largest=False).indices] = True
            taken, rest = pool.partition(chosen)
            halves, broken = self._round(taken)
            if broken is not None:
                return Answer(lowest, broken)
            pool = rest.join(halves)

    def _enter(self, group: Pool[Parts]) -> Pool[Parts]:
        """Reduce the network over the box of a group of parts."""
        which, low, high = group.parts[:3]
        shape = self._question.lower.shape
        ends = low.amin(0).view(shape), high.amax(0).view(shape)
        bounds = replace(self._question, lower=ends[0], upper=ends[1]).refined()
        if bounds is not None:  # (it is None only if it was None for the whole box)
            self._bounds = self._reduce(Kinks(bounds, curves=True))
        return Pool(self._bounds.start(which, low, high), group.bounds)

    def _round(self, pool: Pool[Parts]) -> tuple[Pool[Parts], Tensor | None]:
        """Bound parts, cut and halve the undecided ones. Also returns a counterexample, if one is met."""
        parts, shares = self._bounds.refine(pool.parts)
        bounded = self._bounds.functions(parts)
        self._trace.count(len(parts.which))
        self._bounded += len(parts.which)
        mixed, weights = mix_rows(parts, bounded)
        margins = torch.fmax(mixed, pool.bounds)
        self._settle(margins[margins > PROVED])
        still = ~(margins > PROVED)
        parts, margins = parts.take(still), margins[still]
        bounded, shares, weights = bounded.take(still), shares[still], weights[still]
        broken = self._find_counterexample(parts, bounded)
        if broken is not None or not len(margins):
            return Pool(parts, margins), broken
        uncut = parts
        parts, empty = _cut(parts, bounded, PROVED)
        if bool((empty | (parts.widths < uncut.widths).any(1)).any()):  # a margin in what was cut is above PROVED
            self._settled = min(self._settled, PROVED * (1 + 2.0**-20))
        parts, margins = parts.take(~empty), margins[~empty]
        bounded, shares, weights = bounded.take(~empty), shares[~empty], weights[~empty]
        narrow = (parts.widths <= _NARROW * (self._high - self._low)).all(1)
        self._settle(margins[narrow])  # can't be decided: the margin is too close to 0
        parts, margins = parts.take(~narrow), margins[~narrow]
        bounded, shares, weights = bounded.take(~narrow), shares[~narrow], weights[~narrow]
        return Pool(parts.halves(_input_to_split(parts, bounded, shares, weights)), margins.repeat(2)), None

    def _settle(self, margins: Tensor) -> None:
        if len(margins):
            self._settled = min(self._settled, float(margins.min()))

    def _find_counterexample(self, parts: Parts, bounded: FunctionBounds) -> Tensor | None:
        """Try the centers of the parts, and the points where their linear bounds are lowest."""
        if not len(parts.which):
            return None
        best = bounded.lower.argmax(1)
        slopes = bounded.slopes[torch.arange(len(best), device=best.device), best]
        corners = torch.where(slopes > 0, parts.low, parts.high)
        points = torch.cat([torch.lerp(parts.low, parts.high, 0.5), corners])
        points = points.view(-1, *self._question.lower.shape[1:])
        return self._question.broken_by(points)


def _cut(parts: Parts, bounded: FunctionBounds, above: float) -> tuple[Parts, Tensor]:
    """Cut from each part points at which a row of its function is certainly above a number.

    A row is at least a x + b. With the smallest value m of the other terms, x_j can be cut where a_j x_j + m + b is
    above the number.

    Returns:
        The smaller parts, and which of them are empty (D,).
    """
    low, high = parts.low.clone(), parts.high.clone()
    gone = torch.zeros_like(parts.which, dtype=torch.bool)
    for row in range(bounded.lower.shape[1]):
        a, b = bounded.slopes[:, row], bounded.constants[:, row]
        terms = torch.minimum(a * low, a * high)
        others = terms.sum(1, keepdim=True) - terms
        limit = (above - b.unsqueeze(1) - others) / a  # NaN or infinite if a is 0 or the row does not exist
        limit = limit + limit.abs() * 2.0**-48 * a.sign()
        cut_high = (a > 0) & limit.isfinite()
        cut_low = (a < 0) & limit.isfinite()
        high = torch.where(cut_high, torch.minimum(high, limit), high)
        low = torch.where(cut_low, torch.maximum(low, limit), low)
        empty = (low > high).any(1, keepdim=True)
        low, high = torch.where(empty, parts.low, low), torch.where(empty, parts.high, high)
        gone |= empty.squeeze(1)
    return parts._replace(low=low, high=high), gone


def _input_to_split(parts: Parts, bounded: FunctionBounds, shares: Tensor, weights: Tensor) -> Tensor:
    """Choose an input (D,) of each part: the one whose width has the largest effect on the bound of the mean of rows.

    The bound is lowered by the widths of the inputs, and by the relaxations, whose gaps are caused by the widths too.
    """
    slopes = torch.einsum("dr,drn->dn", weights, bounded.slopes)
    effects = slopes.abs() * parts.widths
    losses = torch.einsum("dr,drv->dv", weights.float(), bounded.losses)
    gaps = torch.bmm(losses.unsqueeze(1), shares).squeeze(1).to(effects)
    return (effects + _GAPS * gaps + 1e-12 * parts.widths).argmax(1)
