"""The rounding error of every operation that has a rule, as a function of the box of its inputs.

Each function bounds |fl(f(x)) - f(x)| for all x in the box, plus the error of the bounds themselves. See rounding.py
for the notation, and docs/arithmetic.md for the proofs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from advibp.bounds.box import Box
from advibp.bounds.domain import Func, name_of, spellings, unsupported
from advibp.bounds.rounding import Rounding, checked, size

#: Relative error of a library function such as exp or tanh, in units u: eight units in the last place. The libraries of
#: torch promise one to four.
LIBRARY = 16
#: Operations with Box's rule `positive` that copy elements.
COPIES = {
    *("clone", "flip", "roll", "repeat", "tile", "index_select", "gather"),
    *("pixel_shuffle", "pixel_unshuffle", "channel_shuffle"),
}
_TRANSPOSED = frozenset(spellings("conv_transpose1d conv_transpose2d conv_transpose3d"))
#: Monotone operations that select an element; `clamp` rounds its limits.
_SELECTING = {
    *("relu6", "hardtanh", "clamp", "clip", "clamp_min", "clamp_max", "amax", "amin"),
    *(f"{kind}max_pool{dims}d" for kind in ("", "adaptive_") for dims in (1, 2, 3)),
}


@dataclass(frozen=True)
class Product:
    """The sum of products in an affine layer.

    Attributes:
        call: x -> |W| x for x (B, ...) >= 0, plus a bias (C,) if one is given.
        bias: |b| (C,), or None.
        channels: C.
        terms: number of products in a sum of the layer.
        back: the same for the transposed layer.
        norm: a number that is at least sum_j |W_ij| for every i.
    """

    call: Callable[[Tensor, Tensor | None], Tensor]
    bias: Tensor | None
    channels: int
    terms: int
    back: int
    norm: Tensor

    def offsets(self, rounding: Rounding, share: float, like: Tensor) -> Tensor:
        """Return share |b| plus the error of flushing to zero, (C,)."""
        flushed = rounding.tiny * (4 * self.norm + 8 * (self.terms + 2))
        rest = flushed.to(like).expand(self.channels)
        return rest if self.bias is None else torch.add(rest, self.bias, alpha=share)

    def error(self, rounding: Rounding, box: Box) -> Tensor:
        """Return the rounding error gamma (|W| |x| + |b|) for all x in the box."""
        share = rounding.total_sum(self.terms, self.back)
        inputs = size(box).add_(rounding.negligible).mul_(share)
        return checked(rounding, self.call(inputs, self.offsets(rounding, share, inputs)), share)

    def radius(self, rounding: Rounding, box: Box) -> Tensor:
        """Return |W| r plus the rounding error, by one product."""
        bounds_error, share = (
            rounding.bounds_sum(self.terms),
            rounding.total_sum(self.terms) - rounding.bounds_sum(self.terms),
        )
        inputs = box.center.abs().mul_(share).add_(box.radius, alpha=1 + 2 * bounds_error + share)
        return checked(rounding, self.call(inputs, self.offsets(rounding, share, inputs)), share)


def product(func: Func, rule: str, args: tuple[Any, ...], kwargs: dict[str, Any], rounding: Rounding) -> Product:
    """Return the product of a convolution, a linear layer or a matrix product. One of the arguments is a Box."""
    if rule == "matmul":
        return _matmul(func, args, rounding)
    named = dict(zip(("input", "weight", "bias"), args, strict=False))
    positional = args[3:]
    options = {k: v for k, v in kwargs.items() if k not in named and k not in ("input", "weight", "bias")}
    named |= {k: v for k, v in kwargs.items() if k in ("weight", "bias")}
    weight, bias = named["weight"], named.get("bias")
    magnitude = weight.detach().abs().clamp(min=rounding.negligible)
    outputs, inputs = len(weight), weight[0].numel()
    channels, terms, back = outputs, inputs, outputs * (weight[0, 0].numel() if weight.dim() > 2 else 1)
    if func in _TRANSPOSED:
        groups = int(positional[3] if len(positional) > 3 else options.get("groups", 1))
        channels, terms, back = weight.shape[1] * groups, back, terms
    return Product(
        lambda x, b: func(x, magnitude, b, *positional, **options),
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
    # If one set is multiplied by every matrix of a batch, the backward pass adds the coefficients of all of them.
    back = max(*left.shape[-2:], *right.shape[-2:]) * max(1, constant[..., :1, :1].numel() if constant.ndim > 2 else 1)

    def call(x: Tensor, offset: Tensor | None) -> Tensor:
        result = func(x, constant) if isinstance(left, Box) else func(constant, x)
        return result if offset is None else result + offset

    return Product(call, None, 1, terms, back, constant.sum())


Error = Callable[..., Tensor | None]


def error(rounding: Rounding, rule: str, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """Bound the rounding error of func(*args, **kwargs).

    Args:
        rounding: the arithmetic.
        rule: name of Box's rule for `func`.
        func: the torch function.
        args: its arguments, with a Box for every set.
        kwargs: its keyword arguments.
        result: the box that Box's rule returns for them.

    Returns:
        The error of each element of `result`, or None if the operation is exact.
    """
    if rule not in _ERRORS:
        unsupported(f"the rounding error of {name_of(func)} has no bound", "certify with arithmetic='real'.")
    return _ERRORS[rule](rounding, func, args, kwargs, result)


def _exact(*_: Any) -> None:
    return None


def _affine(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    rule = "matmul" if name_of(func).split(".")[-1] in ("matmul", "mm", "bmm", "mv") else "affine"
    box = next(arg for arg in args if isinstance(arg, Box))
    return product(func, rule, args, kwargs, rounding).error(rounding, box)


def _sum(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """input + alpha other. A Python number, and alpha, are rounded to the network's dtype."""
    alpha = abs(kwargs.get("alpha", 1))
    both = all(isinstance(arg, Box) for arg in args[:2])
    sizes = [size(arg) for arg in args[:2]]
    if "rsub" in name_of(func):
        sizes.reverse()
    return _plus_tiny(rounding, sizes[0] + alpha * sizes[1], rounding.elementwise(1 if both and alpha == 1 else 4))


def _plus_tiny(rounding: Rounding, sizes: Tensor, share: float) -> Tensor:
    """Return sizes * share plus the error of flushing to zero."""
    return checked(rounding, torch.add(sizes * share, 16 * rounding.tiny), share)


def _mul(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    box, factor = args if isinstance(args[0], Box) else args[::-1]
    if isinstance(factor, bool) or (isinstance(factor, Tensor) and factor.dtype == torch.bool):
        return None
    # Factors and values below the smallest normal number may be flushed to zero.
    small = rounding.negligible
    return _plus_tiny(rounding, (size(box) + small) * (size(factor) + small), rounding.elementwise(3))


def _div(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """torch may divide by a number, or multiply by its reciprocal."""
    divisor = size(args[1])
    smallest = divisor.min() if isinstance(divisor, Tensor) else divisor
    if not rounding.branchless and not float(smallest) > rounding.negligible:
        unsupported("the rounding error of a division by a number close to 0 has no bound", "scale the network.")
    # The reciprocal of a large divisor may be flushed to zero.
    sizes = size(args[0])
    error = _plus_tiny(rounding, (sizes + rounding.negligible) / divisor, rounding.elementwise(5))
    return error + sizes * (4 * rounding.tiny)


def _batch_norm(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """x alpha + beta with alpha = weight / sqrt(var + eps), beta = bias - mean alpha, or the formula of the BatchNorm
    paper.

    Both have at most nine roundings of numbers up to (|x| + |mean|) |alpha| + |bias|; rsqrt counts as four.
    """
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    arguments = {**dict(zip(names, args, strict=False)), **kwargs}
    mean, var, weight, bias = (arguments.get(name) for name in ("running_mean", "running_var", "weight", "bias"))
    assert isinstance(mean, Tensor)
    assert isinstance(var, Tensor)
    shape = (-1, *[1] * (arguments["input"].ndim - 2))
    enough = rounding.branchless or (
        bool((var >= 0).all()) and float((var + arguments.get("eps", 1e-5)).min()) > rounding.negligible
    )
    if not enough:
        unsupported("the rounding error of BatchNorm with a variance close to 0 has no bound", "raise its eps.")
    inverse = (var + arguments.get("eps", 1e-5)).detach().rsqrt().view(shape)
    inputs = size(arguments["input"]).add_(mean.detach().abs().view(shape) + rounding.negligible)
    # The normalized value may have been flushed to zero or have overflowed; so may the weight.
    normalized = inputs * (inverse + rounding.negligible)
    factor = torch.ones_like(inverse) if weight is None else weight.detach().abs().view(shape)
    sizes = normalized * factor.clamp(min=rounding.negligible) + factor * rounding.negligible
    sizes = sizes if bias is None else sizes + bias.detach().abs().view(shape)
    error = _plus_tiny(rounding, sizes, rounding.elementwise(16)) + inputs * rounding.negligible * rounding.elementwise(
        16
    )
    return error.masked_fill(~(normalized < rounding.largest), math.inf)


def _positive(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """Sums and means of n elements."""
    name = name_of(func).split(".")[-1]
    if name in COPIES:
        return None
    box = args[0]
    terms = _terms(name, box, args, kwargs, result)
    sizes = func(size(box), *args[1:], **kwargs)
    share = rounding.total_sum(terms + 2, terms + 2)
    # The sum before the division by n must not overflow either.
    divisor = max(terms, *(int(v) for v in (*args[1:], *kwargs.values()) if isinstance(v, int)), 1)
    return checked(rounding, (sizes * share).add_(4 * (terms + 4) * rounding.tiny), share / divisor)


def _terms(name: str, box: Box, args: Any, kwargs: dict[str, Any], result: Box) -> int:
    """Return the maximal number of elements that are added."""
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
    """The padding value is rounded to the network's dtype."""
    arguments = {**dict(zip(("input", "pad", "mode", "value"), args, strict=False)), **kwargs}
    value = arguments.get("value")
    if not value or arguments.get("mode", "constant") != "constant":
        return None
    return F.pad(
        torch.zeros_like(arguments["input"].center), arguments["pad"], value=abs(value) * rounding.elementwise(1)
    )


def _interpolate(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor | None:
    """The weights are computed from positions, whose errors are a few units of the image's size."""
    box, mode = args[0], kwargs.get("mode", args[3] if len(args) > 3 else "nearest")
    if mode in ("nearest", "nearest-exact"):
        _check_pixels(rounding, func, args, kwargs)
        return None
    longest = max(*box.shape[2:], *result.shape[2:])
    spatial = tuple(range(2, box.ndim))
    if mode == "area":
        windows = math.prod(-(-n // m) + 1 for n, m in zip(box.shape[2:], result.shape[2:], strict=True))
        share = rounding.total_sum(windows + 2, windows + 2)
        sizes = func(size(box), *args[1:], **kwargs)
        return checked(rounding, (sizes * share).add_(4 * (windows + 4) * rounding.tiny), share / windows)
    sizes = size(box).amax(spatial, keepdim=True).expand(result.shape)
    return _plus_tiny(rounding, sizes, rounding.elementwise(64 * (longest + 2)) + 64 * (longest + 2) * rounding.w)


def _check_pixels(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise if float32 and float64 do not copy the same pixels."""
    shape = args[0].shape
    count = math.prod(shape[2:])
    numbers = torch.arange(count, device=args[0].device).view(1, 1, *shape[2:])
    copies = [func(numbers.to(dtype), *args[1:], **kwargs).long() for dtype in (torch.float32, torch.float64)]
    if count >= 2**24 or not torch.equal(*copies):
        unsupported("interpolation to the nearest pixel depends on rounding here", "certify with arithmetic='real'.")


def _monotone(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    name = name_of(func).split(".")[-1].rstrip("_")
    sizes = size(result)
    if name in _SELECTING:
        ends = [v for v in (*args[1:], *kwargs.values()) if isinstance(v, (float, Tensor))] if name[0] in "ch" else []
        limits = sum((size(end) for end in ends), 0.0)
        return _plus_tiny(rounding, sizes + limits, rounding.elementwise(1))
    if name == "hardsigmoid":
        return _plus_tiny(rounding, torch.ones_like(sizes), rounding.elementwise(16))
    if name in ("selu", "elu", "celu"):  # exp(x) - 1 may be computed literally
        alpha = {**dict(zip(("input", "alpha"), args, strict=False)), **kwargs}.get("alpha", 2.0)
        return _plus_tiny(rounding, sizes + 2 * abs(alpha) + size(args[0]), rounding.elementwise(2 * LIBRARY))
    if name == "softplus":
        arguments = {**dict(zip(("input", "beta", "threshold"), args, strict=False)), **kwargs}
        step = math.exp(-arguments.get("threshold", 20.0)) / arguments.get("beta", 1.0)
        sizes = sizes + size(args[0])
        return _plus_tiny(rounding, sizes, rounding.elementwise(2 * LIBRARY)).add_(step)
    return _plus_tiny(rounding, sizes, rounding.elementwise(2 * LIBRARY) + 2 * LIBRARY * rounding.w)


def _turning(rounding: Rounding, func: Func, args: Any, kwargs: dict[str, Any], result: Box) -> Tensor:
    """abs, square, prelu, leaky_relu: at most three roundings. Slopes and values may be flushed to zero."""
    slopes = [torch.as_tensor(a) for a in (*args[1:], *kwargs.values()) if isinstance(a, (int, float, Tensor))]
    steep = 1 + max((float(slope.abs().max()) for slope in slopes), default=0.0)
    error = _plus_tiny(rounding, size(result), rounding.elementwise(4))
    return error + (size(args[0]) + steep) * (16 * rounding.tiny)


_ERRORS: dict[str, Error] = {
    **dict.fromkeys(("affine", "linear", "matmul"), _affine),
    **dict.fromkeys(("add", "sub", "rsub"), _sum),
    # A ReLU is exact. The room of its input covers the rounding of its center and radius.
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
