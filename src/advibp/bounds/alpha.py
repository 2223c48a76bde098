"""alpha-CROWN (Xu et al. 2021): the slopes of the lower lines as variables, moved to where the bound is highest.

Any slope in the span of a crossing neuron gives a sound bound, so the best iterate can be kept whatever the way there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from advibp.bounds.linear import LinearBounds, Slopes
from advibp.bounds.relaxation import Lines


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
    choices = _choices(bounds)
    free = {index: lines.free[image] for index, lines in choices.items() if lines.free is not None}
    slopes: Slopes = {i: lines.low_slope[image].detach().clone().requires_grad_() for i, lines in choices.items()}
    best = a.new_full((len(a),), -torch.inf)
    if not slopes:
        return best
    optimizer = torch.optim.Adam(list(slopes.values()), lr=lr, maximize=True)
    for step in range(steps + 1):
        with torch.enable_grad():
            found = bounds.lower(bounds.tape.output, a, image, slopes)
        # A row that is proved stays as it is, so that it does not depend on how long others take.
        best = torch.where(best > 0, best, torch.fmax(best, found.detach()))
        if step == steps or bool((best > 0).all()):
            break
        grads = torch.autograd.grad(found, list(slopes.values()), torch.ones_like(found), allow_unused=True)
        for (index, slope), grad in zip(slopes.items(), grads, strict=True):
            slope.grad = None if grad is None else grad * free[index]
        optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.95
        with torch.no_grad():
            for index, slope in slopes.items():
                slope.clamp_(*choices[index].span)
    return best


def _choices(bounds: LinearBounds) -> dict[int, Lines]:
    """The activations that have a choice, with their lines."""
    every = {index: bounds.lines(index) for index in bounds.activations}
    return {i: lines for i, lines in every.items() if isinstance(lines, Lines) and lines.free is not None}
