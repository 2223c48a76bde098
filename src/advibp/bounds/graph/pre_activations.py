"""Record the pre-activations of a network, that is the inputs of its ReLUs, while it runs.

    with record_pre_activations() as boxes:
        output = net(Box.ball(x, eps))          # boxes: one per ReLU, in the order of the calls

The network may run on tensors, boxes or zonotopes. It does not change.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from advibp.bounds.domain import Func, Rules, spellings

RELUS = frozenset(spellings("relu relu_"))


class _ReluWatch(TorchFunctionMode):
    """Sees torch functions of tensors. `note` is also called for sets, whose methods are not torch functions."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Any] = []

    def note(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Store the input of a ReLU."""
        if func in RELUS:
            value = args[0] if args else kwargs["input"]
            in_place = func.__name__.endswith("_") or kwargs.get("inplace") or args[1:2] == (True,)
            self.values.append(value.clone() if in_place else value)

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if all(issubclass(kind, Tensor) for kind in types):
            self.note(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def record_pre_activations() -> Iterator[list[Any]]:
    """Record the inputs of all ReLUs that run inside this context.

    Yields:
        A list that grows by one value per ReLU.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp.bounds.graph.pre_activations import record_pre_activations
        >>> with record_pre_activations() as values:
        ...     _ = nn.Sequential(nn.Linear(2, 3), nn.ReLU())(torch.rand(5, 2))
        >>> [value.shape for value in values]
        [torch.Size([5, 3])]
    """
    with _ReluWatch() as watch:
        Rules.watchers.append(watch.note)
        try:
            yield watch.values
        finally:
            Rules.watchers.remove(watch.note)
