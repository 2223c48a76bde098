"""Rounding: how far an operation in floating-point arithmetic can be from the same operation on real numbers.

A network in float32 does not compute the function that its weights define. Each operation adds an error, which depends
on the order of its sums and on whether products are fused with sums. For a sum of n products (Higham 2002, section 3.1)

    |fl(W x + b) - (W x + b)| <= gamma_(n+1) (|W| |x| + |b|),    gamma_k = k u / (1 - k u),    u = 2^-24 for float32

holds for every order, with and without fused multiply-add: each product passes at most n + 1 roundings on its way. The
rest of this module is that statement for every operation that has a rule, as a function of the box of its inputs.

Bounds are computed in floating-point arithmetic too, whose unit is w (u and w are equal where a float32 network is
bounded in float32). Every error here therefore has two parts: that of the network (u) and that of the bounds (w). The
second part leaves *room*: a set is wider than needed by at least 32 w (|center| + radius), of which the operation that
uses it next may lose 8 w (|center| + radius) to the rounding of its own first steps. docs/arithmetic.md has the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import Box
from advibp.bounds.domain import Func, name_of, unsupported

#: Relative error of a library function such as exp or tanh, in units u. Eight units in the last place: the libraries
#: of torch promise one to four.
LIBRARY = 16
#: What a set is wider than needed, in units w of its size.
ROOM = 32

#: Operations of Box's rule `positive` that copy elements.
COPIES = {
    *("clone", "flip", "roll", "repeat", "tile", "index_select", "gather"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
}
#: Monotone operations that select an element; `clamp` rounds its ends.
_SELECTING = {
    *("relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max", "amax", "amin"),
    *(f"{kind}max_pool{dims}d" for kind in ("", "adaptive_") for dims in (1, 2, 3)),
}


@dataclass(frozen=True)
class Rounding:
    """The arithmetic that a network runs in, and that in which its bounds are computed.

    Args:
        network: the type of the network's numbers, float32 or float64.
        own: the type in which bounds are computed.
        doubled: whether the network that bounds are computed with is a copy in float64 of one in float32. A cast of
            that copy to float32 is then no cast of the bounds.
    """

    network: torch.dtype
    own: torch.dtype
    doubled: bool = False

    def __post_init__(self) -> None:
        for dtype in (self.network, self.own):
            if dtype not in (torch.float32, torch.float64):
                unsupported(
                    f"{dtype} has too few digits for a proof of what the network computes",
                    "convert the network to float32.",
                )

    @cached_property
    def u(self) -> float:
        """Unit roundoff of the network."""
        return torch.finfo(self.network).eps / 2

    @cached_property
    def w(self) -> float:
        """Unit roundoff of the bounds."""
        return torch.finfo(self.own).eps / 2

    @cached_property
    def tiny(self) -> float:
        """The smallest normal number of either: what is below may be flushed to zero."""
        return max(torch.finfo(self.network).tiny, torch.finfo(self.own).tiny)

    @cached_property
    def negligible(self) -> float:
        """A number whose product with u exceeds `tiny`: magnitudes below it are rounded up to it."""
        return 4 * self.tiny / self.u

    @cached_property
    def largest(self) -> float:
        """Sizes up to this one can't overflow, whatever the order of a sum."""
        return min(torch.finfo(self.network).max, torch.finfo(self.own).max) / 4

    def network_sum(self, terms: int) -> float:
        """Error of a sum of so many products in the network, relative to the sum of their sizes."""
        return _gamma(terms + 2, self.u)

    def own_sum(self, terms: int) -> float:
        """The same for the bounds, with the room of their result."""
        return _gamma(terms + ROOM, self.w)

    def of_sum(self, terms: int, back: int = 0) -> float:
        """Error of both. `back`: the terms of the transposed operation, which linear bounds compute."""
        own = self.own_sum(max(terms, back))
        return (self.network_sum(terms) + 2 * own) * (1 + 4 * own)

    def of(self, roundings: int) -> float:
        """Error of an elementwise operation with so many roundings, relative to the size of its operands."""
        return (roundings * self.u + 2 * ROOM * self.w) * (1 + 64 * self.w)


def _gamma(count: int, unit: float) -> float:
    if count * unit >= 0.5:
        unsupported(
            f"a sum of {count:,} terms has no bound on its rounding error in this arithmetic",
            "certify with arithmetic='real', which ignores rounding.",
        )
    return count * unit / (1 - count * unit)


def size(value: Any) -> Any:
    """The largest magnitude of each element: |center| + radius of a box, |x| of a constant."""
    if isinstance(value, Box):
        return value.center.abs().add_(value.radius)
    return value.double().abs() if isinstance(value, Tensor) and not value.is_floating_point() else abs(value)


@dataclass(frozen=True)
class Product:
    """The sum of products in an affine layer: magnitudes of its weights, and how many terms a sum has.

    Args:
        call: x -> |W| x for x (B, ...) >= 0, plus a bias (C,) if one is given.
        bias: |b| (C,), or None.
        terms: products in a sum of the layer; `back`: of its transpose.
        norm: a number that is at least sum_j |W_ij| for every i.
    """

    call: Callable[[Tensor, Tensor | None], Tensor]
    bias: Tensor | None
    channels: int
    terms: int
    back: int
    norm: Tensor

    def offsets(self, rounding: Rounding, share: float, like: Tensor) -> Tensor:
        """share |b| and what flushing to zero may add, (C,)."""
        flushed = rounding.tiny * (4 * self.norm + 8 * (self.terms + 2))
        rest = flushed.to(like).expand(self.channels)
        return rest if self.bias is None else torch.add(rest, self.bias, alpha=share)

    def error(self, rounding: Rounding, box: Box) -> Tensor:
        """How far an evaluation may be from the real one: gamma (|W| |x| + |b|)."""
        share = rounding.of_sum(self.terms, self.back)
        inputs = size(box).add_(rounding.negligible).mul_(share)
        return checked(rounding, self.call(inputs, self.offsets(rounding, share, inputs)), share)

    def radius(self, rounding: Rounding, box: Box) -> Tensor:
        """|W| r and the error together, by one product."""
        own, share = rounding.own_sum(self.terms), rounding.of_sum(self.terms) - rounding.own_sum(self.terms)
        inputs = box.center.abs().mul_(share).add_(box.radius, alpha=1 + 2 * own + share)
        return checked(rounding, self.call(inputs, self.offsets(rounding, share, inputs)), share)


def checked(rounding: Rounding, error: Tensor, share: float) -> Tensor:
    """Infinite errors where a sum may overflow: its terms' sizes add up to error / share at most."""
    limit = share * rounding.largest
    if error.numel() and not bool(error.amax() < limit):
        return error.masked_fill(~(error < limit), math.inf)
    return error


def product(func: Func, rule: str, args: tuple[Any, ...], kwargs: dict[str, Any], rounding: Rounding) -> Product:
    """The product of a convolution, a linear layer or a matrix product, one of whose arguments is a set."""
    if rule == "matmul":
        return _matmul(func, args, rounding)
    named = dict(zip(("input", "weight", "bias"), args, strict=False))
    rest = args[3:]
    given = {k: v for k, v in kwargs.items() if k not in named and k not in ("input", "weight", "bias")}
    named |= {k: v for k, v in kwargs.items() if k in ("weight", "bias")}
    weight, bias = named["weight"], named.get("bias")
    magnitude = weight.detach().abs().clamp(min=rounding.negligible)
    outputs, inputs = len(weight), weight[0].numel()
    channels, terms, back = outputs, inputs, outputs * (weight[0, 0].numel() if weight.dim() > 2 else 1)
    if "transpose" in name_of(func):
        groups = int(rest[3] if len(rest) > 3 else given.get("groups", 1))
        channels, terms, back = weight.shape[1] * groups, back, terms
    return Product(
        lambda x, b: func(x, magnitude, b, *rest, **given),
        None if bias is None else bias.detach().abs(),
        channels,
        terms,
        back,
        magnitude.sum(),
    )


def _matmul(func: Func, args: tuple[Any, ...], rounding: Rounding) -> Product:
    left, right = args
    terms = left.shape[-1]
    constant = (right if isinstance(left, Box) else left).detach().abs().clamp(min=rounding.negligible)
    # A set that is used with every matrix of a batch gets the sum of their coefficients on the way back.
    most = max(*left.shape[-2:], *right.shape[-2:]) * max(1, constant[..., :1, :1].numel() if constant.ndim > 2 else 1)

    def call(x: Tensor, offset: Tensor | None) -> Tensor:
        result = func(x, constant) if isinstance(left, Box) else func(constant, x)
        return result if offset is None else result + offset

    return Product(call, None, 1, terms, most, constant.sum())


Error = Callable[..., Tensor | None]


def error(rounding: Rounding, rule: str, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """How far an evaluation of func(*args) may be from the real one, elementwise; None where it is exact.

    Args:
        rule: the name of Box's rule for `func`.
        args, kwargs: of the call, with a plain Box for every set.
        result: what Box's rule makes of them.
    """
    if rule not in _ERRORS:
        unsupported(f"{name_of(func)} has no bound on its rounding error", "certify with arithmetic='real'.")
    return _ERRORS[rule](rounding, func, args, kwargs, result)


def _exact(*_: Any) -> None:
    return None


def _affine(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    rule = "matmul" if name_of(func).split(".")[-1] in ("matmul", "mm", "bmm", "mv") else "affine"
    box = next(arg for arg in args if isinstance(arg, Box))
    return product(func, rule, args, kwargs, rounding).error(rounding, box)


def _sum(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """input + alpha other; a number is rounded to the network's type, and so is alpha."""
    alpha = abs(kwargs.get("alpha", 1))
    both = all(isinstance(arg, Box) for arg in args[:2])
    sizes = [size(arg) for arg in args[:2]]
    if "rsub" in name_of(func):
        sizes.reverse()
    return _plus_tiny(rounding, sizes[0] + alpha * sizes[1], rounding.of(1 if both and alpha == 1 else 4))


def _plus_tiny(rounding: Rounding, sizes: Tensor, share: float) -> Tensor:
    return checked(rounding, torch.add(sizes * share, 16 * rounding.tiny), share)


def _mul(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    box, factor = args if isinstance(args[0], Box) else args[::-1]
    if isinstance(factor, bool) or (isinstance(factor, Tensor) and factor.dtype == torch.bool):
        return None
    # Factors and values below the smallest normal number may be flushed to zero.
    small = rounding.negligible
    return _plus_tiny(rounding, (size(box) + small) * (size(factor) + small), rounding.of(3))


def _div(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """By a number torch may divide or multiply by its reciprocal."""
    divisor = size(args[1])
    least = divisor.min() if isinstance(divisor, Tensor) else divisor
    if not float(least) > rounding.negligible:
        unsupported("a division by a number next to 0 has no bound on its rounding error", "scale the network.")
    # The reciprocal of a large number may be flushed to zero.
    sizes = size(args[0])
    error = _plus_tiny(rounding, (sizes + rounding.negligible) / divisor, rounding.of(5))
    return error + sizes * (4 * rounding.tiny)


def _batch_norm(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """As x alpha + beta with alpha = weight / sqrt(var + eps), beta = bias - mean alpha, or as written in the paper.

    Each takes at most nine roundings of numbers no larger than (|x| + |mean|) |alpha| + |bias|; rsqrt counts as four.
    """
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    mean, var, weight, bias = (given.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    assert isinstance(mean, Tensor)
    assert isinstance(var, Tensor)
    shape = (-1, *[1] * (given["input"].ndim - 2))
    if not (bool((var >= 0).all()) and float((var + given.get("eps", 1e-5)).min()) > rounding.negligible):
        unsupported("BatchNorm with a variance next to 0 has no bound on its rounding error", "raise its eps.")
    inverse = (var + given.get("eps", 1e-5)).detach().rsqrt().view(shape)
    inputs = size(given["input"]).add_(mean.detach().abs().view(shape) + rounding.negligible)
    # What the weight multiplies may have been flushed to zero, or have overflowed; so may the weight itself.
    normed = inputs * (inverse + rounding.negligible)
    factor = torch.ones_like(inverse) if weight is None else weight.detach().abs().view(shape)
    sizes = normed * factor.clamp(min=rounding.negligible) + factor * rounding.negligible
    sizes = sizes if bias is None else sizes + bias.detach().abs().view(shape)
    error = _plus_tiny(rounding, sizes, rounding.of(16)) + inputs * rounding.negligible * rounding.of(16)
    return error.masked_fill(~(normed < rounding.largest), math.inf)


def _positive(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """Sums and means of n elements."""
    name = name_of(func).split(".")[-1]
    if name in COPIES:
        return None
    box = args[0]
    terms = _terms(name, box, args, kwargs, result)
    sizes = func(size(box), *args[1:], **kwargs)
    share = rounding.of_sum(terms + 2, terms + 2)
    # The sum that a mean divides must not overflow either.
    divisor = max(terms, *(int(v) for v in (*args[1:], *kwargs.values()) if isinstance(v, int)), 1)
    return checked(rounding, (sizes * share).add_(4 * (terms + 4) * rounding.tiny), share / divisor)


def _terms(name: str, box: Box, args: Any, kwargs: dict[str, Any], result: Box) -> int:
    """How many elements are added up, at most."""
    if name.startswith("avg_pool"):
        kernel = args[1] if len(args) > 1 else kwargs["kernel_size"]
        dims = int(name[8])
        return int(math.prod((kernel,) * dims if isinstance(kernel, int) else (*kernel,) * (dims // len(kernel))))
    if name.startswith("adaptive_avg_pool"):
        dims = int(name[17])
        pairs = zip(box.shape[-dims:], result.shape[-dims:], strict=True)
        return math.prod(-(-n // m) + 1 for n, m in pairs)
    if name == "cumsum":
        return max(box.shape, default=1)
    return -(-box.center.numel() // max(1, result.center.numel()))


def _pad(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """A border of a number that is rounded to the network's type."""
    given = {**dict(zip(("input", "pad", "mode", "value"), args, strict=False)), **kwargs}
    value = given.get("value")
    if not value or given.get("mode", "constant") != "constant":
        return None
    return F.pad(torch.zeros_like(given["input"].center), given["pad"], value=abs(value) * rounding.of(1))


def _interpolate(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """Weights follow from positions, which are computed with errors of a few units of the image's size."""
    box, mode = args[0], kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
    if mode in ("nearest", "nearest-exact"):
        _check_pixels(rounding, func, args, kwargs)
        return None
    most = max(*box.shape[2:], *result.shape[2:])
    spatial = tuple(range(2, box.ndim))
    if mode == "area":
        windows = math.prod(-(-n // m) + 1 for n, m in zip(box.shape[2:], result.shape[2:], strict=True))
        share = rounding.of_sum(windows + 2, windows + 2)
        sizes = func(size(box), *args[1:], **kwargs)
        return checked(rounding, (sizes * share).add_(4 * (windows + 4) * rounding.tiny), share / windows)
    sizes = size(box).amax(spatial, keepdim=True).expand(result.shape)
    return _plus_tiny(rounding, sizes, rounding.of(64 * (most + 2)) + 64 * (most + 2) * rounding.w)


def _check_pixels(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any]) -> None:
    """Refuse where the network's type and that of the bounds do not copy the same pixels."""
    shape = args[0].shape
    count = math.prod(shape[2:])
    numbers = torch.arange(count, device=args[0].device).view(1, 1, *shape[2:])
    found = [func(numbers.to(dtype), *args[1:], **kwargs).long() for dtype in (torch.float32, torch.float64)]
    if count >= 2**24 or not torch.equal(*found):
        unsupported("interpolation to the nearest pixel depends on rounding here", "certify with arithmetic='real'.")


def _monotone(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    name = name_of(func).split(".")[-1].rstrip("_")
    sizes = size(result)
    if name in _SELECTING:
        ends = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, (float, Tensor))] if name[0] in "ch" else []
        least = sum((size(end) for end in ends), 0.0)
        return _plus_tiny(rounding, sizes + least, rounding.of(1))
    if name == "hardsigmoid":
        return _plus_tiny(rounding, torch.ones_like(sizes), rounding.of(16))
    if name in ("selu", "elu", "celu"):  # exp(x) - 1 may be computed as it is written
        alpha = {**dict(zip(("input", "alpha"), args, strict=False)), **kwargs}.get("alpha", 2.0)
        return _plus_tiny(rounding, sizes + 2 * abs(alpha) + size(args[0]), rounding.of(2 * LIBRARY))
    if name == "softplus":
        given = {**dict(zip(("input", "beta", "threshold"), args, strict=False)), **kwargs}
        step = math.exp(-given.get("threshold", 20.0)) / given.get("beta", 1.0)
        sizes = sizes + size(args[0])
        return _plus_tiny(rounding, sizes, rounding.of(2 * LIBRARY)).add_(step)
    return _plus_tiny(rounding, sizes, rounding.of(2 * LIBRARY) + 2 * LIBRARY * rounding.w)


def _turning(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """abs, square, prelu, leaky_relu: up to three roundings of the result. Slopes and values may be flushed to zero."""
    slopes = [torch.as_tensor(a) for a in (*args[1:], *kwargs.values()) if isinstance(a, (int, float, Tensor))]
    steep = 1 + max((float(slope.abs().max()) for slope in slopes), default=0.0)
    error = _plus_tiny(rounding, size(result), rounding.of(4))
    return error + (size(args[0]) + steep) * (16 * rounding.tiny)


_ERRORS: dict[str, Error] = {
    **dict.fromkeys(("affine", "linear", "matmul"), _affine),
    **dict.fromkeys(("add", "sub", "rsub"), _sum),
    # (The centre and radius of a ReLU's result need less room than its input has.)
    **dict.fromkeys(("neg", "join", "view", "dropout", "relu"), _exact),
    **dict.fromkeys(("monotone", "elu", "softplus"), _monotone),
    **dict.fromkeys(("turning", "leaky_relu"), _turning),
    "mul": _mul,
    "div": _div,
    "batch_norm": _batch_norm,
    "positive": _positive,
    "pad": _pad,
    "interpolate": _interpolate,
}
