"""Linear relaxations of activations: two lines that enclose an activation f over the bounds [l, u] of its input.

    lower_slope x + lower_intercept <= f(x) <= upper_slope x + upper_intercept        for all x in [l, u]

CROWN replaces every activation by its relaxation. Every function takes l, u (B, ...) and returns tensors of that shape.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from advibp.bounds.domain import Func, spellings, unsupported
from advibp.bounds.rounding import Rounding

#: Learning rate of the free slopes of curves, relative to those of ReLUs. Their best values lie near the default.
CURVE_RATE = 0.1


class LinearRelaxation(NamedTuple):
    """The two lines of each neuron, (B, ...) each.

    Attributes:
        lower_slope: slope of the lower line.
        lower_intercept: intercept of the lower line, or None if it is 0.
        upper_slope: slope of the upper line.
        upper_intercept: intercept of the upper line.
        slope_range: (smallest, largest) free slope.
        curve: the activation, if it is s-shaped.
    """

    lower_slope: Tensor
    lower_intercept: Tensor | None
    upper_slope: Tensor
    upper_intercept: Tensor
    slope_range: tuple[float, float] = (0.0, 1.0)
    curve: SShaped | None = None

    @property
    def free(self) -> Tensor:
        """Which of `free_slopes` may change: those of unstable neurons, and all of a curve."""
        if self.curve is None:
            return ~(self.upper_intercept <= 0)  # a neuron with NaN bounds counts as unstable
        return torch.ones_like(self.free_slopes, dtype=torch.bool)

    @property
    def free_slopes(self) -> Tensor:
        """The slopes that may change: those of the lower lines (B, ...), or of both lines (B, 2, ...) of a curve.

        Those of a curve are relative to its slope at 0.
        """
        if self.curve is None:
            return self.lower_slope
        return (torch.stack([self.lower_slope, self.upper_slope], 1) / self.curve.steepest).clamp(*self.slope_range)

    def widened(self, by: Tensor) -> LinearRelaxation:
        """Move both lines of a curve outwards by a number (B, ...)."""
        assert self.lower_intercept is not None
        return self._replace(lower_intercept=self.lower_intercept - by, upper_intercept=self.upper_intercept + by)


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
    chord, intercept, _ = _Chord.apply(lower, upper)
    on = torch.gt(chord.detach(), 0.5, out=torch.empty_like(chord))  # 1 or 0: s > 1/2 means u > -l
    if negative_slope:
        # torch.where of two Python numbers would round them to float32.
        on = torch.full_like(on, negative_slope).masked_fill(on > 0, 1.0)
        chord = torch.where(chord < 1, negative_slope + (1 - negative_slope) * chord, 1.0)
        intercept = (1 - negative_slope) * intercept
    return LinearRelaxation(on, None, chord, intercept, (negative_slope, 1.0))


class _Chord(torch.autograd.Function):
    """Slope s = u / (u - l) and intercept -l s of the chord of ReLU; 1 and 0 if l >= 0, 0 and 0 if u <= 0.

    With l clamped to at most 0 and u to at least 0, one formula serves all three cases, without torch.where, which is
    slow on CPUs. Where l < 0 < u, the gradient is

        ds/dl = s / (u - l),    ds/du = (1 - s) / (u - l),    d(-l s)/dl = -s^2,    d(-l s)/du = (1 - s)^2

    and it is 0 elsewhere.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(lower: Tensor, upper: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        low, up = lower.clamp(max=0), upper.clamp(min=0)
        info = torch.finfo(lower.dtype)
        width = (up - low).clamp_(info.tiny, info.max)  # if it overflows, a steeper line through (l, 0) is sound too
        slope = up / width
        return slope, low.mul_(slope).neg_(), width

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.save_for_backward(output[0], output[2])
        ctx.mark_non_differentiable(output[2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope_grad: Tensor, intercept_grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        slope, width = ctx.saved_tensors
        rest = 1 - slope
        unstable = torch.gt(slope * rest, 0, out=torch.empty_like(slope))  # 1 or 0
        # Masks come first: where l = u = 0 the width is so small that a gradient divided by it overflows.
        by_width, to_intercept = (slope_grad * unstable).div_(width), intercept_grad * unstable
        to_lower = torch.addcmul(by_width, to_intercept, slope, value=-1).mul_(slope)
        return to_lower, by_width.addcmul_(to_intercept, rest).mul_(rest)


def is_unstable(lower: Tensor, upper: Tensor) -> Tensor:
    """Return which neurons may have 0 between their bounds. NaN bounds count as unstable; their lines are NaN."""
    return ~(lower >= 0) & ~(upper <= 0)


@dataclass(frozen=True)
class SShaped:
    """The relaxation of an s-shaped f: convex below 0, concave above 0, and f' even with its maximum at 0.

    For every t >= 0 there is a pair of lines with slope s = f'(t). The function g(x) = f(x) - s x decreases up to -t,
    increases up to t, and decreases again. Over [l, u] its minimum is therefore at -t, moved into [l, u], or at u, and
    its maximum is at t, moved into [l, u], or at l:

        s x + min(g(clamp(-t, l, u)), g(u)) <= f(x) <= s x + max(g(clamp(t, l, u)), g(l))

    These are the tightest lines with this slope. Lower and upper line may have different slopes, and each slope in
    [0, f'(0)] is sound. The default is the slope of the chord, or that of the tangent at the middle of [l, u], moved to
    x <= 0 for the lower and to x >= 0 for the upper line, whichever gives the smaller area. If u - l < 1e-6, it is f'
    at the middle, because the slope of the chord would be dominated by rounding errors.

    Attributes:
        f: the activation.
        derivative: f'.
        steepest: f'(0).
        position: v in [0, 1] -> the t >= 0 with f'(t) = v f'(0). It may be inaccurate, because f'(t) is computed again.

    Examples:
        >>> import torch
        >>> from advibp.bounds.linear.relaxation import ACTIVATIONS
        >>> lines = ACTIVATIONS[torch.tanh](torch.tensor([-1.0]), torch.tensor([1.0]))  # chord and parallel lines
        >>> bool(lines.lower_slope == lines.upper_slope), bool(lines.lower_intercept == -lines.upper_intercept)
        (True, True)
    """

    f: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor]
    steepest: float
    position: Callable[[Tensor], Tensor]

    def __call__(self, lower: Tensor, upper: Tensor) -> LinearRelaxation:
        """Return the lines over [l, u], (B, ...) each."""
        middle, width = (lower + upper) / 2, upper - lower
        flat = width < 1e-6
        chord = (self.f(upper) - self.f(lower)) / torch.where(flat, 1.0, width)
        chord = (torch.where(flat, self.derivative(middle), chord) / self.steepest).clamp(0, 1)
        tangents = torch.stack([middle.clamp(max=0), middle.clamp(min=0)], 1)  # the lower line is a tangent at x <= 0
        tangents = torch.where(flat.unsqueeze(1), chord.unsqueeze(1), self.derivative(tangents) / self.steepest)
        chords = torch.stack([chord, chord], 1)
        by_chord, by_tangent = (self.with_slopes(slopes, lower, upper) for slopes in (chords, tangents))
        tighter = [
            _at(by_tangent[:2], middle) > _at(by_chord[:2], middle),
            _at(by_tangent[2:4], middle) < _at(by_chord[2:4], middle),
        ]
        slopes = torch.where(torch.stack(tighter, 1), tangents, chords)
        return self.with_slopes(slopes, lower, upper)._replace(curve=self)

    def with_slopes(self, slopes: Tensor, lower: Tensor, upper: Tensor) -> LinearRelaxation:
        """Return the lines with given slopes (B, 2, ...) of the lower and the upper line, relative to f'(0)."""
        t = self.position(slopes.detach().clamp(0, 1))
        s = self.derivative(t)
        if slopes.requires_grad:
            s = s + (slopes - slopes.detach()) * self.steepest
        below, above = s.unbind(1)
        first, last = torch.maximum(-t[:, 0], lower), torch.minimum(t[:, 1], upper)
        # By the envelope theorem the tangent point has no gradient, unless it is an end.
        first, last = torch.minimum(first, upper), torch.maximum(last, lower)
        least = torch.minimum(self.f(first) - below * first, self.f(upper) - below * upper)
        most = torch.maximum(self.f(last) - above * last, self.f(lower) - above * lower)
        return LinearRelaxation(below, least, above, most)


def _at(line: tuple[Any, ...], x: Tensor) -> Tensor:
    """Return the value of a line, given by slope and intercept, at x."""
    return line[0] * x + line[1]


def _sigmoid_slope(x: Tensor) -> Tensor:
    """The derivative sigmoid(x) sigmoid(-x)."""
    return torch.sigmoid(x) * torch.sigmoid(-x)


def _sigmoid_position(v: Tensor) -> Tensor:
    """Solve sigmoid(t) sigmoid(-t) = v / 4: sigmoid(-t) = (1 - sqrt(1 - v)) / 2."""
    return -torch.logit(v / (2 * (1 + (1 - v).sqrt())))


def _tanh_slope(x: Tensor) -> Tensor:
    """The derivative 1 - tanh(x)^2."""
    return 1 - torch.tanh(x) ** 2


def _tanh_position(v: Tensor) -> Tensor:
    """Solve 1 - tanh(t)^2 = v."""
    return torch.atanh((1 - v).sqrt())


#: Piecewise linear activations with a kink at 0. Tighter bounds help only their unstable neurons.
PIECEWISE_LINEAR = frozenset(spellings("relu relu_ leaky_relu leaky_relu_"))
#: torch function -> relaxation(lower, upper, *constants).
ACTIVATIONS: dict[Func | None, Callable[..., LinearRelaxation]] = {
    **dict.fromkeys(spellings("relu relu_"), relu),
    **dict.fromkeys(spellings("leaky_relu leaky_relu_"), leaky_relu),
    **dict.fromkeys(spellings("sigmoid sigmoid_"), SShaped(torch.sigmoid, _sigmoid_slope, 0.25, _sigmoid_position)),
    **dict.fromkeys(spellings("tanh tanh_"), SShaped(torch.tanh, _tanh_slope, 1.0, _tanh_position)),
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


def curve_error(sizes: Tensor, unit: float) -> Tensor:
    """Return the error (B, ...) of the lines of an s-shaped curve, whose slopes are at most 1.

    Args:
        sizes: largest magnitudes (B, ...) of its input.
        unit: unit roundoff of the bounds.
    """
    return 256 * unit * (3 + 5 * sizes)


def cover_rounding(
    relaxation: LinearRelaxation | MaxPoolRelaxation, lower: Tensor, upper: Tensor, rounding: Rounding
) -> tuple[LinearRelaxation | MaxPoolRelaxation, Tensor]:
    """Widen a relaxation so that it holds despite rounding, and bound the rounding error of the backward pass through
    it.

    The computed slope is wrong by a few w, the unit roundoff of the bounds (`Rounding.w`). This moves a line by that
    number times the magnitude of x. The intercepts are widened by this. In the backward pass, coefficients are
    multiplied by slopes (4 roundings) and by intercepts, which are added up. Both errors are multiples of the
    coefficients' magnitudes. The error covers every choice of the free slopes. Curves have slopes in [0, 1], and values
    and intercepts of magnitude at most 1 and 1 + |x|.

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
    if relaxation.curve is None:  # slope at most 1, through 0
        moved = torch.where(relaxation.free, 32 * w * sizes, 0.0)
        relaxation = relaxation._replace(upper_intercept=relaxation.upper_intercept + moved)
        shifts = relaxation.upper_intercept.abs()
        slopes = relaxation.lower_slope.abs() + relaxation.upper_slope.abs()
    else:
        relaxation, shifts = relaxation.widened(curve_error(sizes, w)), 2.01 * (1 + sizes)
        slopes = torch.full_like(sizes, 2.0)
    error = 32 * w * (1 + slopes) * sizes + rounding.bounds_sum(lower[0].numel()) * shifts
    return relaxation, error + rounding.tiny
