"""Rounded: what a network *as it runs*, in floating-point arithmetic, can compute on a set of inputs, as a value.

`net(Rounded.ball(x, eps))` runs the user's own module on a Box or a Zonotope, and after every operation widens that set
by the operation's rounding error (rounding.py). The result holds the output of every evaluation of the network: in
whatever order its sums are taken, with or without fused multiply-add, on any hardware that adds and multiplies as IEEE
754 says. docs/arithmetic.md has the theorem.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from advibp.bounds import rounding as errors
from advibp.bounds.box import RULES as BOX_RULES
from advibp.bounds.box import Box, margin_radius
from advibp.bounds.domain import Domain, Func, Rules, exactly, name_of, unsupported
from advibp.bounds.rounding import Rounding
from advibp.bounds.rules.box_rules import VIEWS
from advibp.bounds.zonotope import ReluBounds, Zonotope
from advibp.errors import UserError

Within = tuple[float | Tensor, float | Tensor] | None


class Rounded(Domain):
    """A Box or a Zonotope that holds every value that the network may compute.

    Attributes:
        set: the Box or Zonotope, in the arithmetic of the bounds.
        rounding: the network's arithmetic and that of the bounds.
        error: what the operation that made this set rounds at most, (B, ...); None where it is exact, and where
            `keeps_errors` is False.
    """

    __slots__ = ("__weakref__", "_changes", "_set", "error", "keeps_errors", "rounding")

    def __init__(
        self, set: Box | Zonotope, rounding: Rounding, *, keeps_errors: bool = False, error: Tensor | None = None
    ) -> None:
        self._set, self._changes, self.rounding = set, set._changes, rounding
        self.keeps_errors, self.error = keeps_errors, error

    @classmethod
    def ball(
        cls, x: Tensor, eps: float | Tensor, within: Within = (0.0, 1.0), *, arithmetic: torch.dtype | None = None
    ) -> Rounded:
        """All points within eps of x (B, ...) in the maximum norm, intersected with [within[0], within[1]].

        Args:
            x: images (B, ...) in the network's type.
            eps: a number, or a tensor that broadcasts to x; finite, not negative, taken as the real number it is.
            within: the range of the inputs, or None.
            arithmetic: the type in which the network runs, float32 or float64; default: that of x.
        """
        lower, upper = ball_ends(x, eps, within)
        return cls.between(lower, upper, Rounding(arithmetic or x.dtype, x.dtype))

    @classmethod
    def between(cls, lower: Tensor, upper: Tensor, rounding: Rounding) -> Rounded:
        """The box [lower, upper], both (B, ...) in double precision."""
        if not bool((lower <= upper).all()):
            raise UserError("Rounded.between needs numbers with lower <= upper everywhere; check their order.")
        center = torch.lerp(lower, upper, 0.5).to(rounding.own)
        wide = center.double()
        radius = torch.maximum(upper - wide, wide - lower) * (1 + 2.0**-50)
        radius = (radius + errors.ROOM * rounding.w * (wide.abs() + radius)).to(rounding.own)
        radius = radius.nextafter(torch.full_like(radius, math.inf))
        return cls(Box._of(center, radius), rounding)

    def zonotope(self, relu_bounds: ReluBounds | None = None) -> Rounded:
        """The same set of inputs as a Zonotope."""
        assert isinstance(self._set, Box)
        return Rounded(Zonotope.from_box(self._set, relu_bounds=relu_bounds), self.rounding)

    def keeping_errors(self) -> Rounded:
        """The same; all that is computed from it knows the error of its operation."""
        return Rounded(self._set, self.rounding, keeps_errors=True)

    def take(self, keep: Tensor | slice) -> Rounded:
        """The same for some of the images."""
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
        return self._set

    @property
    def box(self) -> Box:
        """A box around this set, with room for one more rounding."""
        return self._set if isinstance(self._set, Box) else _summed(self).to_box()

    @property
    def center(self) -> Tensor:
        return self._set.center

    @property
    def radius(self) -> Tensor:
        return self.box.radius

    @property
    def lower(self) -> Tensor:
        """Lower bounds (B, ...) of what the network computes."""
        return self.box.lower

    @property
    def upper(self) -> Tensor:
        """Upper bounds (B, ...) of what the network computes."""
        return self.box.upper

    def lower_margins(self, y: Tensor) -> Tensor:
        """Lower bounds (B, K) of z_y - z_k for the logits z that the network computes; 0 for k = y.

        The last linear layer is elided: its real output is bounded as by `Box.margins`, and its rounding errors in both
        logits are added.
        """
        center, radius = self._margins(y)
        return center - radius

    def upper_margins(self, y: Tensor) -> Tensor:
        """Upper bounds (B, K) of the same; 0 for k = y."""
        center, radius = self._margins(y)
        return center + radius

    def _margins(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Centers and radii (B, K), with room for their sum."""
        if isinstance(self._set, Zonotope):
            zonotope, label = self._set.margins(y), y.unsqueeze(1)
            share = 1 + 1.1 * self.rounding.own_sum(len(zonotope.symbols))
            sizes = errors.size(self.box).mul_(2 * errors.ROOM * self.rounding.w)
            radius = zonotope.radius * share + sizes + sizes.gather(1, label)
            return zonotope.center, radius.scatter(1, label, 0.0)
        box = self._set
        center, radius = box._margins(y)  # refuses what has no margins
        if box.last is None:
            return center, radius * (1 + 8 * self.rounding.w)
        last, label = box.last, y.unsqueeze(1)
        with exactly(self.device.type), torch.no_grad():
            product = errors.product(
                torch.nn.functional.linear, "linear", (last.input, last.weight, last.bias), {}, self.rounding
            )
            error = product.error(self.rounding, last.input)
            real = margin_radius(last.weight, last.input.radius, y)
            radius = real * (1 + 4 * self.rounding.own_sum(product.terms)) + error + error.gather(1, label)
            return center, radius.scatter(1, label, 0.0)

    def __copy__(self) -> Rounded:
        """The same set, which in-place operations change by itself."""
        return Rounded(copy.copy(self._set), self.rounding, keeps_errors=self.keeps_errors, error=self.error)

    def __repr__(self) -> str:
        return f"Rounded({self._set!r}, network={self.rounding.network})"


RULES = Rounded.rules = Rules(Rounded)


def ball_ends(x: Tensor, eps: float | Tensor, within: Within) -> tuple[Tensor, Tensor]:
    """Ends (B, ...) in double precision of a box that holds the ball, as a set of real numbers, within a range."""
    # Box.ball refuses what is no ball.
    Box.ball(x, eps, within)
    wide = x.double()
    radius = eps.double() if isinstance(eps, Tensor) else eps
    infinite = torch.full_like(wide, math.inf)
    lower, upper = (wide - radius).nextafter(-infinite), (wide + radius).nextafter(infinite)
    return (lower, upper) if within is None else (lower.clamp(min=within[0]), upper.clamp(max=within[1]))


def _summed(value: Rounded) -> Zonotope:
    """A zonotope wide enough that the rounding of its sum over symbols, and of one more operation, does not matter."""
    zonotope = value._set
    assert isinstance(zonotope, Zonotope)
    rounding, radius = value.rounding, zonotope.radius
    share = 1.1 * rounding.own_sum(len(zonotope.symbols)) + 2 * errors.ROOM * rounding.w
    error = torch.add(radius * share, zonotope.center.abs(), alpha=2 * errors.ROOM * rounding.w)
    return _widened(zonotope, error)  # type: ignore[return-value]


def _widened(set: Box | Zonotope, error: Tensor | None) -> Box | Zonotope:
    """The set plus [-error, error]."""
    if error is None:
        return set
    if isinstance(set, Box):
        return Box._of(set.center, set.radius + error)
    return set._with(Box._of(set.center, set.rest + error), set.generators)


# ---------------------------------------------------------------------------------------------- rules

_NONLINEAR = frozenset(("relu", "monotone", "elu", "softplus", "turning", "leaky_relu"))
_PRODUCTS = frozenset(("affine", "linear", "matmul"))


def _rule(name: str) -> Callable[..., Any]:
    """Run the rule of the inner set, then widen its result by the error of the operation."""

    def run(func: Func, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        args = _positional(args, kwargs)
        value = next((leaf for leaf in _flat(args) if isinstance(leaf, Rounded)), None)
        if value is None:
            unsupported(f"{name_of(func)} takes a set as its first arguments alone")
        with torch.no_grad():
            result = _run(name, func, value, args, kwargs)
        return args[0]._become(result) if inplace and result is not args[0] else result

    run.__name__ = name
    return run


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """The arguments, with operands that were given by name in their place; they leave `kwargs`."""
    for name in ("input", "tensors"):
        if name in kwargs:
            args = (kwargs.pop(name), *args)
    return (*args, kwargs.pop("other")) if "other" in kwargs and len(args) == 1 else args


def _flat(args: Any) -> list[Any]:
    return [leaf for arg in args for leaf in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def _run(name: str, func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Any:
    kind = type(value._set)
    if any(isinstance(leaf, Rounded) and type(leaf._set) is not kind for leaf in _flat(args)):
        unsupported(f"{name_of(func)} cannot mix a Box with a Zonotope")
    if any(isinstance(leaf, Rounded) for leaf in _flat(tuple(kwargs.values()))):
        unsupported(f"{name_of(func)} takes a set as its first arguments alone")
    if name == "to":
        return _cast(func, value, args, kwargs)
    if name in _PRODUCTS and kind is Box:
        return _product(name, func, value, args, kwargs)
    inner = _mapped(args, lambda v: v._set if kind is Box or name not in _NONLINEAR else _summed(v))
    found = kind.apply(func, inner, kwargs)
    if not isinstance(found, kind):  # metadata, or several views
        return tuple(value._like(part) for part in found) if isinstance(found, tuple) else found
    if found is value._set:
        return value
    boxes = inner if kind is Box else _mapped(args, lambda v: v.box)
    # The rule of Box gives the result's size; of a zonotope its own box is one.
    result = found if isinstance(found, Box) else Box._of(found.center, found.radius)
    error = errors.error(value.rounding, name, func, boxes, kwargs, result)
    if kind is Zonotope and name in _NONLINEAR:
        error = _relaxation_error(value, args, kwargs, result, error)
    if error is not None and error.dtype != found.dtype:  # that of a constant
        error = (error * (1 + 2.0**-20)).to(found.dtype)
    return value._like(_widened(found, error), error)


def _mapped(args: Any, change: Callable[[Rounded], Any]) -> tuple[Any, ...]:
    def one(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)) and any(isinstance(a, Rounded) for a in arg):
            return [change(a) if isinstance(a, Rounded) else a for a in arg]
        return change(arg) if isinstance(arg, Rounded) else arg

    return tuple(one(arg) for arg in args)


def _product(name: str, func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Rounded:
    """An affine layer on a box: center as the network computes it, radius and error by one product."""
    box = value._set
    assert isinstance(box, Box)
    inner = _mapped(args, lambda v: v._set)
    product = errors.product(func, name, inner, kwargs, value.rounding)
    center = func(*_mapped(args, lambda v: v._set.center), **kwargs)
    if value.keeps_errors:
        error = product.error(value.rounding, box)
        own = value.rounding.own_sum(product.terms)
        result = Box._of(center, product.call(box.radius, None).mul_(1 + 4 * own).add_(error))
    else:
        error, result = None, Box._of(center, product.radius(value.rounding, box))
    if name == "linear" and result.ndim == 2:
        named = dict(zip(("input", "weight", "bias"), inner, strict=False)) | kwargs
        result.remember(box, named["weight"], named.get("bias"))
    return value._like(result, error)


def _relaxation_error(value: Rounded, args: Any, kwargs: dict[str, Any], result: Box, error: Tensor | None) -> Tensor:
    """What the slopes and shifts of a zonotope's band around an activation round, besides the network's own error.

    A slope may be off by 8 w of its size; times the input's size, this moves the band.
    """
    slopes = [torch.as_tensor(a) for a in (*args[1:], *kwargs.values()) if isinstance(a, (float, Tensor))]
    steep = max([1.0, *(float(slope.abs().max()) for slope in slopes)])
    sizes = errors.size(value.box)
    if sizes.shape == result.shape:
        own = (sizes * (1 + steep) + 1).add_(errors.size(result)).mul_(128 * value.rounding.w)
    else:
        own = errors.size(result) * 64 * value.rounding.w  # boxed: no band
    return own if error is None else error + own


def _cast(func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Rounded:
    """Another type: the network goes on in it, and what it loses by the cast is an error."""
    found = type(value._set).apply(func, _mapped(args, lambda v: v._set), kwargs)
    if found is value._set:
        return value
    target, rounding = found.dtype, value.rounding
    if target not in (torch.float32, torch.float64):
        unsupported(f"{name_of(func)} to {target} has no bound on its rounding error", "keep the network in float32.")
    if target == value.dtype:  # another device
        return value._like(found)
    if target == torch.float64:
        return Rounded(found, replace(rounding, own=target), keeps_errors=value.keeps_errors)
    # A value that float32 can't hold is rounded, or overflows; in a copy in double precision the bounds stay there.
    rounding = replace(rounding, network=target) if rounding.doubled else Rounding(target, target)
    share = 4 * torch.finfo(target).eps + rounding.of(1)
    error = errors.checked(rounding, errors.size(value.box) * share + 16 * torch.finfo(target).tiny, share)
    inner = value._set if rounding.doubled else found
    error = error.to(inner.dtype)
    return Rounded(_widened(inner, error), rounding, keeps_errors=value.keeps_errors, error=error)


_in_place = {func for func in BOX_RULES if func.__name__.endswith("_") and not func.__name__.endswith("__")}
RULES.update({func: _rule(body.__name__) for func, body in BOX_RULES.items() if func not in _in_place})
RULES.in_place(VIEWS)
