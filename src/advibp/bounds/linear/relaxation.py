"""Linear relaxations of activations: two lines that enclose an activation f over the bounds [l, u] of its input.

    lower_slope x + lower_intercept <= f(x) <= upper_slope x + upper_intercept        for all x in [l, u]

CROWN replaces every activation by its relaxation. Every function takes l, u (B, ...) and returns tensors of that shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.domain import Func, spellings, unsupported
from advibp.bounds.rounding import Rounding


class LinearRelaxation(NamedTuple):
    """The two lines of each neuron, (B, ...) each.

    Attributes:
        lower_slope: slope of the lower line.
        lower_intercept: intercept of the lower line, or None if it is 0.
        upper_slope: slope of the upper line.
        upper_intercept: intercept of the upper line.
        free: neurons whose lower slope may be any number in `slope_range`; None if there are none.
        slope_range: (smallest, largest) lower slope of these neurons.
    """

    lower_slope: Tensor
    lower_intercept: Tensor | None
    upper_slope: Tensor
    upper_intercept: Tensor
    free: Tensor | None = None
    slope_range: tuple[float, float] = (0.0, 1.0)


def relu(lower: Tensor, upper: Tensor) -> LinearRelaxation:
    """The triangle relaxation of ReLU: `leaky_relu` with a = 0."""
    return leaky_relu(lower, upper, 0.0)


def leaky_relu(lower: Tensor, upper: Tensor, negative_slope: float = 0.01) -> LinearRelaxation:
    """Relax f(x) = max(x, a x), 0 <= a <= 1.

    If l >= 0 then f(x) = x, and if u <= 0 then f(x) = a x. Otherwise the neuron is unstable. f is convex, so it lies
    below its chord from (l, a l) to (u, u), with s = u / (u - l):

        upper slope        (u - a l) / (u - l) = a + (1 - a) s
        upper intercept    u - (a + (1 - a) s) u = (a - 1) l s,    since u (1 - s) = -l s

    f lies above every line through 0 with a slope alpha in [a, 1]: for x >= 0, alpha x <= x, and for x < 0, alpha x <=
    a x. For a = 0 these are the lines of the triangle relaxation of ReLU:

        alpha x <= relu(x) <= u (x - l) / (u - l),    0 <= alpha <= 1

    CROWN chooses the alpha with the smallest area between the lines: 1 if u > -l, otherwise a.
    """
    if not 0 <= negative_slope <= 1:
        unsupported(f"leaky_relu has linear bounds only for slopes from 0 to 1, not {negative_slope}")
    unstable = is_unstable(lower, upper)
    share = upper / torch.where(unstable, upper - lower, 1.0)  # s; the slope of the chord for a = 0
    chord = negative_slope + (1 - negative_slope) * share if negative_slope else share
    return LinearRelaxation(
        _slope(upper > -lower, lower, negative_slope),
        None,
        torch.where(unstable, chord, _slope(lower >= 0, lower, negative_slope)),
        torch.where(unstable, (negative_slope - 1) * lower * share, 0.0),
        unstable,
        (negative_slope, 1.0),
    )


def _slope(on: Tensor, like: Tensor, negative_slope: float) -> Tensor:
    """Return 1 where a neuron counts as active, and the negative slope elsewhere."""
    if negative_slope == 0:
        return on.to(like.dtype)
    # torch.where of two Python numbers would round them to float32.
    return torch.full_like(like, negative_slope).masked_fill(on, 1.0)


def is_unstable(lower: Tensor, upper: Tensor) -> Tensor:
    """Return which neurons may have 0 between their bounds. NaN bounds count as unstable; their lines are NaN."""
    return ~(lower >= 0) & ~(upper <= 0)


def _s_shaped(f: Callable[[Tensor], Tensor], derivative: Callable[[Tensor], Tensor]) -> Callable[..., LinearRelaxation]:
    """Return the relaxation of an s-shaped f: convex below 0, concave above 0, and f' even with its maximum at 0.

    With m = (l + u)/2, the chord through (l, f(l)) and (u, f(u)), and the tangent t(x) = f(m) + f'(m) (x - m):

        0 <= l        f is concave:  chord <= f <= tangent at m
        u <= 0        f is convex:   tangent at m <= f <= chord
        l < 0 < u     with k = min(f'(l), f'(u)):  f(l) + k (x - l) <= f(x) <= f(u) + k (x - u)

    The last case holds because f' >= k on [l, u], so f(x) - k x is nondecreasing. The same two lines are used if u - l
    < 1e-6, where the slope of the chord would be dominated by rounding errors.
    """

    def relax(lower: Tensor, upper: Tensor) -> LinearRelaxation:
        middle, width = (lower + upper) / 2, upper - lower
        at_lower, at_upper, at_middle = f(lower), f(upper), f(middle)
        flat = width < 1e-6
        chord = torch.where(flat, derivative(middle), (at_upper - at_lower) / torch.where(flat, 1.0, width))
        tangent, least = derivative(middle), torch.minimum(derivative(lower), derivative(upper))
        concave, convex = lower >= 0, upper <= 0
        lower_slope = torch.where(flat, least, torch.where(concave, chord, torch.where(convex, tangent, least)))
        upper_slope = torch.where(flat, least, torch.where(concave, tangent, torch.where(convex, chord, least)))
        by_tangent = at_middle - tangent * middle
        lower_intercept = torch.where(convex & ~flat, by_tangent, at_lower - lower_slope * lower)
        upper_intercept = torch.where(concave & ~flat, by_tangent, at_upper - upper_slope * upper)
        return LinearRelaxation(lower_slope, lower_intercept, upper_slope, upper_intercept)

    return relax


def _sigmoid_slope(x: Tensor) -> Tensor:
    """The derivative sigmoid(x) sigmoid(-x)."""
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _tanh_slope(x: Tensor) -> Tensor:
    """The derivative 1 - tanh(x)^2."""
    return 1 - torch.tanh(x) ** 2


#: Piecewise linear activations with a kink at 0. Tighter bounds help only their unstable neurons.
PIECEWISE_LINEAR = frozenset(spellings("relu relu_ leaky_relu leaky_relu_"))
#: torch function -> relaxation(lower, upper, *constants).
ACTIVATIONS: dict[Func | None, Callable[..., LinearRelaxation]] = {
    **dict.fromkeys(spellings("relu relu_"), relu),
    **dict.fromkeys(spellings("leaky_relu leaky_relu_"), leaky_relu),
    **dict.fromkeys(spellings("sigmoid sigmoid_"), _s_shaped(torch.sigmoid, _sigmoid_slope)),
    **dict.fromkeys(spellings("tanh tanh_"), _s_shaped(torch.tanh, _tanh_slope)),
}


class MaxPoolRelaxation(NamedTuple):
    """The relaxation of max pooling over [l, u].

    Lower bound of a window: its element with the largest lower bound. Upper bound: the same element if its lower bound
    is at least the upper bound of every other element, otherwise the constant max u.

    Attributes:
        pick: one-hot choice of the element with the largest lower bound, (B, C, n, L): n elements in each of L windows.
        certain: `pick` in windows whose maximum is certainly this element, otherwise zero, (B, C, n, L).
        ceiling: max u of each window, (B, C, L).
        fold: arguments of F.fold that describe the windows.
        size: shape of the input, (B, C, H, W).
    """

    pick: Tensor
    certain: Tensor
    ceiling: Tensor
    fold: dict[str, Any]
    size: torch.Size

    def take(self, images: Tensor) -> MaxPoolRelaxation:
        """Return the relaxation for rows; row i belongs to image images[i]."""
        return self._replace(pick=self.pick[images], certain=self.certain[images], ceiling=self.ceiling[images])

    def largest(self, x: Tensor) -> Tensor:
        """Return the largest element of each window (B, C, ...) of x (B, C, H, W) >= 0."""
        padding = self.fold["padding"]
        fold = {name: value for name, value in self.fold.items() if name != "padding"}
        return F.max_pool2d(x, **fold, padding=padding)

    def spread(self, a: Tensor) -> Tensor:
        """Sum coefficients per window and element (R, C, n, L) into coefficients per element (R, C, H, W)."""
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
) -> MaxPoolRelaxation:
    """Relax F.max_pool2d over lower, upper (B, C, H, W). The other arguments are those of F.max_pool2d."""
    if ceil_mode or return_indices or lower.dim() != 4:
        unsupported("max_pool2d has linear bounds only for inputs (B, C, H, W), without ceil_mode and return_indices")
    high, wide = (padding, padding) if isinstance(padding, int) else (padding[0], padding[-1])
    fold = {"kernel_size": kernel_size, "dilation": dilation, "stride": stride or kernel_size}

    def windows(x: Tensor) -> Tensor:
        padded = F.pad(x.flatten(0, 1)[:, None], (wide, wide, high, high), value=-torch.inf)
        unfolded = F.unfold(padded, **fold)  # (B C, n, L)
        return unfolded.view(*x.shape[:2], *unfolded.shape[1:])

    lows, highs = windows(lower), windows(upper)
    best = lows.argmax(2, keepdim=True)
    pick = torch.zeros_like(lows).scatter_(2, best, 1.0)
    others = highs.masked_fill(pick.bool(), -torch.inf).amax(2, keepdim=True)
    certain = pick * (lows.gather(2, best) >= others)
    return MaxPoolRelaxation(pick, certain, highs.amax(2), {**fold, "padding": (high, wide)}, lower.shape)


POOLS = frozenset(spellings("max_pool2d"))


def cover_rounding(
    relaxation: LinearRelaxation | MaxPoolRelaxation, lower: Tensor, upper: Tensor, rounding: Rounding
) -> tuple[LinearRelaxation | MaxPoolRelaxation, Tensor]:
    """Widen a relaxation so that it holds despite rounding, and bound the rounding error of the backward pass through
    it.

    The computed slope is wrong by a few w, the unit roundoff of the bounds (`Rounding.w`). This moves a line by that
    number times the magnitude of x. The intercepts are widened by this. In the backward pass, coefficients are
    multiplied by slopes (4 roundings) and by intercepts, which are added up. Both errors are multiples of the
    coefficients' magnitudes.

    Args:
        relaxation: the relaxation.
        lower: lower bounds l (B, ...).
        upper: upper bounds u (B, ...).
        rounding: the arithmetic.

    Returns:
        The wider relaxation, and the error (B, ...) for each output of the activation.
    """
    w, sizes = rounding.w, torch.maximum(lower.abs(), upper.abs())
    if isinstance(relaxation, MaxPoolRelaxation):
        terms = max(2 * relaxation.pick.shape[2], relaxation.ceiling[0].numel())
        return relaxation, relaxation.largest(sizes) * (2 * rounding.bounds_sum(terms)) + rounding.tiny
    steepness = 1 + relaxation.lower_slope.abs() + relaxation.upper_slope.abs()
    if relaxation.lower_intercept is None:  # slope at most 1, through 0
        moved = torch.where(relaxation.free, 32 * w * sizes, 0.0) if relaxation.free is not None else 32 * w * sizes
        relaxation = relaxation._replace(upper_intercept=relaxation.upper_intercept + moved)
        shifts = relaxation.upper_intercept.abs()
    else:
        moved = 256 * w * (1 + steepness * sizes + relaxation.lower_intercept.abs() + relaxation.upper_intercept.abs())
        relaxation = relaxation._replace(
            lower_intercept=relaxation.lower_intercept - moved, upper_intercept=relaxation.upper_intercept + moved
        )
        shifts = relaxation.lower_intercept.abs() + relaxation.upper_intercept.abs()  # type: ignore[union-attr]
    error = 32 * w * steepness * sizes + rounding.bounds_sum(lower[0].numel()) * shifts
    return relaxation, error + rounding.tiny
