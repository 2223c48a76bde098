"""The rules of Zonotope: for each torch operation, a zonotope that contains its results for all members of a zonotope.

    linear      conv, averages, views, sums: exact. Center and rest follow Box's rule. Each generator is mapped by the
                linear part of the operation
    piecewise   relu, leaky_relu, prelu, abs: exact where the sign is known; otherwise the band between the chord and
                its parallel through 0, which has the smallest area, with a new symbol per neuron for its width
    s-shaped    sigmoid, tanh: the band whose slope is the smaller slope of the two ends
    boxed       max_pool, clamp and all other operations with a rule for Box: the box of the results with new symbols.
                This is sound, but the dependencies on earlier values are lost
    metadata    shape, dtype: the same as for the center

No rule may move elements between images, or move the axis of images; see zonotope.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import RULES as BOX_RULES
from advibp.bounds.box import Box
from advibp.bounds.domain import Func, name_of, unsupported
from advibp.bounds.rules.box_rules import METADATA, POSITIVE, VIEWS
from advibp.bounds.zonotope import RULES, Zonotope, aligned
from advibp.errors import UserError

rule, unary = RULES.rule, RULES.unary


def _box(func: Func, *args: Any, **kwargs: Any) -> Any:
    """Apply Box's rule to center and rest of the zonotopes among the arguments."""
    return Box.apply(func, tuple(arg.box if isinstance(arg, Zonotope) else arg for arg in args), kwargs)


def _each(func: Func, *args: Any, **kwargs: Any) -> Callable[[Tensor], Any]:
    """Return a function that applies `func` to the generator of each symbol.

    `func` does not see the axis of symbols, so axis numbers in its arguments do not include it.
    """
    return torch.vmap(lambda generator: func(generator, *args, **kwargs))


def _refuse_mixing(func: Func) -> NoReturn:
    """Raise the error for an operation that moves elements between images."""
    advice = "keep the images on axis 0, or run them in batches of one."
    unsupported(f"{name_of(func)} moves elements between the images of a Zonotope, or its axis 0", advice)


def _check_images_separate(
    func: Func, shapes: list[torch.Size], call: Callable[..., Any], device: torch.device
) -> None:
    """Raise if an operation moves elements between images.

    This check is valid only for operations f that are linear with coefficients >= 0, or a maximum. f is applied to
    tensors in which each element is replaced by a power of the number of its image: 1, b_i and b_i^2. If f is linear,
    an element of the result is a sum over its sources i with weights w_i. An element that belongs to image b depends on
    no other image exactly if the weighted squared distance

        sum_i w_i (b_i - b)^2 = f(b_i^2) - 2 b f(b_i) + b^2 f(1)

    is zero. For a maximum the right side is (max_i b_i - b)^2, which is positive if a source has a larger number than
    b. Maxima are taken over other axes than axis 0, because operations that move axis 0 are refused.
    """
    numbers = [torch.arange(s[0], dtype=torch.float64, device=device).view(-1, *[1] * (len(s) - 1)) for s in shapes]
    moments = [call(*(n.pow(k).expand(s) for n, s in zip(numbers, shapes, strict=True))) for k in (0, 1, 2)]
    for ones, first, second in zip(*([m] if isinstance(m, Tensor) else m for m in moments), strict=True):
        if ones.shape[:1] != shapes[0][:1]:
            _refuse_mixing(func)
        b = numbers[0].view(-1, *[1] * (ones.ndim - 1))
        if bool((second - 2 * b * first + b * b * ones > 1e-3).any()):
            _refuse_mixing(func)


@unary("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(
    func: Func, input: Zonotope, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Zonotope:
    if input.ndim != weight.ndim:
        _refuse_mixing(func)
    box = _box(func, input, weight, bias, *args, **kwargs)
    symbols_images = input.generators.shape[:2]
    return input._mapped(
        box, lambda g: func(g.flatten(0, 1), weight, None, *args, **kwargs).unflatten(0, symbols_images)
    )


@unary("", F.linear)
def linear(func: Func, input: Zonotope, weight: Tensor, bias: Tensor | None = None) -> Zonotope:
    if input.ndim < 2:
        _refuse_mixing(func)
    return input._mapped(_box(func, input, weight, bias), lambda g: func(g, weight))


@rule("matmul mm bmm mv")
def matmul(func: Func, input: Any, other: Any) -> Zonotope:
    if isinstance(input, Zonotope) and isinstance(other, Zonotope):
        unsupported("a matrix product of two Zonotopes has no rule")
    left = isinstance(input, Zonotope)
    zonotope, constant = (input, other) if left else (other, input)
    box = _box(func, input, other)
    if zonotope.ndim < (2 if left else 3) or constant.ndim > zonotope.ndim or len(box) != len(zonotope):
        _refuse_mixing(func)
    return zonotope._mapped(box, torch.vmap(lambda g: func(g, other) if left else func(input, g)))


@unary("", F.batch_norm)
def batch_norm(
    func: Func,
    input: Zonotope,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Zonotope:
    """BatchNorm in evaluation mode, affine in each channel. Box's rule raises in training mode."""
    box = _box(func, input, running_mean, running_var, weight, bias, training, momentum, eps)
    assert running_var is not None
    scale = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    return input._mapped(box, lambda g: g * scale.view(-1, *[1] * (input.ndim - 2)))


def _check_broadcast(func: Func, box: Box, *operands: Any) -> None:
    """Raise if broadcasting moves the axis of images or repeats an image."""
    if any(isinstance(z, Zonotope) and (z.ndim != box.ndim or len(z) != len(box)) for z in operands):
        _refuse_mixing(func)


def _sum(func: Func, input: Any, other: Any, alpha: float) -> Zonotope:
    """Return input + alpha other."""
    box = _box(torch.add, input, other, alpha=alpha)
    _check_broadcast(func, box, input, other)
    if not isinstance(other, Zonotope):
        return input._mapped(box, lambda g: g)
    if not isinstance(input, Zonotope):
        return other._mapped(box, lambda g: g * alpha)
    (first, second), symbols = aligned([input, other], box.dtype)
    return input._with(box, torch.add(first, second, alpha=alpha), symbols)._limited()


@rule("add")
def add(func: Func, input: Any, other: Any, *, alpha: float = 1) -> Zonotope:
    return _sum(func, input, other, alpha)


@rule("sub subtract")
def sub(func: Func, input: Any, other: Any, *, alpha: float = 1) -> Zonotope:
    return _sum(func, input, other, -alpha)


@rule("rsub __rsub__")
def rsub(func: Func, input: Any, other: Any, *, alpha: float = 1) -> Zonotope:
    return _sum(func, other, input, -alpha)


@unary("neg negative")
def neg(func: Func, input: Zonotope) -> Zonotope:
    return input._mapped(_box(func, input), torch.neg)


@rule("mul multiply")
def mul(func: Func, input: Any, other: Any) -> Zonotope:
    if isinstance(input, Zonotope) and isinstance(other, Zonotope):
        unsupported("a product of two Zonotopes has no rule")
    zonotope, factor = (input, other) if isinstance(input, Zonotope) else (other, input)
    box = _box(func, zonotope, factor)
    _check_broadcast(func, box, zonotope)
    return zonotope._mapped(box, lambda g: g * factor)


@rule("reciprocal __rtruediv__ __rdiv__")
def reciprocal(func: Func, *args: Any) -> NoReturn:
    unsupported("division by a Zonotope has no rule")


@rule("div divide true_divide")
def div(func: Func, input: Any, other: Any, *, rounding_mode: str | None = None) -> Zonotope:
    if isinstance(other, Zonotope):
        reciprocal(func)
    box = _box(func, input, other, rounding_mode=rounding_mode)
    _check_broadcast(func, box, input)
    return input._mapped(box, lambda g: g / other)


@unary(POSITIVE, F.interpolate)
def positive(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    box = _box(func, input, *args, **kwargs)
    _check_images_separate(func, [input.shape], lambda x: func(x, *args, **kwargs), input.device)
    return input._mapped(box, _each(func, *args, **kwargs))


@unary("", F.pad)
def pad(func: Func, input: Zonotope, pad: Any, mode: str = "constant", value: float | None = None) -> Zonotope:
    """A constant border has no generators. The other modes copy elements."""
    box = _box(func, input, pad, mode, value)
    if len(box) != len(input):
        _refuse_mixing(func)
    symbols_images = input.generators.shape[:2]
    return input._mapped(box, lambda g: F.pad(g.flatten(0, 1), pad, mode).unflatten(0, symbols_images))


@rule("cat concat concatenate stack hstack vstack dstack")
def join(func: Func, tensors: Any, *args: Any, **kwargs: Any) -> Zonotope:
    if isinstance(tensors, Zonotope):
        unsupported(f"{name_of(func)} needs a list or tuple of Zonotopes and tensors, not a Zonotope")
    box = Box.apply(func, ([t.box if isinstance(t, Zonotope) else t for t in tensors], *args), kwargs)
    zonotopes = [t for t in tensors if isinstance(t, Zonotope)]
    _check_images_separate(func, [t.shape for t in tensors], lambda *parts: func(parts, *args, **kwargs), box.device)
    generators, symbols = aligned(zonotopes, box.dtype)
    zeros, remaining = box.center.new_zeros(()), iter(generators)
    parts = [next(remaining) if isinstance(t, Zonotope) else zeros.expand(len(symbols), *t.shape) for t in tensors]
    whole = zonotopes[0]._with(box, generators[0], symbols)
    return whole._mapped(box, lambda _: torch.vmap(lambda *parts: func(parts, *args, **kwargs))(*parts))._limited()


@unary(VIEWS)
def view(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Any:
    """Change of shape, change of order, or selection by a constant, within each image."""
    boxes = _box(func, input, *args, **kwargs)
    # `view` may fail on generators, because their strides may differ from the center's.
    copying = Tensor.reshape if func is Tensor.view else func
    _check_images_separate(func, [input.shape], lambda x: copying(x, *args, **kwargs), input.device)
    if isinstance(boxes, Box):
        return input if boxes is input.box else input._mapped(boxes, _each(copying, *args, **kwargs))
    parts = _each(copying, *args, **kwargs)(input.generators)
    return tuple(input._with(box, part) for box, part in zip(boxes, parts, strict=True))


@unary("clone contiguous detach data to float double half bfloat16 cpu cuda")
def same(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    """Operations that do not change the numbers. Generators are never written to, so they are not copied."""
    box = _box(func, input, *args, **kwargs)
    constant = not box.requires_grad and input.requires_grad
    return input if box is input.box else input._mapped(box, lambda g: (g.detach() if constant else g).to(box.center))


@unary("", F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def dropout(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    """Box's rule raises in training mode."""
    _box(func, input, *args, **kwargs)
    return input


def _relaxed(input: Zonotope, slope: Tensor, shift: Tensor, error: Tensor) -> Zonotope:
    """Return slope input + shift + [-error, error], all (B, ...)."""
    box = Box._of(input.center * slope + shift, input.rest * slope.abs())
    return input._mapped(box, lambda g: g * slope)._widened(error)


def _relax_piecewise(lower: Tensor, upper: Tensor, negative_slope: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Relax f(x) = x for x >= 0, a x for x < 0, over [l, u] (B, ...), which may be tighter than the bounds of the
    input.

    If l < 0 < u, the chord from (l, a l) to (u, u) has

        slope            lambda = (u - a l) / (u - l)
        height at 0      h = u - lambda u = -(1 - a) u l / (u - l)

    f is convex for a <= 1 and concave for a >= 1, so f lies between the chord lambda x + h and its parallel lambda x
    through (0, f(0)) = (0, 0). Both are within |h|/2 of their middle:

        f(x) = lambda x + h/2 +- |h|/2

    With a = 0 this is DeepZ's ReLU with mu = h/2. If the sign of x is known, f is linear.

    Returns:
        slope, shift and error (B, ...) for `_relaxed`.
    """
    crossing = (lower < 0) & (upper > 0)
    width = torch.where(crossing, upper - lower, 1.0)
    known = torch.where(lower >= 0, torch.ones_like(lower), negative_slope)
    slope = torch.where(crossing, (upper - negative_slope * lower) / width, known)
    height = torch.where(crossing, (negative_slope - 1) * upper * lower / width, 0.0)
    return slope, height / 2, height.abs() / 2


@unary("relu")
def relu(func: Func, input: Zonotope) -> Zonotope:
    box = input.to_box()
    lower, upper = box.lower, box.upper
    bounds = None if input.relu_bounds is None else input.relu_bounds(input)
    if bounds is not None:
        if not bounds[0].shape == bounds[1].shape == input.shape:
            shapes = f"{tuple(bounds[0].shape)} and {tuple(bounds[1].shape)}"
            raise UserError(f"relu_bounds must return bounds of this ReLU's shape {tuple(input.shape)}, not {shapes}.")
        lower, upper = torch.maximum(lower, bounds[0]), torch.minimum(upper, bounds[1])
    slope, shift, error = _relax_piecewise(lower, upper, 0.0)
    if input.max_symbols is not None:
        # After the ReLU, the radius is slope |g|_1 from the symbols, plus `error`, plus slope times the rest. Where
        # `error` is larger than the part from the symbols, the interval [0, u] without symbols is used instead. A
        # zonotope without symbols is therefore as tight as a box.
        from_symbols = slope * torch.linalg.vector_norm(input.generators, 1, 0)
        use_interval = (error > 0) & (from_symbols <= error)
        slope, middle = torch.where(use_interval, 0.0, slope), upper / 2
        shift, error = torch.where(use_interval, middle, shift), torch.where(use_interval, middle, error)
    return _relaxed(input, slope, shift, error)


@unary("leaky_relu")
def leaky_relu(func: Func, input: Zonotope, negative_slope: float = 0.01) -> Zonotope:
    box = input.to_box()
    return _relaxed(input, *_relax_piecewise(box.lower, box.upper, negative_slope))


@unary("prelu")
def prelu(func: Func, input: Zonotope, weight: Tensor) -> Zonotope:
    """One slope per channel, or one for all."""
    return leaky_relu(func, input, weight.view(-1, *[1] * (input.ndim - 2)))


@unary("abs absolute")
def absolute(func: Func, input: Zonotope) -> Zonotope:
    return leaky_relu(func, input, -1.0)


@unary("sigmoid tanh")
def s_shaped(func: Func, input: Zonotope) -> Zonotope:
    """Relax f over [l, u] by a band of slope lambda = min(f'(l), f'(u)).

    f' increases up to 0 and decreases from there, so lambda is the smallest slope on [l, u], and f(x) - lambda x is
    nondecreasing. It therefore lies between f(l) - lambda l and f(u) - lambda u:

        f(x) = lambda x + (f(u) + f(l) - lambda (u + l))/2 +- (f(u) - f(l) - lambda (u - l))/2

    With f' = f (1 - f) for the sigmoid and f' = 1 - f^2 for tanh. If l = u, lambda is set to 0 and the result is f(l).
    """
    box = input.to_box()
    lower, upper = box.lower, box.upper
    low, high = func(lower), func(upper)
    slopes = [1 - f * f if "tanh" in func.__name__ else f * (1 - f) for f in (low, high)]
    slope = torch.where(upper > lower, torch.minimum(*slopes), 0.0)
    error = (high - low - slope * (upper - lower)) / 2
    return _relaxed(input, slope, (high + low - slope * (upper + lower)) / 2, error.clamp(min=0))


def boxed(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    """Apply Box's rule to the bounds of the zonotope. The result has new symbols."""
    box = Box.apply(func, (input.to_box(), *args), kwargs)
    if box.shape != input.shape:
        _check_images_separate(func, [input.shape], lambda x: func(x, *args, **kwargs), input.device)
    return Zonotope.from_box(box, max_symbols=input.max_symbols, relu_bounds=input.relu_bounds)


@unary(METADATA)
def metadata(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Any:
    """Functions of shape, dtype and device. The result is a constant."""
    return _box(func, input, *args, **kwargs)


unary("", *(func for func in BOX_RULES if func not in RULES and not func.__name__.endswith("_")))(boxed)
RULES.in_place(VIEWS)
