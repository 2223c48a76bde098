"""alpha-CROWN on intermediate bounds: optimize the slopes of the relaxations for the bounds of each neuron.

CROWN bounds every neuron with the same slopes. Here each bound of each neuron has its own. Blocks (`Reduced`) are
tightened from the first to the last, so that later ones use the relaxations of tighter bounds. The slopes are found in
float32; the bounds that count are computed once with them, in the arithmetic of the given bounds. The best of both is
kept, so bounds never get worse.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch
from torch import Tensor

from advibp.bounds.linear.ascent import ascend
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import Kinks, UndecidedWindows
from advibp.bounds.linear.reduced import Lines, Reduced, Rows

#: Neurons per backward pass, and numbers, which limits the memory.
_NEURONS, _NUMBERS = 256, 2**24


def optimize_intermediate(bounds: LinearBounds, *, deadline: float, steps: int = 12, lr: float = 0.25) -> bool:
    """Tighten the intermediate bounds of one image.

    Args:
        bounds: linear bounds with intermediate bounds by CROWN. They are changed.
        deadline: a time of `time.monotonic`. Neurons that are not reached in time keep their bounds.
        steps: steps of the optimization.
        lr: learning rate.

    Returns:
        Whether all neurons were reached.
    """
    with torch.no_grad():
        kinks = Kinks(bounds, curves=True)
        if kinks.too_many:
            return False
        reduced = Reduced(kinks)
    single = reduced.single()
    found = [kinks_of for kinks_of in kinks.of.values() if len(kinks_of.outputs)]
    ends = [(block.lower.clone(), block.upper.clone()) for block in reduced.blocks]
    complete = True
    for number, block in enumerate(reduced.blocks):
        if block.ceiling is not None or not any(source >= 0 for source in block.matrices):
            continue
        of_block = found[number]
        assert not isinstance(of_block, UndecidedWindows)
        wide = [(lo[None], up[None]) for lo, up in ends]
        exact = [b.relax(lo, up, reduced.unit) for b, (lo, up) in zip(reduced.blocks, wide, strict=True)]
        count = max(1, min(_NEURONS, _NUMBERS // max(1, 2 * block.columns.start)))
        for neurons in torch.arange(len(block.bias), device=block.bias.device).split(count):
            if time.monotonic() > deadline:
                complete = False
                break
            lower, upper = _optimized(reduced, single, number, neurons, wide, exact, steps, lr, deadline)
            lo, up = ends[number]
            lo[neurons], up[neurons] = torch.fmax(lo[neurons], lower), torch.fmin(up[neurons], upper)
        first, last = ends[number]
        lower, upper = (end.clone().flatten() for end in bounds.intermediate_bounds[of_block.pre_activation])
        lower[of_block.elements], upper[of_block.elements] = torch.minimum(first, last), torch.maximum(first, last)
        ends[number] = torch.minimum(first, last), torch.maximum(first, last)
        shape = bounds.intermediate_bounds[of_block.pre_activation][0].shape
        bounds.tighten(of_block.pre_activation, lower.view(shape), upper.view(shape))
    return complete


def _optimized(
    reduced: Reduced,
    single: Reduced,
    number: int,
    neurons: Tensor,
    ends: list[tuple[Tensor, Tensor]],
    exact: list[Lines],
    steps: int,
    lr: float,
    deadline: float,
) -> tuple[Tensor, Tensor]:
    """Return bounds (R,) of pre-activations of a block."""
    count = 2 * len(neurons)
    blocks = [i for i in range(number) if reduced.blocks[i].ceiling is None]
    lines = [_cast(line, torch.float32) for line in exact[:number]]
    free = {i: single.blocks[i].free_slopes(lines[i]) for i in blocks}
    variables = [v._replace(start=v.start.expand(count, *v.start.shape[1:])) for v in free.values()]
    rows = single.pre_activations(number, neurons)

    def minimum(of: Reduced, rows: Rows, lines: list[Lines], values: Iterable[Tensor]) -> Tensor:
        slopes = dict(zip(blocks, values, strict=True))

        def of_block(i: int) -> Lines:
            if i in slopes:
                lo, up = (end.to(of.center) for end in ends[i])
                return of.blocks[i].with_slopes(lines[i], slopes[i], lo, up, of.unit)
            return Lines(*(None if part is None else part.expand(count, -1) for part in lines[i]))  # type: ignore[arg-type]

        center, radius = of.center.expand(count, -1), of.radius.expand(count, -1)
        return of.minimum(of.backward(rows, of_block), center, radius)

    def lower(values: list[Tensor]) -> Tensor:
        return minimum(single, rows, lines, values)

    # Above 0 the neuron is stable, so its bound need not be better.
    best = ascend(lower, variables, steps=steps, lr=lr, enough=1e-3, deadline=deadline).values if blocks else []
    with torch.no_grad():
        # Limits in float64: the slope of a leaky ReLU, rounded to float32, may be too small.
        limited = (value.to(reduced.center).clamp(*v.limits) for value, v in zip(best, variables, strict=True))
        first, last = minimum(reduced, reduced.pre_activations(number, neurons), exact, limited).view(2, -1)
    return first, -last


def _cast(lines: Lines, dtype: torch.dtype) -> Lines:
    return Lines(*(None if part is None else part.to(dtype) for part in lines))  # type: ignore[arg-type]
