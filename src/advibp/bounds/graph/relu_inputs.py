"""What enters the ReLUs of a network while it runs, without a change to the network.

    with entering_relus() as boxes:
        output = net(Box.ball(x, eps))          # boxes: one per ReLU, in the order in which they ran

Tensors can be watched too, and zonotopes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from advibp.bounds.domain import Func, Rules, spellings

RELUS = frozenset(spellings("relu relu_"))


class _Watch(TorchFunctionMode):
    """Sees the functions of tensors; `see` is told those of sets, whose methods are no functions of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def see(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if func in RELUS:
            entering = args[0] if args else kwargs["input"]
            in_place = func.__name__.endswith("_") or kwargs.get("inplace") or args[1:2] == (True,)
            self.seen.append(entering.clone() if in_place else entering)

    def __torch_function__(self, func: Func, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if all(issubclass(kind, Tensor) for kind in types):
            self.see(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def entering_relus() -> Iterator[list[Any]]:
    """The values that enter ReLUs from now on, in a list that grows."""
    with _Watch() as watch:
        Rules.watchers.append(watch.see)
        try:
            yield watch.seen
        finally:
            Rules.watchers.remove(watch.see)
