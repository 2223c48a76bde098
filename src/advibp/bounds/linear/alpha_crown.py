"""alpha-CROWN (Xu et al. 2021): the slopes of the lower lines as variables, moved to where the bound is highest.

Any slope in the span of a crossing neuron gives a sound bound.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.linear.ascent import Variable, ascend
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.relaxation import Lines


def alpha_margins(bounds: LinearBounds, y: Tensor, *, steps: int = 20, lr: float = 0.25) -> Tensor:
    """Lower bounds (B, K) of the margins, optimised for those that are not above 0 yet; never below CROWN's."""
    with torch.no_grad():
        margins = bounds.margins(y)
    rows, others, image = bounds.margin_rows(y)
    best = margins.gather(1, others).flatten()
    for some in torch.nonzero(best <= 0).flatten().split(bounds.at_once):
        if len(some):
            found = _optimise(bounds, rows[some], image[some], steps, lr)
            best[some] = torch.fmax(best[some], found)  # a NaN is no bound
    return margins.scatter(1, others, best.view(others.shape))


def _optimise(bounds: LinearBounds, a: Tensor, image: Tensor, steps: int, lr: float) -> Tensor:
    every = {index: bounds.lines(index) for index in bounds.activations}
    slopes = {
        index: Variable(lines.low_slope[image], lines.free[image], lines.span)
        for index, lines in every.items()
        if isinstance(lines, Lines) and lines.free is not None
    }
    if not slopes:
        return a.new_full((len(a),), -torch.inf)

    def lower(numbers: list[Tensor]) -> Tensor:
        return bounds.lower(bounds.tape.output, a, image, dict(zip(slopes, numbers, strict=True)))

    return ascend(lower, list(slopes.values()), steps=steps, lr=lr).bounds
