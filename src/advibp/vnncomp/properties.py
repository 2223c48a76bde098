"""Properties of a network: can its outputs be where a VNN-LIB file says? sat, unsat, or why that is not known.

Cheapest first: an attack on each case of the property, for at most a quarter of the time; then, case by case, bounds,
branch and bound, and what time is left for a mixed integer program. `unsat` needs a proof for every case, `sat` one
point, checked on the network itself.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from advibp.bounds.domain import UnsupportedOperation
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact.falsify import falsify
from advibp.verify.exact.question import PROVED, Question, like
from advibp.verify.precision import check_types, full_precision
from advibp.verify.selftest import FEW, check_function
from advibp.verify.verifiers import complete_verifiers, searches
from advibp.vnncomp.vnnlib.vnnlib_file import Case, Property

Verdict = Literal["sat", "unsat", "unknown", "timeout"]


@dataclass(frozen=True)
class Finding:
    verdict: Verdict
    by: str = ""
    x: Tensor | None = None  # (N,), where it is sat
    y: Tensor | None = None  # (K,), the outputs there


def decide(
    net: nn.Module, shape: tuple[int, ...], asked: Property, *, seconds: float = math.inf, real: bool = False
) -> Finding:
    """net takes (B, *shape) to (B, K); shape has as many elements as the property has inputs.

    `unsat` covers every evaluation of the network in its own type; with `real` it ignores rounding.

    The time is looked at between steps, of which the longest are linear bounds of a whole network.
    """
    check_types(net)
    _check(net, shape, asked)
    deadline = time.monotonic() + seconds
    with full_precision():
        middles = [torch.lerp(case.lower, case.upper, 0.5).view(shape) for case in asked.cases[:FEW]]
        if middles:
            check_function(net, torch.stack(middles).to(like(net).dtype), within=None)
        attacked = time.monotonic() + seconds / 4
        for case in asked.cases:  # the attack first: one point ends it all
            x = falsify(_question(net, shape, case, real), seconds=attacked - time.monotonic())
            if x is not None:
                return _sat(net, x, "attack")
            if time.monotonic() > attacked:
                break
        verdicts: set[Verdict] = set()
        for case in asked.cases:
            verdict, x, by = _answer(_question(net, shape, case, real), deadline)
            if x is not None:
                return _sat(net, x, by)
            verdicts.add(verdict)
    return Finding(next((verdict for verdict in ("timeout", "unknown") if verdict in verdicts), "unsat"))


def _answer(question: Question, deadline: float) -> tuple[Verdict, Tensor | None, str]:
    if time.monotonic() > deadline:
        return "timeout", None, ""
    try:
        if _by_lines(question):
            return "unsat", None, "crown"
        names = [name for name in complete_verifiers() if name in searches()]
        for left, name in zip(range(len(names), 0, -1), names, strict=True):
            answer = searches()[name](question, seconds=max(0.0, deadline - time.monotonic()) / left)
            if answer.counterexample is not None:
                return "sat", answer.counterexample, name
            if answer.robust:
                return "unsat", None, name
        return ("unknown" if answer.in_time else "timeout"), None, ""
    except UnsupportedOperation:  # a curved activation, which has no exact answer, or one without linear bounds
        return ("unsat" if _by_intervals(question) else "unknown"), None, "ibp"


@torch.no_grad()
def _by_lines(question: Question) -> bool:
    """Whether linear bounds exclude every conjunction."""
    every = range(len(question.unsafe))
    if all(question.linear_margin(k) > PROVED for k in every):
        return True
    question.bounds.refine()
    return all(question.linear_margin(k) > PROVED for k in every)


@torch.no_grad()
def _by_intervals(question: Question) -> bool:
    """The same by intervals, which every operation has."""
    try:
        outputs = question.net(question.own_inputs)
    except UnsupportedOperation:
        return False
    lower, upper = outputs.lower[0].double(), outputs.upper[0].double()
    for rows, offsets in question.unsafe:
        rows, offsets = rows.to(lower), offsets.to(lower)
        margins = rows.clamp(min=0) @ lower + rows.clamp(max=0) @ upper + offsets
        sizes = rows.abs() @ torch.maximum(lower.abs(), upper.abs()) + offsets.abs()
        margins = margins - 2.0**-50 * (2 + rows.shape[1]) * sizes  # their own rounding
        if not any(margin > PROVED for margin in margins.tolist()):
            return False
    return True


def _question(net: nn.Module, shape: tuple[int, ...], case: Case, real: bool) -> Question:
    lower, upper = (end.view(1, *shape).to(like(net).device) for end in (case.lower, case.upper))
    return Question(net, lower, upper, case.disjuncts, real=real)


@torch.no_grad()
def _sat(net: nn.Module, x: Tensor, by: str) -> Finding:
    return Finding("sat", by, x.flatten(), run_on_copy(net, x).flatten())


def _check(net: nn.Module, shape: tuple[int, ...], asked: Property) -> None:
    inputs = math.prod(shape)
    if inputs != asked.inputs:
        raise UserError(
            f"The property is about {asked.inputs} inputs, but the network takes {inputs} ({tuple(shape)}); they "
            "do not belong together."
        )
    with torch.no_grad():
        outputs = net(like(net).new_zeros(1, *shape)).shape
    if len(outputs) != 2 or outputs[1] != asked.outputs:
        raise UserError(
            f"The property is about {asked.outputs} outputs, but the network has shape {tuple(outputs[1:])}; they "
            "do not belong together."
        )
