"""RefineZono (Singh et al. 2019): DeepZ with bounds of unstable ReLUs from mixed integer and linear programs.

The zonotope is propagated through the network. At every ReLU layer, unstable neurons are bounded again: by mixed
integer programs in early layers and by their linear relaxations in later ones. Neurons with the largest effect on the
margins come first, until time runs out. The refined [l, u] are used by DeepZ's rule for the ReLU, by the linear bounds,
and by a final linear program for each margin. The best bound counts.
"""

from __future__ import annotations

import math
import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.domain import spellings
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import Kinks, UnstableRelus
from advibp.bounds.rounded import Rounded
from advibp.bounds.zonotope import ReluBounds, Zonotope
from advibp.verify.exact.integer_program import Program
from advibp.verify.exact.question import PROVED, Answer, Question

_RELUS = frozenset(spellings("relu relu_"))
#: Bounds are widened by this, to cover the solver's tolerances.
_ERROR = 1e-7
#: Number of ReLU layers after the first that are bounded exactly. (Intervals are exact for the first.)
EXACT_LAYERS = 1
#: Default time limit in seconds.
SECONDS = 20.0


@torch.no_grad()
def refinezono(question: Question, *, seconds: float = math.inf, exact_layers: int = EXACT_LAYERS) -> Answer:
    """Bound the margins. When time runs out, the bounds found so far are used."""
    deadline = time.monotonic() + (SECONDS if seconds == math.inf else seconds)
    bounds = question.refined()
    if bounds is None:
        return Answer(-math.inf)
    # Tighter [l, u] at the ReLUs do not always give a tighter zonotope, so plain DeepZ runs first.
    margins = _margins(question, bounds.tape.replay(_zonotope(bounds)))
    if all(margin > PROVED for margin in margins) or Kinks(bounds).too_many:
        return Answer(min(margins, default=math.inf))
    effects = _effects(question, bounds)
    # The replay visits each ReLU once, in the order of the tape.
    relus = [i for i in bounds.activations if bounds.tape.nodes[i].func in _RELUS]
    met = iter(enumerate(relus))

    def refined(zonotope: Zonotope) -> tuple[Tensor, Tensor]:
        place, number = next(met)
        entering = bounds.tape.nodes[number].refs[0]
        bounds.tighten(entering, zonotope.lower, zonotope.upper)
        left = deadline - time.monotonic()
        if left > 0 and not bounds.exact(entering):
            until = time.monotonic() + left / (len(relus) - place)
            _refine(bounds, number, effects[number], integer=place <= exact_layers, until=until)
        return bounds.intermediate_bounds[entering]

    output = bounds.tape.replay(_zonotope(bounds, refined))
    margins = [max(pair) for pair in zip(margins, _margins(question, output), strict=True)]
    kinks, relaxed = Kinks(bounds), None
    for k in range(len(margins)):
        for row, offset in zip(*(part.split(1) for part in question.conjunction(k)), strict=True):
            if margins[k] <= PROVED and time.monotonic() < deadline:
                relaxed = relaxed or Program(kinks, bounds.tape.output, integer=False)
                linear = kinks.linear(bounds.tape.output, row, offset)
                margins[k] = max(margins[k], relaxed.minimize(linear, seconds=deadline - time.monotonic()).lower)
    margin = min(margins)
    return Answer(margin, in_time=margin > PROVED or time.monotonic() < deadline)


def _zonotope(bounds: LinearBounds, relu_bounds: ReluBounds | None = None) -> Zonotope | Rounded:
    if isinstance(bounds.inputs, Rounded):
        return bounds.inputs.zonotope(relu_bounds)
    return Zonotope.from_box(bounds.inputs, relu_bounds=relu_bounds)


def _margins(question: Question, output: Any) -> list[float]:
    """Margins of the conjunctions by the linear bounds and by the zonotope (1, K) of outputs. NaN is ignored."""
    margins = []
    for k in range(len(question.unsafe)):
        # (The bound includes the rounding error of this product, which the network does not compute.)
        by_zonotope: Any = F.linear(output, *question.conjunction(k))
        margins.append(max([question.linear_margin(k), *by_zonotope.lower.flatten().tolist()]))
    return margins


def _refine(bounds: LinearBounds, number: int, effect: Tensor, *, integer: bool, until: float) -> None:
    """Tighten the bounds of the pre-activations of a ReLU layer, neuron by neuron."""
    kinks = Kinks(bounds)
    relus = kinks.of[number]
    assert isinstance(relus, UnstableRelus)
    lower, upper = (end.clone() for end in bounds.intermediate_bounds[relus.pre_activation])
    program = Program(kinks, relus.pre_activation, integer=integer)
    loss = effect[relus.elements] * -relus.lower * relus.upper / (relus.upper - relus.lower)
    order = relus.elements[loss.argsort(descending=True)]
    for place in range(len(order)):
        element = order[place : place + 1]
        left = until - time.monotonic()
        if left <= 0:
            break
        each = max(left / (len(order) - place), left / 10)  # a hard neuron must not take all the time
        row = kinks.elements(relus.pre_activation, element)
        at_least = program.minimize(row, seconds=each / 2, above=0.0).lower - _ERROR
        if at_least > 0:
            lower.view(-1)[element] = torch.fmax(lower.view(-1)[element], lower.new_tensor(at_least))
            continue
        at_most = -program.minimize(-row, seconds=each / 2, above=0.0).lower + _ERROR
        lower.view(-1)[element] = lower.view(-1)[element].clamp(min=at_least)
        upper.view(-1)[element] = upper.view(-1)[element].clamp(max=at_most)
    bounds.tighten(relus.pre_activation, lower, upper)


def _effects(question: Question, bounds: LinearBounds) -> dict[int, Tensor]:
    """The effect of each neuron (N,) of every activation on the margins: sums of coefficients in a backward pass."""
    effects: dict[int, Tensor] = {}
    relaxed = bounds.through_relaxations()

    def through(number: int, a: Tensor, images: Tensor | slice) -> tuple[Tensor, Tensor]:
        effects[number] = a.abs().sum(0).flatten()
        return relaxed(number, a, images)

    rows = torch.cat([rows for rows, _ in question.unsafe]).to(bounds.box.center)
    bounds.backward(bounds.tape.output, rows, through)
    return effects
