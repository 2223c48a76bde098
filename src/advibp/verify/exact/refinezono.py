"""RefineZono (Singh et al. 2019): DeepZ, whose undecided ReLUs get bounds from exact and from linear programs.

The zonotope goes through the network; at every ReLU the neurons it leaves undecided are bounded anew, by a mixed
integer program in early layers and by its linear relaxation in later ones, those with the largest effect on the margins
first, as long as there is time. The refined [l, u] enter DeepZ's rule for the ReLU, the linear bounds, and a last
linear program for each margin; the best answer counts.
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
from advibp.bounds.linear.kinks import Bends, Kinks
from advibp.bounds.rounded import Rounded
from advibp.bounds.zonotope import ReluBounds, Zonotope
from advibp.verify.exact.integer_program import Program
from advibp.verify.exact.question import PROVED, Answer, Question

_RELUS = frozenset(spellings("relu relu_"))
#: By how much a bound is widened: what the solver's tolerances may have taken from it.
_ERROR = 1e-7
#: Layers of ReLUs, after the first, whose neurons are bounded exactly. (Intervals are exact for the first.)
EXACT_LAYERS = 1
#: Seconds for an image, if nobody says how many.
SECONDS = 20.0


@torch.no_grad()
def refinezono(question: Question, *, seconds: float = math.inf, exact_layers: int = EXACT_LAYERS) -> Answer:
    """A lower bound of the margin. When the time is over, the bounds found so far are what is used."""
    deadline = time.monotonic() + (SECONDS if seconds == math.inf else seconds)
    bounds = question.refined()
    if bounds is None:
        return Answer(-math.inf)
    # Tighter [l, u] at the ReLUs need not make a tighter zonotope, so the one without them is asked too, and first.
    margins = _margins(question, bounds.tape.replay(_zonotope(bounds)))
    if all(margin > PROVED for margin in margins) or Kinks(bounds).too_many:
        return Answer(min(margins, default=math.inf))
    effects = _effects(question, bounds)
    # ReLUs are met in the order of the tape, each once.
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
        return bounds.boxes[entering]

    output = bounds.tape.replay(_zonotope(bounds, refined))
    margins = [max(pair) for pair in zip(margins, _margins(question, output), strict=True)]
    kinks, relaxed = Kinks(bounds), None
    for k in range(len(margins)):
        for row, offset in zip(*(part.split(1) for part in question.conjunction(k)), strict=True):
            if margins[k] <= PROVED and time.monotonic() < deadline:
                relaxed = relaxed or Program(kinks, bounds.tape.output, integer=False)
                linear = kinks.linear(bounds.tape.output, row, offset)
                margins[k] = max(margins[k], relaxed.minimise(linear, seconds=deadline - time.monotonic()).lower)
    margin = min(margins)
    return Answer(margin, in_time=margin > PROVED or time.monotonic() < deadline)


def _zonotope(bounds: LinearBounds, relu_bounds: ReluBounds | None = None) -> Zonotope | Rounded:
    if isinstance(bounds.inputs, Rounded):
        return bounds.inputs.zonotope(relu_bounds)
    return Zonotope.from_box(bounds.inputs, relu_bounds=relu_bounds)


def _margins(question: Question, output: Any) -> list[float]:
    """Of each conjunction, by the linear bounds as they are and by a zonotope (1, K) of outputs. A NaN is none."""
    found = []
    for k in range(len(question.unsafe)):
        # (A network that runs would round this product, so the bound is a little lower than need be.)
        by_zonotope: Any = F.linear(output, *question.conjunction(k))
        found.append(max([question.linear_margin(k), *by_zonotope.lower.flatten().tolist()]))
    return found


def _refine(bounds: LinearBounds, number: int, effect: Tensor, *, integer: bool, until: float) -> None:
    """Tighter bounds for what enters a ReLU, neuron by neuron; of those that are decided no more is asked."""
    kinks = Kinks(bounds)
    bends = kinks.of[number]
    assert isinstance(bends, Bends)
    lower, upper = (end.clone() for end in bounds.boxes[bends.entering])
    program = Program(kinks, bends.entering, integer=integer)
    loss = effect[bends.elements] * -bends.lower * bends.upper / (bends.upper - bends.lower)
    order = bends.elements[loss.argsort(descending=True)]
    for place in range(len(order)):
        element = order[place : place + 1]
        left = until - time.monotonic()
        if left <= 0:
            break
        each = max(left / (len(order) - place), left / 10)  # what is hard must not take it all
        row = kinks.elements(bends.entering, element)
        at_least = program.minimise(row, seconds=each / 2, above=0.0).lower - _ERROR
        if at_least > 0:
            lower.view(-1)[element] = torch.fmax(lower.view(-1)[element], lower.new_tensor(at_least))
            continue
        at_most = -program.minimise(-row, seconds=each / 2, above=0.0).lower + _ERROR
        lower.view(-1)[element] = lower.view(-1)[element].clamp(min=at_least)
        upper.view(-1)[element] = upper.view(-1)[element].clamp(max=at_most)
    bounds.tighten(bends.entering, lower, upper)


def _effects(question: Question, bounds: LinearBounds) -> dict[int, Tensor]:
    """How much the margins depend on each neuron (N,) of every activation, by the rows of a way back."""
    effects: dict[int, Tensor] = {}
    relaxed = bounds.relaxed(slice(None))

    def through(number: int, a: Tensor) -> tuple[Tensor, Tensor]:
        effects[number] = a.abs().sum(0).flatten()
        return relaxed(number, a)

    rows = torch.cat([rows for rows, _ in question.unsafe]).to(bounds.box.center)
    bounds.take_back(bounds.tape.output, rows, through)
    return effects
