"""Problems for exact verifiers."""

from __future__ import annotations

import math

import torch
from networks import network

from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact.integer_program import Program
from advibp.verify.exact.question import Answer, Question

#: By how much the relaxation of rows may move the solution of a program.
SLACK = 2e-5


def question(seed: int, eps: float, kind: str = "few relus") -> tuple[Question, int]:
    """Return a float64 network with an image, and the class that it predicts."""
    made = network(seed, kind)
    x = torch.rand(1, *made.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    with torch.no_grad():
        label = int(made.net(x.clone()).argmax())
    return Question.robustness(made.net, x, label, eps, 3), label


def exact_margin(asked: Question) -> float:
    """The smallest margin of all conjunctions, by a mixed integer program that is solved to the end."""
    kinks, found = Kinks(asked.bounds.refine()), math.inf
    output = kinks.bounds.tape.output
    for k in range(len(asked.unsafe)):
        linear = kinks.linear(output, *asked.conjunction(k))
        solved = Program(kinks, output, integer=True, largest_of=linear).minimize()
        found = min(found, solved.claimed)
    return found


def check(asked: Question, answer: Answer, exact: float) -> None:
    """An answer in time is right, and its margin sound."""
    assert answer.in_time
    assert answer.margin <= exact + SLACK
    assert answer.margin >= min(asked.linear_margin(k) for k in range(len(asked.unsafe))) - 1e-9
    if abs(exact) > 1e-4:
        assert answer.robust == (exact > 0)
        assert (answer.counterexample is not None) == (exact < 0)
    if answer.counterexample is not None:
        assert (answer.counterexample >= asked.lower).all()
        assert (answer.counterexample <= asked.upper).all()
        assert asked.broken_by(answer.counterexample) is not None
