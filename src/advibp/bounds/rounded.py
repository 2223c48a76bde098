"""Rounded: a set that contains everything a network can compute in floating-point arithmetic.

`net(Rounded.ball(x, eps))` runs the user's module on a Box or a Zonotope, and widens that set after every operation by
the operation's rounding error (rules/rounding_errors.py). The result contains the output of every evaluation of the
network: for every order of its sums, with or without fused multiply-add, on any hardware that adds and multiplies as
IEEE 754 says. docs/arithmetic.md has the theorem and its proof.
"""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor

from advibp.bounds.box import Box, Range, margin_radius
from advibp.bounds.domain import Domain, Rules, without_autocast
from advibp.bounds.rounding import ROOM, Rounding, size
from advibp.bounds.rules.rounding_errors import product
from advibp.bounds.zonotope import ReluBounds, Zonotope
from advibp.errors import UserError


class Rounded(Domain):
    """A Box or a Zonotope that contains every value that the network may compute.

    Args:
        set: the Box or Zonotope (B, ...), in the arithmetic of the bounds.
        rounding: the arithmetic of the network and of the bounds.
        keeps_errors: whether all sets computed from this one keep the rounding error of their operation. Default:
            False.
        error: the rounding error (B, ...) of the operation that computed this set. None if it is exact, and if
            `keeps_errors` is False.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp.bounds import Box, Rounded
        >>> net, x = nn.Linear(1000, 2), torch.rand(1, 1000)
        >>> real, rounded = net(Box.ball(x, 0.01)), net(Rounded.ball(x, 0.01))
        >>> bool((rounded.lower < real.lower).all() and (rounded.upper > real.upper).all())
        True
    """

    __slots__ = ("__weakref__", "_changes", "_set", "error", "keeps_errors", "rounding")

    def __init__(
        self, set: Box | Zonotope, rounding: Rounding, *, keeps_errors: bool = False, error: Tensor | None = None
    ) -> None:
        self._set, self._changes, self.rounding = set, set._changes, rounding
        self.keeps_errors, self.error = keeps_errors, error

    @classmethod
    def ball(
        cls, x: Tensor, eps: float | Tensor, within: Range = (0.0, 1.0), *, arithmetic: torch.dtype | None = None
    ) -> Rounded:
        """The set of all points within eps of x in the maximum norm, intersected with a range.

        Args:
            x: images (B, ...) in the network's dtype.
            eps: radius, a number or a tensor that broadcasts to x; finite and not negative. It is used as an exact real
                number.
            within: (lowest, highest) value of the inputs, or None for no range. Default: (0, 1).
            arithmetic: dtype in which the network runs, float32 or float64. Default: that of x.

        Returns:
            A Rounded box (B, ...).
        """
        Box.ball(x, eps, within)  # checks the arguments
        return cls.unchecked_ball(x, eps, within, Rounding(arithmetic or x.dtype, x.dtype))

    @classmethod
    def unchecked_ball(cls, x: Tensor, eps: float | Tensor, within: Range, rounding: Rounding) -> Rounded:
        """`ball` for arguments that were checked: x is in the range, and eps is finite and not negative.

        If `rounding.branchless`, the operations do not depend on values.
        """
        return cls.between(*_ball_ends(x, eps, within), rounding)

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, rounding: Rounding) -> Rounded:
        """The box [lower, upper].

        Args:
            lower: lower bounds (B, ...), float64.
            upper: upper bounds (B, ...), float64, at least `lower`.
            rounding: the arithmetic of the network and of the bounds.
        """
        if not rounding.branchless and not bool((lower <= upper).all()):
            raise UserError("Rounded.between needs lower <= upper for all elements; check their order.")
        center = torch.lerp(lower, upper, 0.5).to(rounding.bounds)
        wide = center.double()
        radius = torch.maximum(upper - wide, wide - lower) * (1 + 2.0**-50)
        radius = (radius + ROOM * rounding.w * (wide.abs() + radius)).to(rounding.bounds)
        radius = radius.nextafter(torch.full_like(radius, math.inf))
        return cls(Box._of(center, radius), rounding)

    def zonotope(self, relu_bounds: ReluBounds | None = None) -> Rounded:
        """Return the same set of inputs as a Zonotope. See `Zonotope` for `relu_bounds`."""
        assert isinstance(self._set, Box)
        return Rounded(Zonotope.from_box(self._set, relu_bounds=relu_bounds), self.rounding)

    def keeping_errors(self) -> Rounded:
        """Return the same set. All sets computed from it have the rounding error of their operation in `error`."""
        return Rounded(self._set, self.rounding, keeps_errors=True)

    def take(self, keep: Tensor | slice) -> Rounded:
        """Return the set of some images, given by their indices or a slice."""
        assert isinstance(self._set, Box)
        box = Box._of(self._set.center[keep], self._set.radius[keep])
        return Rounded(box, self.rounding, keeps_errors=self.keeps_errors)

    def _like(self, set: Box | Zonotope, error: Tensor | None = None) -> Rounded:
        return Rounded(set, self.rounding, keeps_errors=self.keeps_errors, error=error if self.keeps_errors else None)

    def _become(self, other: Rounded) -> Rounded:
        """Change this set in place."""
        self._set = self._set._become(other._set)  # type: ignore[arg-type]
        self.rounding, self.error = other.rounding, other.error
        return self

    @property
    def _center(self) -> Tensor:
        return self._set._center

    @property
    def set(self) -> Box | Zonotope:
        """The Box or Zonotope."""
        return self._set

    @property
    def box(self) -> Box:
        """A box that contains this set, with room for one more rounding."""
        return self._set if isinstance(self._set, Box) else summed(self).to_box()

    @property
    def center(self) -> Tensor:
        """The center, (B, ...)."""
        return self._set.center

    @property
    def radius(self) -> Tensor:
        """The radius of `box`, (B, ...)."""
        return self.box.radius

    @property
    def lower(self) -> Tensor:
        """Lower bounds (B, ...) of the values that the network computes."""
        return self.box.lower

    @property
    def upper(self) -> Tensor:
        """Upper bounds (B, ...) of the values that the network computes."""
        return self.box.upper

    def lower_margins(self, y: Tensor) -> Tensor:
        """Compute lower bounds of z_y - z_k for the logits z that the network computes.

        The exact output of the last linear layer is bounded as in `Box.margins`. The rounding errors of both logits are
        added.

        Args:
            y: labels (B,).

        Returns:
            Lower bounds (B, K); 0 for k = y.
        """
        center, radius = self._margins(y)
        return center - radius

    def upper_margins(self, y: Tensor) -> Tensor:
        """Compute upper bounds (B, K) of z_y - z_k; 0 for k = y."""
        center, radius = self._margins(y)
        return center + radius

    def _margins(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return center and radius (B, K) of the margins, with room for their sum."""
        if isinstance(self._set, Zonotope):
            zonotope, label = self._set.margins(y), y.unsqueeze(1)
            share = 1 + 1.1 * self.rounding.bounds_sum(len(zonotope.symbols))
            sizes = size(self.box).mul_(2 * ROOM * self.rounding.w)
            radius = zonotope.radius * share + sizes + sizes.gather(1, label)
            return zonotope.center, radius.scatter(1, label, 0.0)
        box = self._set
        center, radius = box._margins(y, check=not self.rounding.branchless)  # raises if there are no margins
        if box.last is None:
            return center, radius * (1 + 8 * self.rounding.w)
        last, label = box.last, y.unsqueeze(1)
        with without_autocast(self.device.type), torch.no_grad():
            layer = product(
                torch.nn.functional.linear, "linear", (last.input, last.weight, last.bias), {}, self.rounding
            )
            error = layer.error(self.rounding, last.input)
            real = margin_radius(last.weight, last.input.radius, y)
            radius = real * (1 + 4 * self.rounding.bounds_sum(layer.terms)) + error + error.gather(1, label)
            return center, radius.scatter(1, label, 0.0)

    def __copy__(self) -> Rounded:
        """Return the same set. In-place operations on one do not change the other."""
        return Rounded(copy.copy(self._set), self.rounding, keeps_errors=self.keeps_errors, error=self.error)

    def __repr__(self) -> str:
        return f"Rounded({self._set!r}, network={self.rounding.network})"


RULES = Rounded.rules = Rules(Rounded)


def ball_ends(x: Tensor, eps: float | Tensor, within: Range) -> tuple[Tensor, Tensor]:
    """Return float64 bounds (B, ...) of a box that contains the ball of real numbers around x, within a range."""
    Box.ball(x, eps, within)  # checks the arguments
    return _ball_ends(x, eps, within)


def _ball_ends(x: Tensor, eps: float | Tensor, within: Range) -> tuple[Tensor, Tensor]:
    """`ball_ends` for arguments that were checked."""
    wide = x.double()
    radius = eps.double() if isinstance(eps, Tensor) else eps
    infinite = torch.full_like(wide, math.inf)
    lower, upper = (wide - radius).nextafter(-infinite), (wide + radius).nextafter(infinite)
    if within is None:
        return lower, upper
    low, high = (end.double() if isinstance(end, Tensor) else end for end in within)
    return lower.clamp(min=low), upper.clamp(max=high)


def summed(value: Rounded) -> Zonotope:
    """Widen a zonotope so that the rounding of its sum over symbols, and of one more operation, is covered."""
    zonotope = value._set
    assert isinstance(zonotope, Zonotope)
    rounding, radius = value.rounding, zonotope.radius
    share = 1.1 * rounding.bounds_sum(len(zonotope.symbols)) + 2 * ROOM * rounding.w
    error = torch.add(radius * share, zonotope.center.abs(), alpha=2 * ROOM * rounding.w)
    return widened(zonotope, error)  # type: ignore[return-value]


def widened(set: Box | Zonotope, error: Tensor | None) -> Box | Zonotope:
    """Return the set plus [-error, error]."""
    if error is None:
        return set
    if isinstance(set, Box):
        return Box._of(set.center, set.radius + error)
    return set._with(Box._of(set.center, set.rest + error), set.generators)


from advibp.bounds.rules import rounded_rules  # noqa: E402, F401  (last: the rules need Rounded)
