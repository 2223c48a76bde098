"""Compiled code for the ReLU of boxes, which trainings by interval bounds may use (`compile: true`).

torch runs elementwise operations one by one, and each reads and writes every value. torch.compile makes one loop of
them. It needs a C++ compiler, and some seconds at the start. Tensors are passed as flat views, so that one compilation
serves all layers.

The switch is a context variable: it holds for the thread that set it, until its context ends, and never for verifiers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from advibp.errors import UserError

_on: ContextVar[bool] = ContextVar("on", default=False)


@contextmanager
def compiled_relus(on: bool = True) -> Iterator[None]:
    """Use compiled code for ReLUs of boxes that have gradients, in this context.

    Args:
        on: False changes nothing.

    Raises:
        UserError: if torch.compile does not work on this machine.
    """
    if on:
        _check_compiler()
    token = _on.set(on)
    try:
        yield
    finally:
        _on.reset(token)


def compiles_relus() -> bool:
    """Return whether the current context uses compiled ReLUs."""
    return _on.get()


def _forward(center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
    half = torch.minimum(torch.lerp(center, radius, 0.5).clamp(min=0), radius)
    return torch.maximum(center, half), half


def _backward(center: Tensor, radius: Tensor, center_grad: Tensor, radius_grad: Tensor) -> tuple[Tensor, Tensor]:
    crossing = torch.where(center > 0, torch.lerp(center_grad, radius_grad, 0.5), 0.0)
    active = center > radius
    return torch.where(active, center_grad, crossing), torch.where(active, radius_grad, crossing)


class CompiledRelu(torch.autograd.Function):
    """The same as `rules.box_rules._Relu`, which explains the formulas."""

    @staticmethod
    def forward(ctx: Any, center: Tensor, radius: Tensor) -> tuple[Tensor, Tensor]:
        center, radius = _run(_forward, center, radius)
        ctx.save_for_backward(center, radius)
        return center, radius

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, center_grad: Tensor, radius_grad: Tensor) -> tuple[Tensor, Tensor]:
        return _run(_backward, *ctx.saved_tensors, center_grad, radius_grad)


def _run(function: Callable[..., tuple[Tensor, Tensor]], *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Call the compiled function on flat views; the function itself if the tensors have no common layout."""
    order = _order(tensors)
    if order is None:
        return function(*tensors)
    permuted = [t.permute(order) for t in tensors]
    back = [order.index(k) for k in range(len(order))]
    first, second = _compiled(function)(*(t.detach().view(-1) for t in permuted))
    return first.view(permuted[0].shape).permute(back), second.view(permuted[0].shape).permute(back)


def _order(tensors: tuple[Tensor, ...]) -> list[int] | None:
    """Return the order of dimensions in which all tensors are contiguous, or None."""
    count = tensors[0].dim()
    if all(t.is_contiguous() for t in tensors):
        return list(range(count))
    if count == 4 and all(t.is_contiguous(memory_format=torch.channels_last) for t in tensors):
        return [0, 2, 3, 1]
    return None


@cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the compiled function. torch compiles it for each dtype, and runs it as it is after eight of them."""
    return torch.compile(function, dynamic=True)


@cache
def _check_compiler() -> None:
    try:
        for function, count in ((_forward, 2), (_backward, 4)):
            _compiled(function)(*torch.zeros(count, 8).unbind())
    except Exception as error:  # the compiler is a program of the user's machine
        reason = str(error).strip().splitlines()[0]
        raise UserError(
            f"compile is true, but torch.compile does not work here ({reason}); install a C++ compiler such as g++, or "
            "set compile to false."
        ) from error
