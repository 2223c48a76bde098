"""Decide whether a VNN-LIB property of a network is `sat` or `unsat`.

Methods run in order of cost: an attack on each case, for at most a quarter of the time; then, for each case, linear
bounds, branch and bound, and a mixed integer program. `unsat` needs a proof for every case. `sat` needs one point, and
the network is run on it.
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
from advibp.moved import renamed_keywords
from advibp.verify.exact.falsify import falsify
from advibp.verify.exact.milp import milp
from advibp.verify.exact.portfolio import search, share_of_search
from advibp.verify.exact.question import PROVED, Question, like
from advibp.verify.exact.trace import Trace
from advibp.verify.precision import check_types, full_precision
from advibp.verify.selftest import FEW, check_function
from advibp.vnncomp.vnnlib.vnnlib_file import Case, Property

Verdict = Literal["sat", "unsat", "unknown", "timeout"]


@dataclass(frozen=True)
class Finding:
    """Result of `advibp.vnncomp.decide`.

    Attributes:
        verdict: "sat", "unsat", "unknown" or "timeout".
        by: "attack" or the complete verifier that found a counterexample; "" otherwise.
        x: the counterexample (N,) if the verdict is "sat".
        y: the network's outputs (K,) at x.

    Examples:
        >>> import torch
        >>> from advibp.vnncomp import Case, Property, decide
        >>> # Can y_0 - y_1 <= 0 hold for an x in [0, 1]^2?
        >>> disjunct = torch.tensor([[1.0, -1.0]]).double(), torch.zeros(1).double()
        >>> case = Case(torch.zeros(2).double(), torch.ones(2).double(), [disjunct])
        >>> prop = Property(inputs=2, outputs=2, cases=[case])
        >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2, bias=False))
        >>> finding = decide(net, (2,), prop)  # x = 0 is a counterexample
        >>> finding.verdict
        'sat'
    """

    verdict: Verdict
    by: str = ""
    x: Tensor | None = None
    y: Tensor | None = None


@renamed_keywords(asked="prop")
def decide(
    net: nn.Module,
    shape: tuple[int, ...],
    prop: Property,
    *,
    seconds: float = math.inf,
    real: bool = False,
    trace: Trace | None = None,
) -> Finding:
    """Decide whether a property of a network is `sat` or `unsat`.

    Args:
        net: a network (B, *shape) -> (B, K).
        shape: shape of one input. It has as many elements as the property has inputs.
        prop: the property, from `advibp.vnncomp.read_vnnlib`.
        seconds: time limit. It is checked between steps; the longest step computes linear bounds of the whole network.
        real: prove `unsat` in real arithmetic, which ignores rounding. By default `unsat` covers every evaluation of
            the network in its floating-point type.
        trace: records the progress of the searches.

    Returns:
        The verdict, with a counterexample if it is "sat".

    Raises:
        UserError: the property has another number of inputs or outputs than the network.

    Examples:
        ```python
        net = advibp.vnncomp.load_onnx("first.onnx")
        prop = advibp.vnncomp.read_vnnlib("props/test-000000-eps-0.1.vnnlib")
        result = advibp.vnncomp.decide(net, net.input_shape, prop, seconds=60)
        print(result.verdict)
        ```
    """
    check_types(net)
    _check(net, shape, prop)
    deadline, trace = time.monotonic() + seconds, trace or Trace()
    with full_precision():
        centers = [torch.lerp(case.lower, case.upper, 0.5).view(shape) for case in prop.cases[:FEW]]
        if centers:
            check_function(net, torch.stack(centers).to(like(net).dtype), within=None)
        attack_deadline = time.monotonic() + seconds / 4
        for case in prop.cases:
            with trace.timed("attack"):
                x = falsify(_question(net, shape, case, real), seconds=attack_deadline - time.monotonic())
            if x is not None:
                return _sat(net, x, "attack")
            if time.monotonic() > attack_deadline:
                break
        verdicts: set[Verdict] = set()
        for case in prop.cases:
            verdict, x, by = _decide_case(_question(net, shape, case, real), deadline, trace)
            if x is not None:
                return _sat(net, x, by)
            verdicts.add(verdict)
    return Finding(next((verdict for verdict in ("timeout", "unknown") if verdict in verdicts), "unsat"))


def _decide_case(question: Question, deadline: float, trace: Trace) -> tuple[Verdict, Tensor | None, str]:
    """Return the verdict of one case, the counterexample if there is one, and the method that decided."""
    if time.monotonic() > deadline:
        return "timeout", None, ""
    try:
        with trace.timed("linear bounds"):
            if _prove_by_crown(question):
                return "unsat", None, "crown"
            share = share_of_search(question)
        for name, part in (("bab", share), ("milp", 1.0)):
            left = max(0.0, deadline - time.monotonic())
            with trace.timed(name):
                if name == "bab":
                    answer = search(question, seconds=part * left, trace=trace)
                else:
                    answer = milp(question, seconds=left)
            if answer.counterexample is not None:
                return "sat", answer.counterexample, name
            if answer.robust:
                return "unsat", None, name
        return ("unknown" if answer.in_time else "timeout"), None, ""
    except UnsupportedOperation:  # an activation that is not piecewise linear, or an operation without linear bounds
        if time.monotonic() > deadline:
            return "timeout", None, ""
        return ("unsat" if _prove_by_ibp(question) else "unknown"), None, "ibp"


def _prove_by_crown(question: Question) -> bool:
    """Return whether linear bounds exclude every conjunction."""
    return all(m > PROVED for m in question.linear_margins()) or all(m > PROVED for m in question.refined_margins)


@torch.no_grad()
def _prove_by_ibp(question: Question) -> bool:
    """Return whether interval bounds exclude every conjunction."""
    try:
        outputs = question.net(question.own_inputs)
    except UnsupportedOperation:
        return False
    lower, upper = outputs.lower[0].double(), outputs.upper[0].double()
    for rows, offsets in question.unsafe:
        rows, offsets = rows.to(lower), offsets.to(lower)
        margins = rows.clamp(min=0) @ lower + rows.clamp(max=0) @ upper + offsets
        sizes = rows.abs() @ torch.maximum(lower.abs(), upper.abs()) + offsets.abs()
        margins = margins - 2.0**-50 * (2 + rows.shape[1]) * sizes  # rounding errors of the margins
        if not any(margin > PROVED for margin in margins.tolist()):
            return False
    return True


def _question(net: nn.Module, shape: tuple[int, ...], case: Case, real: bool) -> Question:
    lower, upper = (end.view(1, *shape).to(like(net).device) for end in (case.lower, case.upper))
    return Question(net, lower, upper, case.disjuncts, real=real)


@torch.no_grad()
def _sat(net: nn.Module, x: Tensor, by: str) -> Finding:
    return Finding("sat", by, x.flatten(), run_on_copy(net, x).flatten())


def _check(net: nn.Module, shape: tuple[int, ...], prop: Property) -> None:
    inputs = math.prod(shape)
    if inputs != prop.inputs:
        raise UserError(
            f"The property has {prop.inputs} inputs, but the network has {inputs} ({tuple(shape)}); give the property "
            "of this network."
        )
    with torch.no_grad():
        outputs = net(like(net).new_zeros(1, *shape)).shape
    if len(outputs) != 2 or outputs[1] != prop.outputs:
        raise UserError(
            f"The property has {prop.outputs} outputs, but the network's output has shape {tuple(outputs[1:])}; give "
            "the property of this network."
        )
