"""Complete verification by mixed integer linear programming: one program for the network, one objective per margin.

Conjunctions are solved in ascending order of their linear bounds, because a counterexample ends the search. The big-M
constants come from the intermediate bounds of CROWN.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace

import torch

from advibp.bounds.linear.kinks import Kinks, Linear
from advibp.verify.exact.integer_program import Program
from advibp.verify.exact.question import PROVED, Answer, Question


def milp(question: Question, *, seconds: float = math.inf) -> Answer:
    """Decide a question by mixed integer programs within a time limit in seconds."""
    deadline = time.monotonic() + seconds
    bounds = question.refined()
    if bounds is None:
        return Answer(-math.inf)
    kinks, output = Kinks(bounds), bounds.tape.output
    known = question.refined_margins
    if kinks.too_many:
        return Answer(min(known, default=math.inf))
    margins = list(known)
    shared = None  # the program of all conjunctions with one row
    for k in sorted(range(len(known)), key=known.__getitem__):
        if known[k] > PROVED:
            continue
        rows, offsets = question.conjunction(k)
        if len(rows) == 0:  # an empty conjunction always holds
            return Answer(-math.inf, question.broken_by(question.lower))
        if time.monotonic() >= deadline:  # (to build the program of a large network takes seconds)
            return Answer(min(margins), in_time=False)
        linear = kinks.linear(output, rows, offsets)
        one = len(rows) == 1
        if one:
            program = shared = shared or Program(kinks, output, integer=True)
        else:
            program = Program(kinks, output, integer=True, largest_of=linear)
        answer = solve_margin(question, program, linear if one else None, deadline)
        margins[k] = max(margins[k], answer.margin)
        if answer.counterexample is not None or not answer.in_time:
            return replace(answer, margin=min(margins))
    return Answer(min(margins, default=math.inf))


def solve_margin(question: Question, program: Program, row: Linear | None, deadline: float) -> Answer:
    """Bound one margin, the minimum of a row or of the program's `largest_of`, and look for a counterexample."""
    margin = -math.inf
    # If the first low point is no counterexample because of rounding, the lowest point may be one.
    for below in (-PROVED, -math.inf):
        left = deadline - time.monotonic()
        solved = program.minimize(row, seconds=left, above=PROVED, below=below)
        margin = max(margin, solved.lower)
        if solved.x is not None:
            broken = question.broken_by(torch.from_numpy(solved.x).view(question.lower.shape))
            if broken is not None:
                return Answer(margin, broken)
        if solved.lower > PROVED or not solved.finished:
            break
    return Answer(margin, in_time=solved.finished or margin > PROVED)
