"""Exact answers by mixed integer linear programming: one program for the network, one objective for each margin.

The most promising conjunction comes first, the one that linear bounds are furthest from excluding: a counterexample
ends the search. The big-M of every kink come from the tightest bounds that CROWN finds.
"""

from __future__ import annotations

import math
import time

import torch
from torch import Tensor

from advibp.bounds.kinks import Kinks
from advibp.verify.program import Program, Solved
from advibp.verify.question import PROVED, Answer, Question


def milp(question: Question, *, seconds: float = math.inf) -> Answer:
    """Whether the question can be answered with yes or no in so many seconds."""
    deadline = time.monotonic() + seconds
    with torch.no_grad():
        bounds = question.bounds.refine()
    kinks, output = Kinks(bounds), bounds.tape.output
    known = [question.linear_margin(k) for k in range(len(question.unsafe))]
    margins = list(known)
    shared = Program(kinks, output, integer=True)  # by all that have one row
    for k in sorted(range(len(known)), key=known.__getitem__):
        if known[k] > PROVED:
            continue
        rows, offsets = question.conjunction(k)
        if len(rows) == 0:  # it holds everywhere
            return Answer(-math.inf, question.broken_by(question.lower))
        linear = kinks.linear(output, rows, offsets)
        one = len(rows) == 1
        program = shared if one else Program(kinks, output, integer=True, largest_of=linear)
        # Where rounding errors save the network from the first point that is low enough, the lowest may still break it.
        for below in (-PROVED, -math.inf):
            left = deadline - time.monotonic()
            solved = program.minimise(linear if one else None, seconds=left, above=PROVED, below=below)
            broken = question.broken_by(_point(question, solved)) if solved.x is not None else None
            margins[k] = max(margins[k], solved.lower)
            if broken is not None:
                return Answer(min(margins), broken)
            if not solved.finished:
                return Answer(min(margins), in_time=False)
            if solved.lower > PROVED:
                break
    return Answer(min(margins, default=math.inf))


def _point(question: Question, solved: Solved) -> Tensor:
    return torch.from_numpy(solved.x).view(question.lower.shape).to(question.lower.device)
