"""The rules of Rounded: run the rule of the inner Box or Zonotope, then add the operation's rounding error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from advibp.bounds.box import RULES as BOX_RULES
from advibp.bounds.box import Box
from advibp.bounds.domain import Func, name_of, unsupported
from advibp.bounds.rounded import RULES, Rounded, summed, widened
from advibp.bounds.rounding import Rounding, checked, size
from advibp.bounds.rules import rounding_errors
from advibp.bounds.rules.box_rules import VIEWS
from advibp.bounds.zonotope import Zonotope

_NONLINEAR = frozenset(("relu", "monotone", "elu", "softplus", "turning", "leaky_relu"))
_PRODUCTS = frozenset(("affine", "linear", "matmul"))


def _rule(name: str) -> Callable[..., Any]:
    """Return a rule that runs the rule of the inner set, and widens its result by the error of the operation."""

    def run(func: Func, *args: Any, inplace: bool = False, **kwargs: Any) -> Any:
        args = _positional(args, kwargs)
        value = next((leaf for leaf in _flat(args) if isinstance(leaf, Rounded)), None)
        if value is None:
            unsupported(f"{name_of(func)} takes a set only as its first arguments")
        with torch.no_grad():
            result = _run(name, func, value, args, kwargs)
        return args[0]._become(result) if inplace and result is not args[0] else result

    run.__name__ = name
    return run


def _positional(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments and the operands given by keyword, which are removed from `kwargs`."""
    for name in ("input", "tensors"):
        if name in kwargs:
            args = (kwargs.pop(name), *args)
    return (*args, kwargs.pop("other")) if "other" in kwargs and len(args) == 1 else args


def _flat(args: Any) -> list[Any]:
    """Return the arguments, with lists and tuples flattened."""
    return [leaf for arg in args for leaf in (arg if isinstance(arg, (list, tuple)) else (arg,))]


def _run(name: str, func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the inner sets, and widen the result by the error of the operation."""
    kind = type(value._set)
    if any(isinstance(leaf, Rounded) and type(leaf._set) is not kind for leaf in _flat(args)):
        unsupported(f"{name_of(func)} cannot mix a Box with a Zonotope")
    if any(isinstance(leaf, Rounded) for leaf in _flat(tuple(kwargs.values()))):
        unsupported(f"{name_of(func)} takes a set only as its first arguments")
    if name == "to":
        return _cast(func, value, args, kwargs)
    if name in _PRODUCTS and kind is Box:
        return _product(name, func, value, args, kwargs)
    inner = _mapped(args, lambda v: v._set if kind is Box or name not in _NONLINEAR else summed(v))
    output = kind.apply(func, inner, kwargs)
    if not isinstance(output, kind):  # metadata, or a tuple of views
        return tuple(value._like(part) for part in output) if isinstance(output, tuple) else output
    if output is value._set:
        return value
    precise = min((value.rounding.network, value.rounding.bounds), key=lambda dtype: torch.finfo(dtype).eps)
    if torch.finfo(output.dtype).eps > torch.finfo(precise).eps:  # such as sum(dtype=torch.float32)
        unsupported(
            f"{name_of(func)} returns {output.dtype} for {precise}, and its rounding error has no bound",
            f"cast its input: x.to({output.dtype}).",
        )
    boxes = inner if kind is Box else _mapped(args, lambda v: v.box)
    result = output if isinstance(output, Box) else Box._of(output.center, output.radius)
    error = rounding_errors.error(value.rounding, name, func, boxes, kwargs, result)
    if kind is Zonotope and name in _NONLINEAR:
        error = _relaxation_error(value, args, kwargs, result, error)
    if error is not None and error.dtype != output.dtype:  # a constant had another dtype
        error = (error * (1 + 2.0**-20)).to(output.dtype)
    return value._like(widened(output, error), error)


def _mapped(args: Any, change: Callable[[Rounded], Any]) -> tuple[Any, ...]:
    """Apply a function to every Rounded set among the arguments."""

    def one(arg: Any) -> Any:
        if isinstance(arg, (list, tuple)) and any(isinstance(a, Rounded) for a in arg):
            return [change(a) if isinstance(a, Rounded) else a for a in arg]
        return change(arg) if isinstance(arg, Rounded) else arg

    return tuple(one(arg) for arg in args)


def _product(name: str, func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Rounded:
    """An affine layer on a box: the center as the network computes it, radius and error by one product."""
    box = value._set
    assert isinstance(box, Box)
    inner = _mapped(args, lambda v: v._set)
    product = rounding_errors.product(func, name, inner, kwargs, value.rounding)
    center = func(*_mapped(args, lambda v: v._set.center), **kwargs)
    if value.keeps_errors:
        error = product.error(value.rounding, box)
        bounds_error = value.rounding.bounds_sum(product.terms)
        result = Box._of(center, product.call(box.radius, None).mul_(1 + 4 * bounds_error).add_(error))
    else:
        error, result = None, Box._of(center, product.radius(value.rounding, box))
    if name == "linear" and result.ndim == 2:
        named = dict(zip(("input", "weight", "bias"), inner, strict=False)) | kwargs
        result.remember(box, named["weight"], named.get("bias"))
    return value._like(result, error)


def _relaxation_error(value: Rounded, args: Any, kwargs: dict[str, Any], result: Box, error: Tensor | None) -> Tensor:
    """Return the network's error plus the rounding error of the slopes and intercepts of a zonotope's relaxation.

    A slope may be wrong by 8 w of its magnitude. Multiplied by the magnitude of the input, this moves the relaxation.
    """
    slopes = [torch.as_tensor(a) for a in (*args[1:], *kwargs.values()) if isinstance(a, (float, Tensor))]
    steepest = max([1.0, *(float(slope.abs().max()) for slope in slopes)])
    sizes = size(value.box)
    if sizes.shape == result.shape:
        relaxation_error = (sizes * (1 + steepest) + 1).add_(size(result)).mul_(128 * value.rounding.w)
    else:
        relaxation_error = size(result) * 64 * value.rounding.w  # the rule used a box, without a relaxation
    return relaxation_error if error is None else error + relaxation_error


def _cast(func: Func, value: Rounded, args: Any, kwargs: dict[str, Any]) -> Rounded:
    """A cast to another dtype: the network continues in it, and the rounding of the cast is an error."""
    cast = type(value._set).apply(func, _mapped(args, lambda v: v._set), kwargs)
    if cast is value._set:
        return value
    target, rounding = cast.dtype, value.rounding
    if target not in (torch.float32, torch.float64):
        unsupported(f"the rounding error of {name_of(func)} to {target} has no bound", "keep the network in float32.")
    if target == value.dtype:  # another device
        return value._like(cast)
    if target == torch.float64:
        return Rounded(cast, replace(rounding, bounds=target), keeps_errors=value.keeps_errors)
    # The cast rounds or overflows. In a float64 copy of the network the bounds stay in float64.
    rounding = replace(rounding, network=target) if rounding.doubled else Rounding(target, target)
    share = 4 * torch.finfo(target).eps + rounding.elementwise(1)
    error = checked(rounding, size(value.box) * share + 16 * torch.finfo(target).tiny, share)
    inner = value._set if rounding.doubled else cast
    error = error.to(inner.dtype)
    return Rounded(widened(inner, error), rounding, keeps_errors=value.keeps_errors, error=error)


_in_place = {func for func in BOX_RULES if func.__name__.endswith("_") and not func.__name__.endswith("__")}
RULES.update({func: _rule(body.__name__) for func, body in BOX_RULES.items() if func not in _in_place})
RULES.in_place(VIEWS)
