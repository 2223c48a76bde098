"""Perturbation: by how much each element of an input may change, and the range of valid inputs.

For a radius eps the set around an input x is

    { x' : |x'_i - x_i| <= eps scale_i  and  low_i <= x'_i <= high_i  for every element i }

eps is one number, which schedules, records and tables use. `scale` and the range are the same for all inputs of a data
set. For images in [0, 1] the scale is 1 for every pixel: the l_inf ball of radius eps, clipped to [0, 1].

The product eps scale_i is a real number, which floating-point numbers only approximate. Proofs use `outer_radius`,
which is not smaller, attacks and counterexamples use `inner_radius`, which is not larger, and `contains` is exact. A
proof therefore covers the documented set, and every counterexample lies in it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from advibp.bounds.ball_ends import feasible, inner_ball
from advibp.bounds.box import Box, Range, is_unit_range
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding
from advibp.bounds.zonotope import Zonotope
from advibp.errors import UserError

Limit = float | Sequence[float | None] | Tensor | None

#: Relative error of a product of two float64 numbers, and of the scale that `from_radii` computes, with room.
_ERROR = 2.0**-50


@dataclass(frozen=True, eq=False)
class Perturbation:
    """The set of allowed changes of an input, up to the factor eps.

    Args:
        low: lowest valid value: a number, or one number per element, broadcast to the shape of an input; None or -inf
            for no limit. Default: 0, as for pixels.
        high: highest valid value, in the same way; inf or None for no limit. Default: 1.
        scale: radius of each element relative to eps, broadcast to the shape of an input. An element with scale 0 never
            changes. Default: None, 1 for every element.

    Raises:
        UserError: if a number is NaN, `low` exceeds `high`, or the scale is negative, infinite or 0 everywhere.

    Examples:
        >>> import torch
        >>> from advibp.bounds import Perturbation
        >>> ages_and_incomes = Perturbation(low=0.0, high=None, scale=[1.0, 500.0])
        >>> box = ages_and_incomes.box(torch.tensor([[1.0, 3000.0]]), eps=2.0)
        >>> box.lower, box.upper
        (tensor([[   0., 2000.]]), tensor([[3.0000e+00, 4.0000e+03]]))
    """

    low: float | Tensor = 0.0
    high: float | Tensor = 1.0
    scale: Tensor | None = None

    def __init__(self, low: Limit = 0.0, high: Limit = 1.0, scale: Sequence[float] | Tensor | None = None) -> None:
        low, high = _numbers("low", low, -math.inf), _numbers("high", high, math.inf)
        ends = [torch.as_tensor(end, dtype=torch.float64) for end in (low, high)]
        try:
            torch.broadcast_shapes(*(end.shape for end in ends))
        except RuntimeError:
            shapes = " and ".join(str(tuple(end.shape)) for end in ends)
            raise UserError(f"low and high have the shapes {shapes}; give one number per element.") from None
        if not bool((ends[0] <= ends[1]).all()):
            raise UserError("The range of the inputs is empty: a lowest value is above the highest; check their order.")
        if bool((ends[0] == math.inf).any()) or bool((ends[1] == -math.inf).any()):
            raise UserError("The range of the inputs is empty: it starts at inf or ends at -inf; check its numbers.")
        for name, value in (("low", low), ("high", high), ("scale", None if scale is None else _scale(scale))):
            object.__setattr__(self, name, value)

    @classmethod
    def from_radii(
        cls, radii: Sequence[float] | Tensor, low: Limit = 0.0, high: Limit = 1.0
    ) -> tuple[float, Perturbation]:
        """Return eps and the perturbation in which each element has its own radius.

        eps is the largest radius, and the scale is relative to it.

        Args:
            radii: radius of each element, in the units of the inputs, broadcast to the shape of an input; 0 for
                elements that do not change.
            low: see the class.
            high: see the class.

        Examples:
            >>> from advibp.bounds import Perturbation
            >>> eps, perturbation = Perturbation.from_radii([0.1, 0.05, 0.0], low=None, high=None)
            >>> eps, perturbation.scale.tolist()
            (0.1, [1.0, 0.5, 0.0])
        """
        values = torch.as_tensor(_scale(radii, "The radii"))
        eps = float(values.max())
        scale = values / eps
        if bool(((values > 0) & (scale < torch.finfo(torch.float64).tiny)).any()):
            raise UserError("A radius is more than 1e307 times as large as another one; give radii of similar size.")
        return eps, cls(low, high, scale)

    @property
    def within(self) -> Range:
        """The range as attacks and sets take it: (low, high), or None if there is no limit."""
        if isinstance(self.low, float) and isinstance(self.high, float) and self.low == -math.inf == -self.high:
            return None
        return self.low, self.high

    @property
    def is_pixels(self) -> bool:
        """Whether this is the set for images: one radius for all elements, and the range [0, 1]."""
        return self.scale is None and is_unit_range((self.low, self.high))

    def on(self, x: Tensor) -> Perturbation:
        """Return this perturbation on the device of x, with the range rounded to the dtype of x.

        Inputs are rounded to that dtype too. Rounding is monotone, so an input in the range stays in the rounded range.
        """
        if self.is_pixels or (self.within is None and self.scale is None):
            return self
        low, high = (
            end.to(x) if isinstance(end, Tensor) else float(torch.tensor(end, dtype=x.dtype))
            for end in (self.low, self.high)
        )
        new = replace(self)
        object.__setattr__(new, "low", low)
        object.__setattr__(new, "high", high)
        if self.scale is not None:
            object.__setattr__(new, "scale", self.scale.to(x.device))
        return new

    def check_shape(self, shape: Sequence[int]) -> None:
        """Raise a UserError unless the range and the scale broadcast to inputs of this shape."""
        for name, value in (("low", self.low), ("high", self.high), ("scale", self.scale)):
            if not isinstance(value, Tensor):
                continue
            try:
                fits = torch.broadcast_shapes(value.shape, tuple(shape)) == tuple(shape)
            except RuntimeError:
                fits = False
            if not fits:
                raise UserError(
                    f"{name} has the shape {tuple(value.shape)}, which does not fit inputs of shape {tuple(shape)}; "
                    "give one number per element."
                )

    # ------------------------------------------------------------------------------------------ radii

    def radius(self, eps: float | Tensor, x: Tensor) -> float | Tensor:
        """Return eps scale in the dtype of x, rounded to nearest.

        Args:
            eps: a number, or one per input, (B, 1, ...).
            x: inputs, (B, ...).
        """
        return eps if self.scale is None else self._product(eps, x).to(x.dtype)

    def outer_radius(self, eps: float | Tensor, x: Tensor) -> float | Tensor:
        """Return float64 radii that are not smaller than the exact product eps scale; eps itself without a scale."""
        if self.scale is None:
            return eps
        product = self._product(eps, x)
        wider = (product * (1 + _ERROR)).nextafter(torch.full_like(product, math.inf))
        return torch.where(self._is_exact(), product, wider)

    def inner_radius(self, eps: float | Tensor, x: Tensor) -> float | Tensor:
        """Return float64 radii that are not larger than the exact product eps scale; eps itself without a scale."""
        if self.scale is None:
            return eps
        product = self._product(eps, x)
        narrower = (product * (1 - _ERROR)).nextafter(torch.full_like(product, -math.inf)).clamp(min=0.0)
        return torch.where(self._is_exact(), product, narrower)

    def _product(self, eps: float | Tensor, x: Tensor) -> Tensor:
        assert self.scale is not None
        return (eps.double() if isinstance(eps, Tensor) else eps) * self.scale.to(x.device)

    def _is_exact(self) -> Tensor:
        """Where the product with any eps is exact."""
        assert self.scale is not None
        return (self.scale == 0) | (self.scale == 1)

    # ------------------------------------------------------------------------------------------ sets

    def ends(self, x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the lower and upper ends of the set in the shape and dtype of x, up to rounding."""
        return feasible(x, self.radius(eps, x), self.on(x).within)

    def inner_ends(self, x: Tensor, eps: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the smallest and largest numbers of x's dtype that certainly lie in the set."""
        return inner_ball(x, self.inner_radius(eps, x), self.on(x).within)

    def box(self, x: Tensor, eps: float | Tensor) -> Box:
        """Return the set as a `Box` (B, ...), for bounds in real arithmetic."""
        return Box.ball(x, self.radius(eps, x), self.on(x).within)

    def zonotope(self, x: Tensor, eps: float | Tensor, *, max_symbols: int | None = None) -> Zonotope:
        """Return the set as a `Zonotope` (B, ...)."""
        return Zonotope.ball(x, self.radius(eps, x), self.on(x).within, max_symbols=max_symbols)

    def rounded(self, x: Tensor, eps: float | Tensor) -> Rounded:
        """Return a `Rounded` box (B, ...) that contains the set of real numbers, for proofs that cover rounding."""
        return Rounded.ball(x, self.outer_radius(eps, x), self.on(x).within)

    def unchecked_rounded(self, x: Tensor, eps: Tensor, rounding: Rounding) -> Rounded:
        """Return `rounded` for inputs in the range and for a finite eps. This perturbation is on the device of x."""
        return Rounded.unchecked_ball(x, self.outer_radius(eps, x), self.within, rounding)

    def contains(self, x: Tensor, points: Tensor, eps: float) -> Tensor:
        """Decide in exact arithmetic which points lie in the set.

        Args:
            x: inputs, (B, ...).
            points: one point for each input, (B, ...).
            eps: radius.

        Returns:
            (B,) of bool.
        """
        own = self.on(x)
        scale = torch.ones((), dtype=torch.float64) if own.scale is None else own.scale
        columns = [
            (part.double() if isinstance(part, Tensor) else torch.tensor(part, dtype=torch.float64))
            .cpu()
            .expand(x.shape)
            .flatten(1)
            .tolist()
            for part in (x, points, scale, own.low, own.high)
        ]
        rows = [all(_is_in(eps, *values) for values in zip(*row, strict=True)) for row in zip(*columns, strict=True)]
        return torch.tensor(rows, dtype=torch.bool, device=x.device)

    def distance(self, x: Tensor, points: Tensor) -> Tensor:
        """Return the smallest eps (B,), up to rounding, whose set around x (B, ...) contains the points (B, ...)."""
        change = (points - x).abs()
        if self.scale is None:
            return change.flatten(1).amax(1)
        scale = self.scale.to(x.device)
        share = torch.where(change > 0, change.double() / scale, 0.0)  # inf where an element must not change
        return share.to(x.dtype).flatten(1).amax(1)

    def widest(self) -> float:
        """Return the eps from which on the set is the whole range; inf if an element that can change has no limit."""
        scale = torch.ones((), dtype=torch.float64) if self.scale is None else self.scale
        low, high = (torch.as_tensor(end, dtype=torch.float64) for end in (self.low, self.high))
        shares = (high.to(scale) - low.to(scale)) / scale
        return float(torch.where(scale > 0, shares, 0.0).max())

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that identify this set; {} for images, whose set is the default."""
        if self.is_pixels:
            return {}
        parts = {"low": self.low, "high": self.high, "scale": self.scale}
        return {
            name: torch.as_tensor(part, dtype=torch.float64, device="cpu")
            for name, part in parts.items()
            if part is not None
        }

    def as_dict(self) -> dict[str, Any]:
        """Return low, high and scale as plain data for JSON, where None is no limit; {} for images.

        `Perturbation(**perturbation.as_dict())` is the same set.
        """
        return {name: _plain(part.tolist()) for name, part in self.state().items()}

    def __repr__(self) -> str:
        parts = {"low": self.low, "high": self.high, "scale": self.scale}
        shown = {k: v.tolist() if isinstance(v, Tensor) else v for k, v in parts.items() if v is not None}
        return f"Perturbation({', '.join(f'{name}={value}' for name, value in shown.items())})"


def _is_in(eps: float, x: float, point: float, scale: float, low: float, high: float) -> bool:
    if not (math.isfinite(point) and low <= point <= high):
        return False
    return abs(Fraction(point) - Fraction(x)) <= Fraction(eps) * Fraction(scale)


def _filled(value: Any, missing: float) -> Any:
    """Replace None, also in lists, by a number."""
    if isinstance(value, list | tuple):
        return [_filled(each, missing) for each in value]
    return missing if value is None else value


def _plain(value: Any) -> Any:
    """Replace infinite numbers, also in lists, by None."""
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value if math.isfinite(value) else None


def _numbers(name: str, value: Any, missing: float = math.nan) -> float | Tensor:
    """Return a float, or a float64 tensor, without NaN. None is `missing`."""
    try:
        numbers = torch.as_tensor(_filled(value, missing), dtype=torch.float64, device="cpu").detach()
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise UserError(f"{name} is {value!r}, but must be a number, or one number per element.") from None
    if bool(numbers.isnan().any()) or numbers.numel() == 0:
        raise UserError(f"{name} is {value!r}, but must hold numbers, not NaN.")
    return float(numbers) if numbers.dim() == 0 else numbers.clone()


def _scale(value: Any, name: str = "The scale") -> Tensor:
    scale = torch.as_tensor(_numbers(name, value), dtype=torch.float64)
    if not bool(((scale >= 0) & scale.isfinite()).all()) or not bool((scale > 0).any()):
        raise UserError(f"{name} must be finite and not negative, and above 0 for at least one element; got {value!r}.")
    return scale


#: The set for images: the l_inf ball, clipped to [0, 1].
PIXELS = Perturbation()
