"""Box: a set of inputs as a value. `net(Box.ball(x, eps))` runs the user's own module on a box and returns a box.

A box is kept as centre c and radius r, the set {z : |z - c| <= r}, because an affine layer then costs two plain calls:

    z = W x + b,  |x - c| <= r   =>   |z - (W c + b)| <= |W| r        (attained at the vertex x = c +- r sign(W))

The rules of the operations are in box_rules.py. Bounds are computed in the usual floating-point arithmetic, without
outward rounding: they hold up to rounding errors.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from advibp.bounds.domain import Domain, Rules, exactly, unsupported
from advibp.bounds.labels import checked_labels
from advibp.errors import UserError

Operand: TypeAlias = Union["Box", Tensor, float]


class LastLayer(NamedTuple):
    """The linear layer z = W x + b that made a box: its input box (B, J), W (K, J), b (K,) or None."""

    input: Box
    weight: Tensor
    bias: Tensor | None
    version: int


class Box(Domain):
    """The set of all z with |z - center| <= radius, elementwise.

    A box can be given to any `nn.Module` in place of a tensor; each operation then bounds its results over all
    members. What has no rule raises `UnsupportedOperation`: a box never turns into a tensor on the way. A box keeps
    no relation between its elements, so `x - x` is not zero.

    In-place operations rebind the tensors of this very box and never write to them. Views of a box share a counter
    with it; after an in-place change through one of them the others are out of date, and raise when used.
    """

    __slots__ = ("__weakref__", "_center", "_changes", "_last", "_radius", "_seen", "elided")

    _center: Tensor
    elided: bool  # whether `margins` can skip (on a box of margins: has skipped) the box of the last linear layer

    def __init__(self, center: Tensor, radius: Tensor | float) -> None:
        """center: (...), floating point; radius: a number or a tensor that broadcasts to it, finite, not negative."""
        _check_floating(center)
        _check_size("a radius", radius)
        radius = torch.as_tensor(radius, dtype=center.dtype, device=center.device)
        self._fill(center, radius.expand_as(center), [0])

    @classmethod
    def ball(
        cls, x: Tensor, eps: float | Tensor, within: tuple[float | Tensor, float | Tensor] | None = (0.0, 1.0)
    ) -> Box:
        """All points within eps of x (B, ...) in the maximum norm, intersected with [within[0], within[1]].

        eps is a number or a tensor that broadcasts to x, finite and not negative.
        """
        _check_floating(x)
        _check_size("eps", eps)
        if within is None:
            return cls(x, eps)
        box = _between((x - eps).clamp_(min=within[0]), (x + eps).clamp_(max=within[1]))
        if not bool((box.radius >= 0).all()):  # NaN too. This waits for the device, but only at a network's entrance
            raise UserError(f"some of x is NaN or lies outside of {within} by more than eps; scale x or set `within`.")
        return box

    @classmethod
    def from_bounds(cls, lower: Tensor, upper: Tensor) -> Box:
        """The box [lower, upper], both (...)."""
        _check_floating(lower)
        _check_floating(upper)
        box = _between(lower, upper)
        if not bool((box.radius >= 0).all()):
            raise UserError("Box.from_bounds needs finite numbers, lower <= upper everywhere; check their order.")
        return box

    def _fill(self, center: Tensor, radius: Tensor, changes: list[int]) -> Box:
        self._center, self._radius = center, radius
        self._changes, self._seen = changes, changes[0]
        self._last: LastLayer | None = None
        self.elided = False
        return self

    @staticmethod
    def _of(center: Tensor, radius: Tensor) -> Box:
        """A new box from two tensors of one shape and dtype, unchecked: what the rules return."""
        return object.__new__(Box)._fill(center, radius, [0])

    def _view(self, center: Tensor, radius: Tensor) -> Box:
        """A box whose elements are elements of this one: it shares the counter of in-place changes."""
        if center is self._center and radius is self._radius:
            return self
        return object.__new__(Box)._fill(center, radius, self._changes)

    def __copy__(self) -> Box:
        """A box of its own, of the same tensors: an in-place change of one leaves the other as it is."""
        box = Box._of(self.center, self.radius)
        box._last, box.elided = self._last, self.elided
        return box

    def _become(self, other: Box) -> Box:
        """Change this box in place."""
        if other.shape != self.shape:
            unsupported(f"an in-place operation cannot turn shape {tuple(self.shape)} into {tuple(other.shape)}")
        center, radius = other.center.to(self.dtype), other.radius.to(self.dtype)
        self._changes[0] += 1
        return self._fill(center, radius, self._changes)

    def _check_current(self) -> None:
        if self._seen != self._changes[0]:
            advice = "use that view, or an operation that is not in place."
            unsupported("this set was changed in place through another view of it", advice)

    @property
    def center(self) -> Tensor:
        """The midpoint of the bounds."""
        self._check_current()
        return self._center

    @property
    def radius(self) -> Tensor:
        """Half the distance between the bounds."""
        self._check_current()
        return self._radius

    @property
    def lower(self) -> Tensor:
        """The lower bound."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """The upper bound."""
        return self.center + self.radius

    def remember(self, input: Box, weight: Tensor, bias: Tensor | None) -> None:
        """Note the linear layer that made this box, so that margins can elide it."""
        # A copy of the input box (not of its tensors), which an in-place operation may change later.
        self._last = LastLayer(Box._of(input.center, input.radius), weight, bias, version_of(weight))
        self.elided = True

    @property
    def last(self) -> LastLayer | None:
        """The linear layer that made this box (B, K); None when something else did."""
        self._check_current()
        return self._last

    def margins(self, y: Tensor) -> Box:
        """Margins m_k = z_y - z_k (B, K) of these outputs z (B, K) for the labels y (B,); m_y is exactly 0.

        If a linear layer z = W x + b made this box then m_k = (W_y - W_k) x + b_y - b_k is bounded over the box of x,
        with radius sum_j |W_yj - W_kj| r_j: exact for that layer, and never wider than the difference of two bounds,
        whose radius is sum_j (|W_yj| + |W_kj|) r_j. Otherwise it is that difference. `elided` says which.
        """
        box = Box._of(*self._margins(y))
        box.elided = self.elided
        return box

    def lower_margins(self, y: Tensor) -> Tensor:
        """Lower bounds (B, K) of the margins z_y - z_k; an image is proved robust when all but that of y are > 0."""
        center, radius = self._margins(y)
        return center - radius

    def _margins(self, y: Tensor) -> tuple[Tensor, Tensor]:
        y = checked_labels(y, self.shape)
        label = y.unsqueeze(1)
        center = self.center.gather(1, label) - self.center
        if self._last is None:
            radius = self.radius.gather(1, label) + self.radius
            return center, radius.scatter(1, label, 0.0)
        weight = self._last.weight
        if self._last.version != version_of(weight):
            raise UserError("the last layer's weights have changed since this Box was made; run the network again.")
        with exactly(self.device.type):
            return center, margin_radius(weight, self._last.input.radius, y)

    @property
    def requires_grad(self) -> bool:
        return self._center.requires_grad or self._radius.requires_grad

    def __repr__(self) -> str:
        return f"Box(shape={tuple(self.shape)}, dtype={self.dtype}, device='{self.device}')"


RULES = Box.rules = Rules(Box)


def _between(lower: Tensor, upper: Tensor) -> Box:
    """[lower, upper] as a box, in two passes; where lower = upper the centre is that number exactly."""
    center = torch.lerp(lower, upper, 0.5)
    return Box._of(center, upper - center)


def margin_radius(weight: Tensor, radius: Tensor, y: Tensor) -> Tensor:
    """sum_j |W_yj - W_kj| r_j as (B, K), from W (K, J), r (B, J), y (B,).

    With few classes it is several times faster to take all K^2 differences through one matrix product and then pick
    the labels' rows than to build the (B, K, J) differences of the labels.
    """
    classes = len(weight)
    if classes > min(len(y), 64):
        return torch.bmm((weight[y].unsqueeze(1) - weight).abs(), radius.unsqueeze(2)).squeeze(2)
    spread = (weight.unsqueeze(1) - weight).abs().flatten(0, 1)  # (K K, J)
    every = (radius @ spread.T).unflatten(1, (classes, classes))
    return every.gather(1, y.view(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)


def _check_floating(value: object) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise UserError(f"a Box is made of floating-point tensors, not {kind}; convert it first.")


def _check_size(name: str, size: float | Tensor) -> None:
    if isinstance(size, Tensor):
        good = size.dtype != torch.bool and bool(((size >= 0) & size.isfinite()).all())
    else:
        good = isinstance(size, Real) and not isinstance(size, bool) and 0 <= float(size) < math.inf
    if not good:
        raise UserError(f"{name} must be finite and not negative; got {size!r}.")


def version_of(weight: Tensor) -> int:
    """How often a tensor was written to; inference tensors do not count."""
    return 0 if weight.is_inference() else weight._version


from advibp.bounds.rules import box_rules  # noqa: E402, F401  (last: the rules need Box)
