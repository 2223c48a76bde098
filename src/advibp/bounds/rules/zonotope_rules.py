"""The rules of Zonotope: for each torch operation, a zonotope that holds its results over all members of a zonotope.

    linear      conv, averages, views, sums: exact. Centre and rest go by Box's rule, each generator by the operation's
                linear part
    piecewise   relu, leaky_relu, prelu, abs: exact where the sign is known; elsewhere the band between the chord and
                its parallel through 0, the one of least area, whose width a fresh symbol per neuron takes up
    s-shaped    sigmoid, tanh: the band of the smaller of the slopes at both ends
    boxed       max_pool, clamp and whatever else Box alone has a rule for: the box of the results with fresh symbols.
                Sound, but the relations to what came before are lost
    metadata    shape, dtype: answered by the centre

None of them may move elements between images, or the axis of images: see zonotope.py.
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
    """What Box's rule makes of the centre and the rest of the zonotopes among the arguments."""
    return Box.apply(func, tuple(arg.box if isinstance(arg, Zonotope) else arg for arg in args), kwargs)


def _each(func: Func, *args: Any, **kwargs: Any) -> Callable[[Tensor], Any]:
    """func on each symbol's generator by itself, for dimensions that are counted without the axis of symbols."""
    return torch.vmap(lambda generator: func(generator, *args, **kwargs))


def _mixes(func: Func) -> NoReturn:
    advice = "keep axis 0 for the images, and run them in batches of one if the network can't."
    unsupported(f"{name_of(func)} moves elements between the images of a Zonotope, or its axis 0", advice)


def _keep_apart(func: Func, shapes: list[torch.Size], call: Callable[..., Any], device: torch.device) -> None:
    """Refuse an operation that moves elements between images, if it is linear with coefficients >= 0, or a maximum.

    Each element is given the number of its image. An element of image b in the result comes from b alone if and only if
    its sources' squared distance from b, sum_i w_i (b_i - b)^2 = f(b_i^2) - 2 b f(b_i) + b^2 f(1), is zero.
    """
    numbers = [torch.arange(s[0], dtype=torch.float64, device=device).view(-1, *[1] * (len(s) - 1)) for s in shapes]
    moments = [call(*(n.pow(k).expand(s) for n, s in zip(numbers, shapes, strict=True))) for k in (0, 1, 2)]
    for ones, first, second in zip(*([m] if isinstance(m, Tensor) else m for m in moments), strict=True):
        if ones.shape[:1] != shapes[0][:1]:
            _mixes(func)
        b = numbers[0].view(-1, *[1] * (ones.ndim - 1))
        if bool((second - 2 * b * first + b * b * ones > 1e-3).any()):
            _mixes(func)


@unary("conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d")
def convolution(
    func: Func, input: Zonotope, weight: Tensor, bias: Tensor | None = None, *args: Any, **kwargs: Any
) -> Zonotope:
    if input.ndim != weight.ndim:
        _mixes(func)
    box = _box(func, input, weight, bias, *args, **kwargs)
    symbols_images = input.generators.shape[:2]
    return input._mapped(
        box, lambda g: func(g.flatten(0, 1), weight, None, *args, **kwargs).unflatten(0, symbols_images)
    )


@unary("", F.linear)
def linear(func: Func, input: Zonotope, weight: Tensor, bias: Tensor | None = None) -> Zonotope:
    if input.ndim < 2:
        _mixes(func)
    return input._mapped(_box(func, input, weight, bias), lambda g: func(g, weight))


@rule("matmul mm bmm mv")
def matmul(func: Func, input: Any, other: Any) -> Zonotope:
    if isinstance(input, Zonotope) and isinstance(other, Zonotope):
        unsupported("a matrix product of two Zonotopes has no rule")
    left = isinstance(input, Zonotope)
    zonotope, constant = (input, other) if left else (other, input)
    box = _box(func, input, other)
    if zonotope.ndim < (2 if left else 3) or constant.ndim > zonotope.ndim or len(box) != len(zonotope):
        _mixes(func)
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
    """In evaluation, as for a Box, which refuses the rest: affine in each channel."""
    box = _box(func, input, running_mean, running_var, weight, bias, training, momentum, eps)
    assert running_var is not None
    scale = (running_var + eps).rsqrt() if weight is None else weight * (running_var + eps).rsqrt()
    return input._mapped(box, lambda g: g * scale.view(-1, *[1] * (input.ndim - 2)))


def _check_broadcast(func: Func, box: Box, *operands: Any) -> None:
    """Broadcasting must neither move the axis of images nor repeat an image."""
    if any(isinstance(z, Zonotope) and (z.ndim != box.ndim or len(z) != len(box)) for z in operands):
        _mixes(func)


def _sum(func: Func, input: Any, other: Any, alpha: float) -> Zonotope:
    """input + alpha other."""
    box = _box(torch.add, input, other, alpha=alpha)
    _check_broadcast(func, box, input, other)
    if not isinstance(other, Zonotope):
        return input._mapped(box, lambda g: g)
    if not isinstance(input, Zonotope):
        return other._mapped(box, lambda g: g * alpha)
    (ours, theirs), symbols = aligned([input, other], box.dtype)
    return input._with(box, torch.add(ours, theirs, alpha=alpha), symbols)._limited()


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
    _keep_apart(func, [input.shape], lambda x: func(x, *args, **kwargs), input.device)
    return input._mapped(box, _each(func, *args, **kwargs))


@unary("", F.pad)
def pad(func: Func, input: Zonotope, pad: Any, mode: str = "constant", value: float | None = None) -> Zonotope:
    """A constant border has no generators; the other modes copy elements."""
    box = _box(func, input, pad, mode, value)
    if len(box) != len(input):
        _mixes(func)
    symbols_images = input.generators.shape[:2]
    return input._mapped(box, lambda g: F.pad(g.flatten(0, 1), pad, mode).unflatten(0, symbols_images))


@rule("cat concat concatenate stack hstack vstack dstack")
def join(func: Func, tensors: Any, *args: Any, **kwargs: Any) -> Zonotope:
    if isinstance(tensors, Zonotope):
        unsupported(f"{name_of(func)} needs a list or tuple of Zonotopes and tensors, not a Zonotope")
    box = Box.apply(func, ([t.box if isinstance(t, Zonotope) else t for t in tensors], *args), kwargs)
    zonotopes = [t for t in tensors if isinstance(t, Zonotope)]
    _keep_apart(func, [t.shape for t in tensors], lambda *parts: func(parts, *args, **kwargs), box.device)
    generators, symbols = aligned(zonotopes, box.dtype)
    zeros, laid = box.center.new_zeros(()), iter(generators)
    parts = [next(laid) if isinstance(t, Zonotope) else zeros.expand(len(symbols), *t.shape) for t in tensors]
    whole = zonotopes[0]._with(box, generators[0], symbols)
    return whole._mapped(box, lambda _: torch.vmap(lambda *parts: func(parts, *args, **kwargs))(*parts))._limited()


@unary(VIEWS)
def view(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Any:
    """Shape, order, selection by a constant, that keep the images as they are."""
    boxes = _box(func, input, *args, **kwargs)
    # Generators may lie in memory otherwise than the centre, which `view` would mind.
    copying = Tensor.reshape if func is Tensor.view else func
    _keep_apart(func, [input.shape], lambda x: copying(x, *args, **kwargs), input.device)
    if isinstance(boxes, Box):
        return input if boxes is input.box else input._mapped(boxes, _each(copying, *args, **kwargs))
    parts = _each(copying, *args, **kwargs)(input.generators)
    return tuple(input._with(box, part) for box, part in zip(boxes, parts, strict=True))


@unary("clone contiguous detach data to float double half bfloat16 cpu cuda")
def same(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    """The same numbers; generators are never written to, and need no copy."""
    box = _box(func, input, *args, **kwargs)
    constant = not box.requires_grad and input.requires_grad
    return input if box is input.box else input._mapped(box, lambda g: (g.detach() if constant else g).to(box.center))


@unary("", F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
def dropout(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    _box(func, input, *args, **kwargs)  # which refuses to drop anything
    return input


def _relaxed(input: Zonotope, slope: Tensor, shift: Tensor, error: Tensor) -> Zonotope:
    """slope input + shift + [-error, error], all (B, ...)."""
    box = Box._of(input.center * slope + shift, input.rest * slope.abs())
    return input._mapped(box, lambda g: g * slope)._widened(error)


def _bent(lower: Tensor, upper: Tensor, negative_slope: float | Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x for x >= 0, a x below, over [l, u] (B, ...), which may be tighter than the bounds of the input, as slope, shift
    and error for `_relaxed`.

    Where l < 0 < u the chord has the slope lambda = (u - a l) / (u - l) and the height h = -(1 - a) u l / (u - l) at 0,
    and f lies between it and its parallel through 0: f(x) = lambda x + h/2 +- |h|/2, whatever a. With a = 0 this is
    DeepZ's ReLU, mu = h/2.
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
    given = None if input.relu_bounds is None else input.relu_bounds(input)
    if given is not None:
        if not given[0].shape == given[1].shape == input.shape:
            shapes = f"{tuple(given[0].shape)} and {tuple(given[1].shape)}"
            raise UserError(f"relu_bounds must return bounds of this ReLU's shape {tuple(input.shape)}, not {shapes}.")
        lower, upper = torch.maximum(lower, given[0]), torch.minimum(upper, given[1])
    slope, shift, error = _bent(lower, upper, 0.0)
    if input.most_symbols is not None:
        # Keeping a neuron's symbols, which after the ReLU carry slope |g|, costs `error`. Where that is more, [0, u] is
        # the better set: a zonotope without symbols is a box, and no looser.
        carried = slope * torch.linalg.vector_norm(input.generators, 1, 0)
        cut = (error > 0) & (carried <= error)
        slope, middle = torch.where(cut, 0.0, slope), upper / 2
        shift, error = torch.where(cut, middle, shift), torch.where(cut, middle, error)
    return _relaxed(input, slope, shift, error)


@unary("leaky_relu")
def leaky_relu(func: Func, input: Zonotope, negative_slope: float = 0.01) -> Zonotope:
    box = input.to_box()
    return _relaxed(input, *_bent(box.lower, box.upper, negative_slope))


@unary("prelu")
def prelu(func: Func, input: Zonotope, weight: Tensor) -> Zonotope:
    """A slope for each channel, or one for all."""
    return leaky_relu(func, input, weight.view(-1, *[1] * (input.ndim - 2)))


@unary("abs absolute")
def absolute(func: Func, input: Zonotope) -> Zonotope:
    return leaky_relu(func, input, -1.0)


@unary("sigmoid tanh")
def s_shaped(func: Func, input: Zonotope) -> Zonotope:
    """With lambda = min(f'(l), f'(u)), the least slope on [l, u], f(x) - lambda x grows from f(l) - lambda l to
    f(u) - lambda u. A point keeps to f(l) itself."""
    box = input.to_box()
    lower, upper = box.lower, box.upper
    low, high = func(lower), func(upper)
    slopes = [1 - f * f if "tanh" in func.__name__ else f * (1 - f) for f in (low, high)]
    slope = torch.where(upper > lower, torch.minimum(*slopes), 0.0)
    error = (high - low - slope * (upper - lower)) / 2
    return _relaxed(input, slope, (high + low - slope * (upper + lower)) / 2, error.clamp(min=0))


def boxed(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Zonotope:
    box = Box.apply(func, (input.to_box(), *args), kwargs)
    if box.shape != input.shape:
        _keep_apart(func, [input.shape], lambda x: func(x, *args, **kwargs), input.device)
    return Zonotope.from_box(box, most_symbols=input.most_symbols, relu_bounds=input.relu_bounds)


@unary(METADATA)
def metadata(func: Func, input: Zonotope, *args: Any, **kwargs: Any) -> Any:
    """What depends on shape, dtype and device alone; the result is a constant."""
    return _box(func, input, *args, **kwargs)


unary("", *(func for func in BOX_RULES if func not in RULES and not func.__name__.endswith("_")))(boxed)
RULES.in_place(VIEWS)
