"""Bounds over many parts of a box at once: CROWN with the intermediate bounds of each part.

Input splitting bounds thousands of small boxes. All of them are parts of one box, over which the network was reduced
(`Reduced`), so a neuron that is stable over the whole box costs nothing, and a neuron that is stable over a part costs
nothing in the parts of this part. The rows of all parts are carried back together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from advibp.bounds.linear.kinks import Linear
from advibp.bounds.linear.reduced import INPUT, Lines, Reduced, Rows
from advibp.bounds.linear.relaxation import is_unstable

#: Numbers per backward pass, which limits the memory.
_CACHE = 2**15


class Parts(NamedTuple):
    """Parts of the box, each for one of the bounded functions.

    Attributes:
        which: index of the bounded function (D,).
        low: smallest inputs (D, N).
        high: largest inputs (D, N).
        lower: lower bounds (D, V) of the pre-activations of the kinks.
        upper: upper bounds (D, V) of the pre-activations of the kinks.
    """

    which: Tensor
    low: Tensor
    high: Tensor
    lower: Tensor
    upper: Tensor

    def take(self, some: Tensor | slice) -> Parts:
        """Select some of the parts."""
        return Parts(*(numbers[some] for numbers in self))

    @staticmethod
    def join(parts: list[Parts]) -> Parts:
        """Concatenate parts."""
        return Parts(*(torch.cat(numbers) for numbers in zip(*parts, strict=True)))

    def without_bounds(self) -> Parts:
        """Return the parts without bounds of pre-activations, which saves memory."""
        return self._replace(lower=self.lower[:, :0], upper=self.upper[:, :0])

    @property
    def widths(self) -> Tensor:
        """Widths (D, N) of the parts."""
        return self.high - self.low

    def halves(self, inputs: Tensor) -> Parts:
        """Halve each part at one of its inputs (D,): first all lower halves, then all upper halves."""
        at = inputs.unsqueeze(1)
        low, high = self.low.gather(1, at), self.high.gather(1, at)
        middle = torch.lerp(low, high, 0.5).clamp(low, high)
        return Parts.join(
            [self._replace(high=self.high.scatter(1, at, middle)), self._replace(low=self.low.scatter(1, at, middle))]
        )


class FunctionBounds(NamedTuple):
    """Lower bounds of the rows of the functions over parts, as linear functions of the input.

    Attributes:
        lower: lower bounds (D, R) over the parts; -inf for rows that a function does not have.
        slopes: coefficients (D, R, N) of the input.
        constants: constants (D, R), from which all errors are subtracted: slopes x + constants is a lower bound.
        losses: how much the relaxation of each kink can lower the bound of each row, (D, R, V), float32.
    """

    lower: Tensor
    slopes: Tensor
    constants: Tensor
    losses: Tensor

    def take(self, some: Tensor) -> FunctionBounds:
        """Select some of the parts."""
        return FunctionBounds(*(numbers[some] for numbers in self))


class PartBounds:
    """Bounds, over parts of the box of a reduced network, of functions of its input and kinks.

    Args:
        reduced: the network.
        functions: the bounded functions. Each is the maximum of its rows.
    """

    def __init__(self, reduced: Reduced, functions: list[Linear]) -> None:
        self.reduced = reduced
        self._rows = [reduced.rows(function) for function in functions]
        self._most = max(len(rows.constant) for rows in self._rows)
        lower = [block.lower for block in reduced.blocks]
        upper = [block.upper for block in reduced.blocks]
        none = reduced.center[:0]
        self._lower, self._upper = torch.cat([none, *lower]), torch.cat([none, *upper])

    def start(self, which: Tensor, low: Tensor, high: Tensor) -> Parts:
        """Return parts [low, high] (D, N), each for a function (D,), with the bounds of the box that contains them."""
        return Parts(which, low, high, *(end.expand(len(which), -1) for end in (self._lower, self._upper)))

    def whole(self, low: Tensor, high: Tensor) -> Parts:
        """Return the whole box (N,) as a part, once for each function."""
        which = torch.arange(len(self._rows), device=low.device)
        return self.start(which, *(end.expand(len(which), -1) for end in (low, high)))

    @torch.no_grad()
    def refine(self, parts: Parts) -> tuple[Parts, Tensor]:
        """Tighten the bounds of the pre-activations, block by block.

        Returns:
            The parts with tighter bounds, and shares (D, V, N): which share of the width of a pre-activation each input
            causes; 0 for neurons that were stable before.
        """
        reduced = self.reduced
        center, radius = _ball(parts)
        lower, upper = parts.lower.clone(), parts.upper.clone()
        lines: dict[int, Lines] = {}
        shares = center.new_zeros(*lower.shape, center.shape[1], dtype=torch.float32)
        for number, block in enumerate(reduced.blocks):
            if block.ceiling is None:
                lo, up = lower[:, block.columns], upper[:, block.columns]
                wanted = is_unstable(lo, up) if block.is_relu else torch.ones_like(lo, dtype=torch.bool)
                part, neuron = wanted.nonzero(as_tuple=True)
                step = max(1, _CACHE // max(1, len(block.bias)))
                for some in filter(len, torch.arange(len(part), device=part.device).split(step)):
                    of, which = part[some], neuron[some]
                    back = self._back(reduced.pre_activations(number, which), lines, of)
                    ends = reduced.minimum(back, center[of].repeat(2, 1), radius[of].repeat(2, 1)).view(2, -1)
                    effects = back.of[INPUT].view(2, len(of), -1).abs().sum(0) * radius[of]
                    total = effects.sum(1, keepdim=True).clamp(min=1e-300)
                    shares[of, which + block.columns.start] = (effects / total).float()
                    old = lo[of, which], up[of, which]
                    first, last = torch.fmax(old[0], ends[0]), torch.fmin(old[1], -ends[1])
                    # Bounds cross only by rounding, or if the part was cut until nothing is left of it.
                    lo[of, which], up[of, which] = torch.minimum(first, last), torch.maximum(first, last)
            lines[number] = block.relax(lower[:, block.columns], upper[:, block.columns], reduced.unit)
        return parts._replace(lower=lower, upper=upper), shares

    def _back(
        self, rows: Rows, lines: dict[int, Lines], part: Tensor, arrived: dict[int, Tensor] | None = None
    ) -> Rows:
        """Carry rows back to the input. Rows belong to parts (R,), or to the same parts n times."""
        return self.reduced.backward(rows, lambda number: lines[number].take(part), arrived=arrived)

    @torch.no_grad()
    def functions(self, parts: Parts) -> FunctionBounds:
        """Bound the functions over parts with known bounds of the pre-activations."""
        reduced, count = self.reduced, len(parts.which)
        lines = {
            number: block.relax(parts.lower[:, block.columns], parts.upper[:, block.columns], reduced.unit)
            for number, block in enumerate(reduced.blocks)
        }
        center, radius = _ball(parts)
        lower = center.new_full((count, self._most), -torch.inf)
        slopes = center.new_zeros(count, self._most, center.shape[1])
        constants = torch.full_like(lower, -torch.inf)
        losses = center.new_zeros(count, self._most, reduced.count, dtype=torch.float32)
        for function, rows in enumerate(self._rows):
            mine = (parts.which == function).nonzero().flatten()
            width = len(rows.constant)
            if not len(mine):
                continue
            of = mine.repeat_interleave(width)
            repeated = Rows(
                {source: a.repeat(len(mine), 1) for source, a in rows.of.items()},
                *(numbers.repeat(len(mine)) for numbers in rows[1:]),
            )
            arrived: dict[int, Tensor] = {}
            back = self._back(repeated, lines, of, arrived)
            lower[mine, :width] = reduced.minimum(back, center[of], radius[of]).view(-1, width)
            slopes[mine, :width] = back.of[INPUT].view(len(mine), width, -1)
            error = back.of[INPUT].abs() @ ((2 * len(reduced.center) + 8) * reduced.unit * reduced.magnitudes[INPUT])
            constant = back.constant - error
            if reduced.unit:
                constant = constant - 1.001 * back.lost - 2.0**-45 * (back.size + back.constant.abs())
            constants[mine, :width] = constant.view(-1, width)
            for number, coefficients in arrived.items():
                gaps = lines[number].gap[mine].unsqueeze(1)
                found = (coefficients.abs().view(len(mine), width, -1) * gaps).float()
                losses[mine, :width, reduced.blocks[number].columns] = found
        return FunctionBounds(lower, slopes, constants, losses)


def _ball(parts: Parts) -> tuple[Tensor, Tensor]:
    """Return centers and radii (D, N) of the parts. `Reduced.minimum` covers their rounding errors."""
    center = torch.lerp(parts.low, parts.high, 0.5)
    return center, torch.maximum(parts.high - center, center - parts.low)


@torch.no_grad()
def mix_rows(parts: Parts, bounded: FunctionBounds, steps: int = 30) -> tuple[Tensor, Tensor]:
    """Bound the largest row by the best mean of rows.

    Every weighted mean of rows is a lower bound of the largest row. Its minimum over a part is concave in the weights,
    and its gradient is the value of each row at the point of the minimum. The weights are changed by exponentiated
    gradients, and the best ones are kept.

    Returns:
        Lower bounds (D,) and the weights (D, R).
    """
    center, radius = _ball(parts)
    present = bounded.constants.isfinite()
    constants = torch.where(present, bounded.constants, 0.0)
    at_center = torch.einsum("drn,dn->dr", bounded.slopes, center) + constants
    single = bounded.lower.argmax(1, keepdim=True)
    best_weights = torch.zeros_like(constants).scatter(1, single, 1.0)
    best = bounded.lower.amax(1)
    sizes = constants.abs() + torch.einsum("drn,dn->dr", bounded.slopes.abs(), center.abs() + radius)
    weights = present.to(constants) / present.sum(1, keepdim=True).clamp(min=1)
    for step in range(steps):
        mixed = torch.einsum("dr,drn->dn", weights, bounded.slopes)
        values = at_center - torch.einsum("drn,dn->dr", bounded.slopes, mixed.sign() * radius)
        lower = (weights * values).sum(1) - 2.0**-44 * (weights * sizes).sum(1)
        better = lower > best
        best = torch.where(better, lower, best)
        best_weights = torch.where(better.unsqueeze(1), weights, best_weights)
        centered = values - (weights * values).sum(1, keepdim=True)
        scale = (centered.abs() * present).amax(1, keepdim=True).clamp(min=1e-300)
        weights = weights * torch.exp(2 * 0.9**step * centered / scale) * present
        weights = weights / weights.sum(1, keepdim=True).clamp(min=1e-300)
    return best, best_weights
