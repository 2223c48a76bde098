"""Two lines around each neuron's activation over its bounds [l, u]: what CROWN replaces the activation by.

    low_slope x + low_shift <= f(x) <= up_slope x + up_shift        for all x in [l, u]

Every function takes l, u (B, ...) and returns tensors of that shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.domain import Func, spellings, unsupported
from advibp.bounds.rounding import Rounding


class Lines(NamedTuple):
    """Slopes and shifts below and above; `free` marks neurons whose lower slope may be any number in `span`."""

    low_slope: Tensor
    low_shift: Tensor | None
    up_slope: Tensor
    up_shift: Tensor
    free: Tensor | None = None
    span: tuple[float, float] = (0.0, 1.0)


def relu(lower: Tensor, upper: Tensor) -> Lines:
    return leaky_relu(lower, upper, 0.0)


def leaky_relu(lower: Tensor, upper: Tensor, negative_slope: float = 0.01) -> Lines:
    """max(x, a x), 0 <= a <= 1: the chord above; below any line through 0 with a slope in [a, 1].

    CROWN's choice of that slope makes the area between the lines smallest: 1 if u > -l, else a.
    """
    if not 0 <= negative_slope <= 1:
        unsupported(f"leaky_relu has linear bounds for slopes from 0 to 1 alone, not {negative_slope}")
    crosses = crossing(lower, upper)
    share = upper / torch.where(crosses, upper - lower, 1.0)  # of [l, u], that is above 0; the chord's slope for a = 0
    chord = negative_slope + (1 - negative_slope) * share if negative_slope else share
    return Lines(
        _slope(upper > -lower, lower, negative_slope),
        None,
        torch.where(crosses, chord, _slope(lower >= 0, lower, negative_slope)),
        torch.where(crosses, (negative_slope - 1) * lower * share, 0.0),
        crosses,
        (negative_slope, 1.0),
    )


def _slope(on: Tensor, like: Tensor, negative_slope: float) -> Tensor:
    """1 where a neuron counts as active, the other slope where not."""
    if negative_slope == 0:
        return on.to(like.dtype)
    # (torch.where of two numbers would round them to float32)
    return torch.full_like(like, negative_slope).masked_fill(on, 1.0)


def crossing(lower: Tensor, upper: Tensor) -> Tensor:
    """Where 0 may be inside. Bounds that are NaN exclude nothing: their lines are NaN too, and prove nothing."""
    return ~(lower >= 0) & ~(upper <= 0)


def _s_shaped(f: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> Callable[..., Lines]:
    """Convex below 0, concave above it, f' largest at 0 and even: sigmoid and tanh.

    Where [l, u] lies on one side of 0: the chord on one side of f, the tangent at the middle on the other. Where it
    crosses 0: two lines with the smaller of the end points' slopes, one through each end; f minus such a line does not
    decrease on [l, u], as f' is nowhere smaller there than at an end.
    """

    def lines(lower: Tensor, upper: Tensor) -> Lines:
        middle, width = (lower + upper) / 2, upper - lower
        at_lower, at_upper, at_middle = f(lower), f(upper), f(middle)
        flat = width < 1e-6  # a chord of rounding errors
        chord = torch.where(flat, derivative(middle), (at_upper - at_lower) / torch.where(flat, 1.0, width))
        tangent, least = derivative(middle), torch.minimum(derivative(lower), derivative(upper))
        concave, convex = lower >= 0, upper <= 0
        low_slope = torch.where(flat, least, torch.where(concave, chord, torch.where(convex, tangent, least)))
        up_slope = torch.where(flat, least, torch.where(concave, tangent, torch.where(convex, chord, least)))
        by_tangent = at_middle - tangent * middle
        low_shift = torch.where(convex & ~flat, by_tangent, at_lower - low_slope * lower)
        up_shift = torch.where(concave & ~flat, by_tangent, at_upper - up_slope * upper)
        return Lines(low_slope, low_shift, up_slope, up_shift)

    return lines


def _sigmoid_slope(x: Tensor) -> Tensor:
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _tanh_slope(x: Tensor) -> Tensor:
    return 1 - torch.tanh(x) ** 2


#: Those with a kink at 0, to which tighter bounds matter only where 0 is inside.
KINKED = frozenset(spellings("relu relu_ leaky_relu leaky_relu_"))
#: torch function -> rule(lower, upper, *constants)
ACTIVATIONS: dict[Func | None, Callable[..., Lines]] = {
    **dict.fromkeys(spellings("relu relu_"), relu),
    **dict.fromkeys(spellings("leaky_relu leaky_relu_"), leaky_relu),
    **dict.fromkeys(spellings("sigmoid sigmoid_"), _s_shaped(torch.sigmoid, _sigmoid_slope)),
    **dict.fromkeys(spellings("tanh tanh_"), _s_shaped(torch.tanh, _tanh_slope)),
}


class Windows(NamedTuple):
    """Max pooling over [l, u]: per window the input whose lower bound is largest, below; above it too where it beats
    every other, otherwise the constant max u. `pick` one-hot and `certain` (B, C, n, L), `ceiling` (B, C, L)."""

    pick: Tensor
    certain: Tensor
    ceiling: Tensor
    fold: dict[str, Any]
    size: torch.Size

    def take(self, images: Tensor) -> Windows:
        """The same for rows, of which each belongs to an image."""
        return self._replace(pick=self.pick[images], certain=self.certain[images], ceiling=self.ceiling[images])

    def largest(self, x: Tensor) -> Tensor:
        """The largest element of each window (B, C, ...) of x (B, C, H, W), which is not negative."""
        padding = self.fold["padding"]
        fold = {name: value for name, value in self.fold.items() if name != "padding"}
        return F.max_pool2d(x, **fold, padding=padding)

    def spread(self, a: Tensor) -> Tensor:
        """Per window and input (R, C, n, L) -> per input (R, C, H, W), added up where windows overlap."""
        rows, channels, _, _ = a.shape
        return F.fold(a.flatten(0, 1), self.size[2:], **self.fold).view(rows, channels, *self.size[2:])


def max_pool2d(
    lower: Tensor,
    upper: Tensor,
    kernel_size: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Windows:
    if ceil_mode or return_indices or lower.dim() != 4:
        unsupported("max_pool2d of what is not (B, C, H, W), with ceil_mode or return_indices has no linear bounds")
    high, wide = (padding, padding) if isinstance(padding, int) else (padding[0], padding[-1])
    fold = {"kernel_size": kernel_size, "dilation": dilation, "stride": stride or kernel_size}

    def windows(x: Tensor) -> Tensor:
        around = F.pad(x.flatten(0, 1)[:, None], (wide, wide, high, high), value=-torch.inf)
        found = F.unfold(around, **fold)  # (B C, n, L)
        return found.view(*x.shape[:2], *found.shape[1:])

    lows, highs = windows(lower), windows(upper)
    best = lows.argmax(2, keepdim=True)
    pick = torch.zeros_like(lows).scatter_(2, best, 1.0)
    others = highs.masked_fill(pick.bool(), -torch.inf).amax(2, keepdim=True)
    certain = pick * (lows.gather(2, best) >= others)
    return Windows(pick, certain, highs.amax(2), {**fold, "padding": (high, wide)}, lower.shape)


POOLS = frozenset(spellings("max_pool2d"))


def widened(lines: Lines | Windows, lower: Tensor, upper: Tensor, rounding: Rounding) -> tuple[Lines | Windows, Tensor]:
    """Lines that hold in spite of the rounding of their slopes and shifts, and the error of a way back through them.

    A slope is off by a few w, which moves a line by that times the size of x; the shifts make up for it. On the way
    back, coefficients are multiplied by slopes (4 roundings) and shifts are added up, both with errors that are
    multiples of the coefficients' sizes: the second result (B, ...), for each output of the activation.
    """
    w, sizes = rounding.w, torch.maximum(lower.abs(), upper.abs())
    if isinstance(lines, Windows):
        terms = max(2 * lines.pick.shape[2], lines.ceiling[0].numel())
        return lines, lines.largest(sizes) * (2 * rounding.bounds_sum(terms)) + rounding.tiny
    steep = 1 + lines.low_slope.abs() + lines.up_slope.abs()
    if lines.low_shift is None:  # of slope 1 or less, through 0
        moved = torch.where(lines.free, 32 * w * sizes, 0.0) if lines.free is not None else 32 * w * sizes
        lines = lines._replace(up_shift=lines.up_shift + moved)
        shifts = lines.up_shift.abs()
    else:
        moved = 256 * w * (1 + steep * sizes + lines.low_shift.abs() + lines.up_shift.abs())
        lines = lines._replace(low_shift=lines.low_shift - moved, up_shift=lines.up_shift + moved)
        shifts = lines.low_shift.abs() + lines.up_shift.abs()  # type: ignore[union-attr]
    error = 32 * w * steep * sizes + rounding.bounds_sum(lower[0].numel()) * shifts
    return lines, error + rounding.tiny
