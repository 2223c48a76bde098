"""alpha-CROWN on intermediate bounds: optimize the slopes of the relaxations for the bounds of each neuron.

CROWN bounds every neuron with the same slopes. Here each bound of each neuron has its own. The slopes are found in
float32; the bounds that count are computed once with them, in the arithmetic of the given bounds. The best of both is
kept, so bounds never get worse.

The blocks (`Reduced`) that cost least come first, because the time may not suffice for all of them. Cheap blocks are
often the last of the network, which are small and have the loosest bounds. A block is tightened again if an earlier
block was tightened after it. Within a block, the neurons with the loosest relaxations come first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable

import torch
from torch import Tensor

from advibp.bounds.linear.ascent import ascend
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import AnyKinks, Kinks, UndecidedWindows
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
    found = [kinks_of for kinks_of in kinks.of.values() if len(kinks_of.outputs)]
    search = _Search(bounds, reduced, found, deadline, steps, lr)
    order = sorted(search.tightenable, key=search.cost)
    again = sorted(n for k, n in enumerate(order) if any(later < n for later in order[k + 1 :]))
    return all(search.tighten(number) for number in [*order, *again])  # if one is not complete, the time is over


class _Search:
    """Tightens the bounds of one block after the other."""

    def __init__(
        self, bounds: LinearBounds, reduced: Reduced, found: list[AnyKinks], deadline: float, steps: int, lr: float
    ) -> None:
        self.bounds, self.reduced, self.single, self.found = bounds, reduced, reduced.single(), found
        self.deadline, self.steps, self.lr = deadline, steps, lr
        self.ends = [(block.lower.clone(), block.upper.clone()) for block in reduced.blocks]

    @property
    def tightenable(self) -> list[int]:
        """Blocks of activations that depend on other blocks."""
        blocks = enumerate(self.reduced.blocks)
        return [n for n, block in blocks if block.ceiling is None and any(source >= 0 for source in block.matrices)]

    def cost(self, number: int) -> int:
        """Return the number of multiplications of a backward pass from all neurons of a block."""
        blocks = self.reduced.blocks[: number + 1]
        return len(blocks[-1].bias) * sum(matrix.numel() for block in blocks for matrix in block.matrices.values())

    def tighten(self, number: int) -> bool:
        """Tighten the bounds of a block, and return whether there was time for all of its neurons."""
        block, of_block, complete = self.reduced.blocks[number], self.found[number], True
        assert not isinstance(of_block, UndecidedWindows)
        lo, up = self.ends[number]
        wide = [(low[None], high[None]) for low, high in self.ends]
        exact = [b.relax(*ends, self.reduced.unit) for b, ends in zip(self.reduced.blocks, wide, strict=True)]
        loose = exact[number].gap[0].clone()  # 0 for a stable neuron
        at_once = max(1, min(_NEURONS, _NUMBERS // max(1, 2 * block.columns.start)))
        loosest = loose.argsort(descending=True)[: int((loose > 0).sum())]
        for neurons in filter(len, loosest.split(at_once)):
            if time.monotonic() > self.deadline:
                complete = False
                break
            lower, upper = _optimized(
                self.reduced, self.single, number, neurons, wide, exact, self.steps, self.lr, self.deadline
            )
            lower, upper = torch.fmax(lo[neurons], lower), torch.fmin(up[neurons], upper)
            lo[neurons], up[neurons] = torch.minimum(lower, upper), torch.maximum(lower, upper)
        ends = tuple(end.clone().flatten() for end in self.bounds.intermediate_bounds[of_block.pre_activation])
        for end, tightened in zip(ends, (lo, up), strict=True):
            end[of_block.elements] = tightened
        shape = self.bounds.intermediate_bounds[of_block.pre_activation][0].shape
        self.bounds.tighten(of_block.pre_activation, *(end.view(shape) for end in ends))
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

    # Above 0 a ReLU is stable, so its bound need not be better.
    enough = 1e-3 if reduced.blocks[number].is_relu else math.inf
    best = ascend(lower, variables, steps=steps, lr=lr, enough=enough, deadline=deadline).values if blocks else []
    with torch.no_grad():
        # Limits in float64: the slope of a leaky ReLU, rounded to float32, may be too small.
        limited = (value.to(reduced.center).clamp(*v.limits) for value, v in zip(best, variables, strict=True))
        first, last = minimum(reduced, reduced.pre_activations(number, neurons), exact, limited).view(2, -1)
    return first, -last


def _cast(lines: Lines, dtype: torch.dtype) -> Lines:
    return Lines(*(None if part is None else part.to(dtype) for part in lines))  # type: ignore[arg-type]
