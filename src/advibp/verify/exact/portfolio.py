"""Chooses how a question is searched: by halving its box, by splitting neurons, or both; and for how long.

Halving the box suits few inputs: each halving makes all relaxations tighter. With many inputs it hardly changes any
bound, and splitting neurons is better. A mixed integer program solves problems with few undecided neurons quickly, and
seldom ends in time for others.
"""

from __future__ import annotations

import math
import time

import torch

from advibp.bounds.domain import UnsupportedOperation
from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact.branch_and_bound import branch
from advibp.verify.exact.input_split import split_inputs
from advibp.verify.exact.question import Answer, Question
from advibp.verify.exact.trace import Trace

#: With at most this many inputs that are not fixed, the box is halved until time is over.
FEW_INPUTS = 8
#: With at most this many, halving the box gets a share of the time before neurons are split.
SOME_INPUTS, SHARE_OF_INPUTS = 24, 0.4
#: A mixed integer program gets half of the time if at most this many neurons are undecided, and otherwise none.
FEW_NEURONS = 40


def search(question: Question, *, seconds: float = math.inf, trace: Trace | None = None) -> Answer:
    """Decide a question by branch and bound over inputs, over neurons, or both.

    Args:
        question: The network, the box and the unsafe conjunctions.
        seconds: Time limit.
        trace: Records the progress.
    """
    deadline, trace = time.monotonic() + seconds, trace or Trace()
    first = None
    free = int((question.upper > question.lower).sum())
    if free <= SOME_INPUTS and undecided_neurons(question) > FEW_NEURONS // 2:
        share = 1.0 if free <= FEW_INPUTS else SHARE_OF_INPUTS
        first = split_inputs(question, seconds=share * seconds if math.isfinite(seconds) else math.inf, trace=trace)
        if first.robust or first.counterexample is not None or (share == 1.0 and not first.in_time):
            return first
    try:
        answer = branch(question, seconds=max(0.0, deadline - time.monotonic()), trace=trace)
    except UnsupportedOperation:
        if first is None:
            raise
        return first
    return answer if first is None or answer.margin >= first.margin else _with_margin(answer, first.margin)


def _with_margin(answer: Answer, margin: float) -> Answer:
    return Answer(margin, answer.counterexample, answer.in_time)


def share_of_search(question: Question) -> float:
    """Share of the time that `search` gets if a mixed integer program may follow it."""
    kinks = _kinks(question)
    solvable = kinks is None or (kinks.count <= FEW_NEURONS and not kinks.has_curves)
    return 0.5 if solvable else 1.0


def undecided_neurons(question: Question) -> int:
    """Number of neurons and pooling windows that are not decided by linear bounds."""
    kinks = _kinks(question)
    return 0 if kinks is None else kinks.count


@torch.no_grad()
def _kinks(question: Question) -> Kinks | None:
    """Return the undecided neurons and pooling windows; None if the network overflows."""
    bounds = question.refined()
    return None if bounds is None else Kinks(bounds, curves=True)
