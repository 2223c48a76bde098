"""Traced: a value that stands for a tensor or a set while a network is recorded.

The network runs on a traced value. Every call on it goes to the recording, which runs the call on the value it stands
for and records it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from torch import Tensor

from advibp.bounds.domain import Func, Value, unsupported
from advibp.bounds.graph.nodes import Ref, leaves_of

#: The values that a Traced value can stand for.
Recordable = Tensor | Value


class Recorder(Protocol):
    """Records the calls on traced values."""

    def call(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function and record it."""


class Traced(Value):
    """Stands for a tensor or a set, and records the calls on it."""

    __slots__ = ("__weakref__", "_index", "_recording", "_value")

    def __init__(self, recording: Recorder, index: int, value: Recordable) -> None:
        self._recording, self._index, self._value = recording, index, value

    @classmethod
    def apply(cls, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first = next(leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, Traced))
        return first._recording.call(func, args, kwargs)

    @classmethod
    def knows(cls, func: Func) -> bool:
        return True

    def __setitem__(self, index: Any, value: Any) -> None:
        self.apply(Tensor.__setitem__, (self, index, value), {})

    def __len__(self) -> int:
        return len(self._value)

    def __repr__(self) -> str:
        return f"Traced(shape={tuple(self._value.shape)})"


def refuse_reading(what: str) -> NoReturn:
    """Raise, because the network reads numbers of a value that depends on its input."""
    unsupported(
        f"{what} reads its numbers, so the operations of the network depend on them and can't be replayed",
        "compute with tensors instead, or train without layer-wise stages.",
    )


def _operator(name: str) -> Callable[..., Any]:
    return lambda value, *args: value.apply(getattr(Tensor, name), (value, *args), {})


# Operators that a traced value passes on to its recording, because it may stand for a tensor. If it stands for a set,
# the set raises an error.
_OPERATORS = (
    "eq ne lt le gt ge pow rpow ipow mod rmod imod floordiv rfloordiv ifloordiv and rand or ror xor rxor invert"
)
for _name in _OPERATORS.split():
    setattr(Traced, f"__{_name}__", _operator(f"__{_name}__"))


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(value: Traced, *args: Any) -> NoReturn:
        refuse_reading(f"'{name}' of a value inside the network")

    return refuse


for _name in ("bool", "float", "int", "index", "complex", "array", "contains"):
    setattr(Traced, f"__{_name}__", _refuse(_name))


def memory_of(value: Recordable) -> int:
    """Return an identifier of the memory of a value. For a set, it is the id of the counter that its views share."""
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else id(value._changes)


def writes_to(value: Recordable) -> int:
    """Return how often a value was written to; 0 for inference tensors, which have no counter."""
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    return value._changes[0]


def value_of(leaf: Any) -> Any:
    """Return the value that a leaf stands for, or the leaf itself if it is not traced."""
    return leaf._value if isinstance(leaf, Traced) else leaf


def ref_to(leaf: Any) -> Any:
    """Return a reference to the node of a traced leaf, or the leaf itself."""
    return Ref(leaf._index) if isinstance(leaf, Traced) else leaf
