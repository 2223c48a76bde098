"""The kinks of a network over a box, and all its values as linear functions of the input and the kinks.

A *kink* is an unstable ReLU, or a max-pooling window whose largest element the bounds do not determine. Every other
operation is affine over the box. Every value is therefore a linear function of the input and of the outputs of earlier
kinks. A backward pass that stops at kinks computes these functions. An exact solver needs nothing else of the network,
and a network that was trained to be certified has few kinks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from advibp.bounds.domain import unsupported, without_autocast
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.relaxation import (
    PIECEWISE_LINEAR,
    MaxPoolRelaxation,
    SShaped,
    is_unstable,
)

#: A search stores V (N + V) numbers for N inputs and V kinks. Networks that need more than this are not searched.
MOST_NUMBERS = 2**28


@dataclass(frozen=True)
class Linear:
    """Linear functions x . inputs + v . kinks + constants of the input x (N,) and of the outputs v (V,) of the kinks.

    Attributes:
        inputs: coefficients (R, N) of the input.
        kinks: coefficients (R, V) of the outputs of the kinks.
        constants: constants (R,).
        slack: the maximal difference (R,) to the network's values, by rounding errors; 0 in real arithmetic.
    """

    inputs: Tensor
    kinks: Tensor
    constants: Tensor
    slack: Tensor

    def __neg__(self) -> Linear:
        return Linear(-self.inputs, -self.kinks, -self.constants, self.slack)


@dataclass(frozen=True)
class UnstableRelus:
    """The unstable ReLUs max(z, slope z) of one activation.

    Attributes:
        pre_activation: node of z.
        elements: their indices (K,) in the flattened value of this node.
        lower: lower bounds (K,) of z.
        upper: upper bounds (K,) of z.
        slope: slope below 0.
    """

    pre_activation: int
    elements: Tensor
    lower: Tensor
    upper: Tensor
    slope: float

    @property
    def outputs(self) -> Tensor:
        """The indices (K,) of their outputs in the flattened value of the activation."""
        return self.elements


@dataclass(frozen=True)
class UndecidedWindows:
    """The windows of one max pooling in which more than one element z may be the largest.

    Attributes:
        pre_activation: node of the pooling's input.
        outputs: their indices (K,) in the flattened value of the pooling.
        elements: for each window, the indices of the elements that may be the largest.
        lower: for each window, lower bounds of these elements.
        upper: for each window, upper bounds of these elements.
    """

    pre_activation: int
    outputs: Tensor
    elements: list[Tensor]
    lower: list[Tensor]
    upper: list[Tensor]


@dataclass(frozen=True)
class Curves:
    """The neurons of one activation that is not piecewise linear, such as a sigmoid: all of them count as kinks.

    Attributes:
        pre_activation: node of the activation's input.
        elements: their indices (K,) in the flattened value of this node, and of the activation.
        lower: lower bounds (K,) of the input.
        upper: upper bounds (K,) of the input.
        relaxation: the activation.
    """

    pre_activation: int
    elements: Tensor
    lower: Tensor
    upper: Tensor
    relaxation: SShaped

    @property
    def outputs(self) -> Tensor:
        """The indices (K,) of their outputs in the flattened value of the activation."""
        return self.elements


#: The kinks of one activation.
AnyKinks = UnstableRelus | UndecidedWindows | Curves


class Kinks:
    """The kinks of a network over the box of one image, and its other values as linear functions of them.

    Args:
        bounds: linear bounds of the network for one image.
        curves: whether activations that are not piecewise linear count as kinks. Default: False, they are refused.

    Attributes:
        of: activation (node) -> its kinks.
        count: V, the number of all kinks.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp import Box
        >>> from advibp.bounds import crown
        >>> from advibp.bounds.linear.kinks import Kinks
        >>> net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
        >>> kinks = Kinks(crown(net, Box(center=torch.zeros(1, 2), radius=10.0)))
        >>> 0 <= kinks.count <= 4
        True
    """

    def __init__(self, bounds: LinearBounds, *, curves: bool = False) -> None:
        if len(bounds.box) != 1:
            unsupported(f"kinks are computed for one image, not for {len(bounds.box)}", "select one of them.")
        self.bounds, self._curves = bounds, curves
        self.of = {number: self._kinks_of(number) for number in bounds.activations}
        starts = torch.tensor([0, *(len(kinks.outputs) for kinks in self.of.values())]).cumsum(0).tolist()
        self._columns = {
            number: slice(start, stop) for number, start, stop in zip(self.of, starts, starts[1:], strict=False)
        }
        self.count: int = starts[-1]

    def _kinks_of(self, number: int) -> AnyKinks:
        """Return the kinks of an activation."""
        bounds = self.bounds
        pre_activation, relaxation = bounds.tape.nodes[number].refs[0], bounds.relaxation(number)
        lower, upper = (end.flatten() for end in bounds.intermediate_bounds[pre_activation])
        if isinstance(relaxation, MaxPoolRelaxation):
            return _undecided_windows(pre_activation, relaxation, lower, upper)
        func = bounds.tape.nodes[number].func
        if func not in PIECEWISE_LINEAR:
            if self._curves and relaxation.curve is not None and len(bounds.tape.nodes[number].args) <= 1:
                every = torch.arange(lower.numel(), device=lower.device)
                return Curves(pre_activation, every, lower, upper, relaxation.curve)
            unsupported(
                f"{bounds.tape.name(number)} is not piecewise linear, so milp and refinezono can't verify it",
                "verify it by crown, alpha-crown or bab.",
            )
        unstable = is_unstable(lower, upper).nonzero().flatten()
        return UnstableRelus(pre_activation, unstable, lower[unstable], upper[unstable], relaxation.slope_range[0])

    @property
    def has_curves(self) -> bool:
        """Whether some of them are neurons of activations that are not piecewise linear."""
        return any(isinstance(kinks, Curves) for kinks in self.of.values())

    @property
    def too_many(self) -> bool:
        """Whether a search would need too much memory."""
        return self.count * (self.bounds.box.center.numel() + self.count) > MOST_NUMBERS

    def columns(self, number: int) -> slice:
        """Return the indices of an activation's kinks among all kinks."""
        return self._columns[number]

    def before(self, index: int) -> dict[int, AnyKinks]:
        """Return the kinks, by activation, on which the value of a node may depend."""
        needed = set(self.bounds.tape.needed(0, index))
        return {number: kinks for number, kinks in self.of.items() if number in needed}

    def elements(self, index: int, where: Tensor) -> Linear:
        """Return elements (K,) of the flattened value of a node as linear functions."""
        shape = self.bounds.tape.nodes[index].shape
        assert shape is not None
        rows = self.bounds.box.center.new_zeros(len(where), shape[1:].numel())
        rows[torch.arange(len(where), device=where.device), where] = 1.0
        return self.linear(index, rows.view(-1, *shape[1:]))

    @torch.no_grad()
    def linear(self, index: int, a: Tensor, offsets: Tensor | float = 0.0) -> Linear:
        """Return rows A (R, ...) of the value of a node, plus offsets (R,), as linear functions."""
        parts = [self._linear(index, part) for part in a.split(self.bounds.at_once)]
        inputs, kinks, constants, slack = (torch.cat(same) for same in zip(*parts, strict=True))
        constants = constants + offsets
        if self.bounds.rounding is not None:
            slack = slack + 2.0**-50 * constants.abs()
        return Linear(inputs, kinks, constants, slack)

    def _linear(self, index: int, a: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Carry rows back to the input and the kinks."""
        kinks = a.new_zeros(len(a), self.count)

        def through(number: int, rows: Tensor, _: Tensor | slice) -> tuple[Tensor, Tensor]:
            kinks[:, self._columns[number]] += rows.flatten(1)[:, self.of[number].outputs]
            return self._backward_stable(number, rows), rows.new_zeros(len(rows))

        with without_autocast(a.device.type):
            back = self.bounds.backward(index, a, through)
        return back.a.flatten(1), kinks, back.constant, back.lost + 2.0**-45 * back.size

    def _backward_stable(self, number: int, rows: Tensor) -> Tensor:
        """Carry rows back through the stable part of an activation; kinks get zero."""
        relaxation = self.bounds.relaxation(number)
        if isinstance(relaxation, MaxPoolRelaxation):
            return relaxation.spread(rows.flatten(2).unsqueeze(2) * relaxation.certain)
        return rows * self._slopes[number]

    @cached_property
    def _slopes(self) -> dict[int, Tensor]:
        all_slopes = {}
        for number, kinks in self.of.items():
            if isinstance(kinks, UnstableRelus):
                lower, _ = self.bounds.intermediate_bounds[kinks.pre_activation]
                slopes = torch.full_like(lower, kinks.slope).masked_fill(lower >= 0, 1.0)
                slopes.view(-1)[kinks.elements] = 0.0
                all_slopes[number] = slopes
            elif isinstance(kinks, Curves):
                all_slopes[number] = torch.zeros_like(self.bounds.intermediate_bounds[kinks.pre_activation][0])
        return all_slopes


def _undecided_windows(
    pre_activation: int, relaxation: MaxPoolRelaxation, lower: Tensor, upper: Tensor
) -> UndecidedWindows:
    """Return the windows without a certain maximum. Window l of channel c has the number c L + l, as in the output."""
    _, channels, size, windows = relaxation.pick.shape
    number = torch.arange(1.0, lower.numel() + 1, dtype=torch.float64, device=lower.device).view(relaxation.size)
    origin = _windows(number, relaxation).view(channels, size, windows).long() - 1  # -1 for padding
    origin = origin.transpose(1, 2).flatten(0, 1)  # (C L, n)
    outputs = (relaxation.certain.sum(2)[0].flatten() == 0).nonzero().flatten()
    elements, lowers, uppers = [], [], []
    for candidates in origin[outputs]:
        candidates = candidates[candidates >= 0]
        largest_lower = lower[candidates].max()
        candidates = candidates[(upper[candidates] > largest_lower) | (lower[candidates] >= largest_lower)]
        elements.append(candidates)
        lowers.append(lower[candidates])
        uppers.append(upper[candidates])
    return UndecidedWindows(pre_activation, outputs, elements, lowers, uppers)


def _windows(x: Tensor, relaxation: MaxPoolRelaxation) -> Tensor:
    """Return the elements of each window, 0 for padding."""
    return torch.nn.functional.unfold(x.flatten(0, 1)[:, None], **relaxation.fold)
