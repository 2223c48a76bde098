"""Box: a set of tensors given by bounds of each element.

`net(Box.ball(x, eps))` runs the user's module on a box and returns a box that contains all outputs: interval bound
propagation (IBP). A box is stored as center c and radius r, the set {z : |z - c| <= r}. An affine layer then needs two
calls of torch:

    z = W x + b,  |x - c| <= r   =>   |z - (W c + b)| <= |W| r

Equality holds at the vertex x = c +- r sign(W), so these bounds are exact for one layer.

The rules of the operations are in rules/box_rules.py. Bounds are computed in floating-point arithmetic without outward
rounding, so they hold up to rounding errors. `Rounded` has bounds that include rounding errors.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import NamedTuple, TypeAlias, Union

import torch
from torch import Tensor

from advibp.bounds.domain import Domain, Rules, unsupported, without_autocast
from advibp.bounds.labels import checked_labels
from advibp.display.object_summary import Summarized
from advibp.errors import UserError

Operand: TypeAlias = Union["Box", Tensor, float]

#: Lowest and highest value of the inputs, numbers or tensors that broadcast to the inputs; None for no limit.
Range: TypeAlias = tuple[float | Tensor, float | Tensor] | None


class LastLayer(NamedTuple):
    """The linear layer z = W x + b that computed a box.

    Attributes:
        input: the box of x, (B, J).
        weight: W, (K, J).
        bias: b, (K,), or None.
        version: number of writes to W when the box was computed.
    """

    input: Box
    weight: Tensor
    bias: Tensor | None
    version: int


class Box(Summarized, Domain):
    """The set of all z with |z - center| <= radius, elementwise.

    A box can be passed to any `nn.Module` in place of a tensor. Each operation then returns a box that contains its
    results for all members. An operation without a rule raises `UnsupportedOperation`; a box never silently becomes a
    tensor. A box does not track dependencies between its elements, so `x - x` is not zero.

    In-place operations replace the tensors of this box and never write to them. Views of a box share a counter with it.
    After an in-place change through one view, the other views are out of date and raise an error when used.

    Use `Box.ball` for inputs and `Box.from_bounds` for [lower, upper]. The constructor takes keywords only.

    Args:
        center: (...), floating point.
        radius: a number, or a tensor that broadcasts to `center`; finite and not negative.

    Attributes:
        elided: whether `margins` can use the last linear layer. On a box of margins: whether it was used.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp import Box
        >>> net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU()).requires_grad_(False)
        >>> _ = net[0].weight.copy_(torch.tensor([[1.0, 2.0], [-1.0, 1.0]]))
        >>> box = net(Box.ball(torch.tensor([[0.5, 0.5]]), 0.25))
        >>> box.lower, box.upper
        (tensor([[0.7500, 0.0000]]), tensor([[2.2500, 0.5000]]))
    """

    __slots__ = ("__weakref__", "_center", "_changes", "_changes_at_creation", "_last", "_radius", "elided")

    _center: Tensor
    elided: bool

    def __init__(self, *positional: object, center: Tensor | None = None, radius: Tensor | float | None = None) -> None:
        if positional or center is None or radius is None:
            raise UserError(
                "Box takes its arguments by name: write Box(center=..., radius=...), Box.from_bounds(lower, upper), or "
                "Box.ball(x, eps)."
            )
        _check_floating(center)
        _check_size("a radius", radius)
        radius = torch.as_tensor(radius, dtype=center.dtype, device=center.device)
        self._fill(center, radius.expand_as(center), [0])

    @classmethod
    def ball(cls, x: Tensor, eps: float | Tensor, within: Range = (0.0, 1.0)) -> Box:
        """The box of all points within eps of x in the maximum norm, intersected with a range.

        Args:
            x: centers (B, ...), floating point.
            eps: radius, a number or a tensor that broadcasts to x; finite and not negative.
            within: (lowest, highest) value of the inputs, numbers or tensors that broadcast to x; None for no range.
                Default: (0, 1), the range of pixels.

        Returns:
            A box (B, ...).

        Raises:
            UserError: if x is NaN, or lies outside of the range by more than eps.
        """
        _check_floating(x)
        _check_size("eps", eps)
        if within is None:
            return cls(center=x, radius=eps)
        if is_unit_range(within):
            box = _between((x - eps).clamp_(min=within[0]), (x + eps).clamp_(max=within[1]))
        else:  # the inputs may be so large that x - eps rounds to x
            box = _around(x, eps, within)
        if not bool((box.radius >= 0).all()):  # also for NaN. This waits for the device, once per network call
            shown = "its range" if any(isinstance(end, Tensor) for end in within) else within
            raise UserError(f"x is NaN or lies outside of {shown} by more than eps; scale x or set `within`.")
        return box

    @classmethod
    def from_bounds(cls, lower: Tensor, upper: Tensor) -> Box:
        """The box [lower, upper].

        Args:
            lower: lower bounds (...), floating point and finite.
            upper: upper bounds (...), at least `lower`.
        """
        _check_floating(lower)
        _check_floating(upper)
        box = _between(lower, upper)
        if not bool((box.radius >= 0).all()):
            raise UserError("Box.from_bounds needs finite numbers with lower <= upper; check their order.")
        return box

    def _fill(self, center: Tensor, radius: Tensor, changes: list[int]) -> Box:
        self._center, self._radius = center, radius
        self._changes, self._changes_at_creation = changes, changes[0]
        self._last: LastLayer | None = None
        self.elided = False
        return self

    @staticmethod
    def _of(center: Tensor, radius: Tensor) -> Box:
        """Return a new box from two tensors of the same shape and dtype, without checks. The rules use this."""
        return object.__new__(Box)._fill(center, radius, [0])

    def _view(self, center: Tensor, radius: Tensor) -> Box:
        """Return a view: a box whose elements are elements of this one. It shares the counter of in-place changes."""
        if center is self._center and radius is self._radius:
            return self
        return object.__new__(Box)._fill(center, radius, self._changes)

    def __copy__(self) -> Box:
        """Return a box with the same tensors. In-place operations on one do not change the other."""
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
        """Raise if this box was changed in place through another view."""
        if self._changes_at_creation != self._changes[0]:
            advice = "use that view, or an operation that is not in place."
            unsupported("this set was changed in place through another view of it", advice)

    @property
    def center(self) -> Tensor:
        """The midpoint of the bounds, (...)."""
        self._check_current()
        return self._center

    @property
    def radius(self) -> Tensor:
        """Half the distance between the bounds, (...)."""
        self._check_current()
        return self._radius

    @property
    def lower(self) -> Tensor:
        """The lower bounds, (...)."""
        return self.center - self.radius

    @property
    def upper(self) -> Tensor:
        """The upper bounds, (...)."""
        return self.center + self.radius

    def remember(self, input: Box, weight: Tensor, bias: Tensor | None) -> None:
        """Store the linear layer that computed this box, so that `margins` can use it."""
        # A copy of the input box, because an in-place operation may change it later. The tensors are shared.
        self._last = LastLayer(Box._of(input.center, input.radius), weight, bias, version_of(weight))
        self.elided = True

    @property
    def last(self) -> LastLayer | None:
        """The linear layer that computed this box (B, K), or None if another operation did."""
        self._check_current()
        return self._last

    def margins(self, y: Tensor) -> Box:
        """Bound the margins m_k = z_y - z_k of outputs z.

        If a linear layer z = W x + b computed this box, then m_k = (W_y - W_k) x + b_y - b_k is bounded over the box of
        x. The radius sum_j |W_yj - W_kj| r_j is exact for this layer. It is never larger than that of the difference of
        two bounds, sum_j (|W_yj| + |W_kj|) r_j, which is used otherwise. The attribute `elided` of the result tells
        which one was used.

        Args:
            y: labels (B,).

        Returns:
            A box (B, K) of margins. The margin of the label itself is exactly 0.

        Examples:
            >>> import torch
            >>> from advibp import Box
            >>> logits = Box(center=torch.tensor([[3.0, 1.0]]), radius=0.5)
            >>> logits.margins(torch.tensor([0])).lower
            tensor([[0., 1.]])
        """
        box = Box._of(*self._margins(y))
        box.elided = self.elided
        return box

    def lower_margins(self, y: Tensor) -> Tensor:
        """Compute lower bounds of the margins z_y - z_k.

        Args:
            y: labels (B,).

        Returns:
            Lower bounds (B, K). An image is robust if all of them except the label's are above 0.
        """
        center, radius = self._margins(y)
        return center - radius

    def _margins(self, y: Tensor, *, check: bool = True) -> tuple[Tensor, Tensor]:
        """Return center and radius (B, K) of the margins. Labels that were checked before need no check."""
        y = checked_labels(y, self.shape) if check else y
        label = y.unsqueeze(1)
        center = self.center.gather(1, label) - self.center
        if self._last is None:
            radius = self.radius.gather(1, label) + self.radius
            return center, radius.scatter(1, label, 0.0)
        weight = self._last.weight
        if self._last.version != version_of(weight):
            raise UserError("the last layer's weights have changed since this Box was computed; run the network again.")
        with without_autocast(self.device.type):
            return center, margin_radius(weight, self._last.input.radius, y)

    @property
    def requires_grad(self) -> bool:
        return self._center.requires_grad or self._radius.requires_grad

    def _summary(self) -> dict[str, object]:
        return {"shape": tuple(self.shape), "dtype": self.dtype, "device": str(self.device)}


RULES = Box.rules = Rules(Box)


def _between(lower: Tensor, upper: Tensor) -> Box:
    """Return the box [lower, upper]. Where lower = upper the center is exactly that number."""
    center = torch.lerp(lower, upper, 0.5)
    return Box._of(center, upper - center)


def is_unit_range(within: Range) -> bool:
    """Whether the range is [0, 1], given by two numbers."""
    return within is not None and not any(isinstance(end, Tensor) for end in within) and tuple(within) == (0.0, 1.0)


def _around(x: Tensor, eps: float | Tensor, within: tuple[float | Tensor, float | Tensor]) -> Box:
    """Return a box that contains the ball around x, clipped to a range, also if x is much larger than eps.

    The center is rounded to the dtype of x. The radius is computed from the rounded center and rounded up.
    """
    wide, radius = x.double(), eps.double() if isinstance(eps, Tensor) else eps
    low, high = (end.double() if isinstance(end, Tensor) else end for end in within)
    lower, upper = (wide - radius).clamp(min=low), (wide + radius).clamp(max=high)
    center = torch.lerp(lower, upper, 0.5).to(x.dtype)
    exact = torch.maximum(upper - center, center - lower)
    width = exact.to(x.dtype)
    up = width.detach().nextafter(torch.full_like(width, math.inf)) - width.detach()
    width = torch.where((lower <= upper) & (width.double() < exact), width + up, width)
    return Box._of(center, torch.where(lower <= upper, width, -1.0))


def margin_radius(weight: Tensor, radius: Tensor, y: Tensor) -> Tensor:
    """Compute sum_j |W_yj - W_kj| r_j for each image and class k.

    With few classes it is several times faster to compute all K^2 differences by one matrix product, and to select the
    rows of the labels, than to build the differences (B, K, J) of the labels.

    Args:
        weight: W (K, J).
        radius: r (B, J).
        y: labels (B,).

    Returns:
        (B, K).
    """
    classes = len(weight)
    if classes > min(len(y), 64):
        return torch.bmm((weight[y].unsqueeze(1) - weight).abs(), radius.unsqueeze(2)).squeeze(2)
    differences = (weight.unsqueeze(1) - weight).abs().flatten(0, 1)  # (K K, J)
    all_pairs = (radius @ differences.T).unflatten(1, (classes, classes))
    return all_pairs.gather(1, y.view(-1, 1, 1).expand(-1, 1, classes)).squeeze(1)


def _check_floating(value: object) -> None:
    if not isinstance(value, Tensor) or not value.is_floating_point():
        kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
        raise UserError(f"a Box needs floating-point tensors, not {kind}; convert them first.")


def _check_size(name: str, size: float | Tensor) -> None:
    if isinstance(size, Tensor):
        valid = size.dtype != torch.bool and bool(((size >= 0) & size.isfinite()).all())
    else:
        valid = isinstance(size, Real) and not isinstance(size, bool) and 0 <= float(size) < math.inf
    if not valid:
        raise UserError(f"{name} must be finite and not negative; got {size!r}.")


def version_of(weight: Tensor) -> int:
    """Return how often a tensor was written to; 0 for inference tensors, which have no counter."""
    return 0 if weight.is_inference() else weight._version


from advibp.bounds.rules import box_rules  # noqa: E402, F401  (last: the rules need Box)
