"""The problem that an exact verifier decides: can the outputs of a network over a box of inputs be unsafe?

The unsafe outputs y are a union of polyhedra. Each of them is a conjunction: C y + d <= 0 in every row. For an image
with label t they are the half-spaces z_t - z_k <= 0, one for each other class k. The *margin* of a conjunction is the
minimum over the box of the largest row of C y + d. If it is above 0, the conjunction can't hold.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn

from advibp.bounds import Box, Perturbation
from advibp.bounds.ball_ends import inner_ball
from advibp.bounds.linear.alpha_intermediate import optimize_intermediate
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounded import Rounded, ball_ends
from advibp.bounds.rounding import Rounding
from advibp.execution.own_copy import run_on_copy
from advibp.verify.exact import witness

#: A margin above this is a proof. Solvers and rounding may cause errors of up to this size.
PROVED = 1e-5


@dataclass(frozen=True)
class Answer:
    """Result of a search. `margin` is a lower bound of the smallest margin; `in_time` is False after a timeout."""

    margin: float
    counterexample: Tensor | None = None  # (1, ...), checked on the network itself
    in_time: bool = True

    @property
    def robust(self) -> bool:
        return self.counterexample is None and self.margin > PROVED


@dataclass(frozen=True)
class Question:
    """A network, a box (1, ...) of inputs, and the unsafe conjunctions (C (R, K), d (R,))."""

    net: nn.Module
    lower: Tensor
    upper: Tensor
    unsafe: Sequence[tuple[Tensor, Tensor]]
    strict: bool = False  # whether a counterexample must satisfy C y + d < 0
    real: bool = False  # whether proofs are about real arithmetic, without rounding
    #: Box of the counterexamples, if it is smaller because eps times a scale has no exact floating-point number.
    inner: tuple[Tensor, Tensor] | None = None

    @classmethod
    def robustness(
        cls,
        net: nn.Module,
        x: Tensor,
        label: int,
        eps: float,
        classes: int,
        real: bool = False,
        perturbation: Perturbation = PIXELS,
    ) -> Question:
        """Whether all inputs in the set of radius eps around x (1, ...) have its label.

        The box contains all numbers of the network's type in that set; for proofs in real arithmetic, all numbers. (For
        images these differ by a rounding error, which real arithmetic ignores.)
        """
        within, outer = perturbation.on(x).within, perturbation.outer_radius(eps, x)
        lower, upper = (end.double() for end in inner_ball(x, outer, within))
        unsafe, inner = against(label, classes), None
        if not perturbation.is_pixels:
            first, last = perturbation.inner_ends(x, eps)
            inner = first.double(), last.double()
            if real:
                lower, upper = ball_ends(x, outer, within)
        return cls(net, lower, upper, unsafe, strict=True, real=real, inner=inner)

    @cached_property
    def inputs(self) -> Box | Rounded:
        """The box in double precision."""
        lower, upper = self.lower.double(), self.upper.double()
        if self.real:
            return Box.from_bounds(lower, upper)
        return Rounded.between(lower, upper, Rounding(self.dtype, torch.float64, doubled=True))

    @property
    def own_inputs(self) -> Box | Rounded:
        """The box in the network's type."""
        if self.real:
            return Box.from_bounds(self.lower.to(self.dtype), self.upper.to(self.dtype))
        return Rounded.between(self.lower.double(), self.upper.double(), Rounding(self.dtype, self.dtype))

    @cached_property
    def bounds(self) -> LinearBounds:
        """Linear bounds in double precision. Verifiers may tighten their intermediate bounds."""
        return LinearBounds(self.net, self.inputs, wide=self.dtype)

    @cached_property
    def _crown(self) -> LinearBounds:
        return self.bounds.refine()

    @torch.no_grad()
    def refined(self) -> LinearBounds | None:
        """The bounds with intermediate bounds by CROWN; None if some of them are not finite."""
        bounds = self._crown
        ends = (end for box in bounds.intermediate_bounds.values() for end in box)
        return bounds if all(bool(end.isfinite().all()) for end in ends) else None

    @torch.no_grad()
    def broken_by(self, x: Tensor) -> Tensor | None:
        """The first counterexample (1, ...) among some points (B, ...), after moving them into the box.

        A counterexample lies in the box, and the network's outputs for it, in the network's precision, satisfy a
        conjunction in exact arithmetic. The network runs on that point alone, because its outputs in a batch may have
        other rounding errors. With `strict`, every evaluation of the network must satisfy a conjunction, except in real
        arithmetic.
        """
        points, inside = self._inside(x.to(self.lower))
        outputs = run_on_copy(self.net, points).double()
        unsafe = [(rows.to(outputs), offsets.to(outputs)) for rows, offsets in self.unsafe]
        near = torch.zeros_like(inside)
        for rows, offsets in unsafe:
            near |= witness.candidates(outputs, rows, offsets).to(near.device)
        for i in (near & inside).nonzero().flatten().tolist():
            point = points[i : i + 1]
            here = self._holds(outputs[i], unsafe) and self._holds(run_on_copy(self.net, point)[0], unsafe)
            if here and (not self.strict or self.real or self._always_holds(point, unsafe)):
                return point
        return None

    def _holds(self, output: Tensor, unsafe: Sequence[tuple[Tensor, Tensor]]) -> bool:
        return any(witness.holds(output, rows, offsets, strict=self.strict) for rows, offsets in unsafe)

    def _always_holds(self, point: Tensor, unsafe: Sequence[tuple[Tensor, Tensor]]) -> bool:
        """Whether every evaluation of the network at a point (1, ...) satisfies one of the conjunctions strictly."""
        outputs = self.net(Rounded.ball(point, 0.0, None))
        lower, upper = outputs.lower[0].double(), outputs.upper[0].double()
        for rows, offsets in unsafe:
            highest = rows.clamp(min=0) @ upper + rows.clamp(max=0) @ lower + offsets
            sizes = rows.abs() @ torch.maximum(lower.abs(), upper.abs()) + offsets.abs()
            if bool((highest + 2.0**-50 * (2 + rows.shape[1]) * sizes < 0).all()):
                return True
        return False

    def _inside(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The points nearest to x (B, ...) in the network's precision, and which of them are in the box (B,).

        A box may contain no number of the network's precision, for example in float32 if both its ends are 0.1.
        """
        lower, upper = self.inner or (self.lower, self.upper)
        near = torch.minimum(torch.maximum(x, lower), upper).to(self.dtype)
        up, down = (torch.full_like(near, end) for end in (math.inf, -math.inf))
        inner = torch.where(near.to(x) > upper, near.nextafter(down), near)
        inner = torch.where(near.to(x) < lower, near.nextafter(up), inner)
        inside = (inner.to(x) >= lower) & (inner.to(x) <= upper)
        return torch.where(inside, inner, near), inside.flatten(1).all(1)

    @property
    def dtype(self) -> torch.dtype:
        return like(self.net).dtype

    def linear_margin(self, k: int) -> float:
        """Lower bound of a conjunction's margin by linear bounds: the largest lower bound of its rows."""
        return self._linear_margins([k])[0]

    def linear_margins(self) -> list[float]:
        """Lower bounds of the margins of all conjunctions by linear bounds."""
        return self._linear_margins(range(len(self.unsafe)))

    @cached_property
    def refined_margins(self) -> list[float]:
        """The margins by linear bounds, after the intermediate bounds were refined."""
        _ = self._crown
        return self.linear_margins()

    def tighten(self, *, until: float) -> None:
        """Optimize the intermediate bounds by alpha-CROWN until a time of `time.monotonic`. The first call counts."""
        if "_tightened" not in self.__dict__:
            self.__dict__["_tightened"] = True
            optimize_intermediate(self._crown, deadline=until)
            self.__dict__.pop("refined_margins", None)

    def _linear_margins(self, which: Sequence[int]) -> list[float]:
        if not len(which):
            return []
        conjunctions = [self.conjunction(k) for k in which]
        rows, offsets = (torch.cat(parts) for parts in zip(*conjunctions, strict=True))
        with torch.no_grad():
            margins = self.bounds.lower(self.bounds.tape.output, rows) + offsets
            margins = margins - 2.0**-50 * (margins.abs() + 2 * offsets.abs())
        of_rows = margins.split([len(d) for _, d in conjunctions])
        return [max((m for m in part.tolist() if not math.isnan(m)), default=-math.inf) for part in of_rows]

    def conjunction(self, k: int) -> tuple[Tensor, Tensor]:
        """C (R, K) and d (R,) in double precision, on the network's device."""
        rows, offsets = (part.to(self.bounds.box.center) for part in self.unsafe[k])
        return rows, offsets

    def about(self, which: Sequence[int]) -> Question:
        """The same question with some of the conjunctions."""
        return replace(self, unsafe=[self.unsafe[k] for k in which])


def against(label: int, classes: int) -> list[tuple[Tensor, Tensor]]:
    """The half-spaces z_label - z_k <= 0 in which another class wins."""
    one = torch.eye(classes, dtype=torch.float64)
    return [(one[label] - one[k : k + 1], torch.zeros(1, dtype=torch.float64)) for k in range(classes) if k != label]


def like(net: nn.Module) -> Tensor:
    """A tensor with the type and device of a network, which may have no weights."""
    return next(net.parameters(), torch.empty(0))


def doubled(net: nn.Module) -> nn.Module:
    """A copy of a network in double precision."""
    return copy.deepcopy(net).double()
