"""Checks that a recorded call can be replayed.

A replay repeats the recorded calls on other values. Calls whose effect depends on numbers that a replay does not see
are refused while the network is recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from advibp.bounds.domain import Func, name_of, spellings, unsupported
from advibp.bounds.graph.nodes import leaves_of
from advibp.bounds.graph.traced import Traced

#: Functions that convert numbers of a tensor to Python numbers.
READS = frozenset(
    spellings(
        "item tolist numpy __bool__ __float__ __int__ __index__ __complex__ __array__ __contains__ is_nonzero equal "
        "allclose"
    )
)
#: Functions whose output shape depends on the numbers of their input.
_RAGGED = frozenset(spellings("nonzero argwhere masked_select unique unique_consecutive bincount"))


def check_replayable(func: Func, args: Any, leaves: list[Any], from_input: bool, autocast_changed: bool) -> None:
    """Raise if a replay would not repeat a call.

    Args:
        func: the function that was called.
        args: its arguments.
        leaves: the tensors and traced values among all its arguments.
        from_input: whether the result depends on the network's input.
        autocast_changed: whether autocast differs from its state at the start of the recording.
    """
    if from_input and (func in _RAGGED or _depends_on_mask(func, args)):
        unsupported(
            f"the number of elements that {name_of(func)} returns depends on the input, so it can't be replayed",
            "use a mask, as in torch.where, or train without layer-wise stages.",
        )
    if autocast_changed:
        unsupported(
            "autocast is switched inside the network, which can't be replayed",
            "switch it around the whole network, or train without layer-wise stages.",
        )
    for leaf in leaves:
        if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
            unsupported(
                f"{name_of(func)} uses a tensor that was computed from weights before forward, so it can't be replayed",
                "compute it in forward, or keep the tensor itself as a parameter.",
            )


@contextmanager
def no_custom_functions(allowed: Callable[[], bool]) -> Iterator[None]:
    """Refuse calls of a torch.autograd.Function, which a TorchFunctionMode does not see.

    Args:
        allowed: returns whether a call is allowed now. The rules of sets use such functions.
    """
    Function = torch.autograd.Function
    apply = vars(Function)["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if allowed():
            return apply.__get__(None, cls)(*args, **kwargs)
        unsupported(
            f"{cls.__name__}, a torch.autograd.Function, has a custom gradient, which can't be replayed",
            "use torch functions instead, or train without layer-wise stages.",
        )

    Function.apply = classmethod(refuse)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]


def _depends_on_mask(func: Func, args: Any) -> bool:
    """Return whether the output shape of a call depends on a mask or on counts."""
    if func is torch.where or func is Tensor.where:
        return len(args) == 1
    if func in (torch.repeat_interleave, Tensor.repeat_interleave):
        return any(isinstance(arg, Traced) for arg in args[1:])
    masks = [leaf._value.dtype for leaf in leaves_of(args[1:]) if isinstance(leaf, Traced)]
    return func is Tensor.__getitem__ and any(dtype in (torch.bool, torch.uint8) for dtype in masks)
