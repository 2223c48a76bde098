"""Nodes: the recorded calls of a network, which can be repeated on other values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any

import torch
from torch import nn

from advibp.bounds.domain import Func, Value


@dataclass(frozen=True)
class Ref:
    """In the arguments of a node: the value of an earlier node."""

    index: int


@dataclass(frozen=True)
class Node:
    """One call func(*args, **kwargs) in the `forward` of `module`. Node 0 has no func: it is the network's input.

    Attributes:
        func: the torch function, or None.
        args: its arguments, with a `Ref` for each value of an earlier node.
        kwargs: its keyword arguments.
        module: the module whose forward made the call.
        refs: nodes whose values it uses.
        after: nodes that wrote to the memory of those values.
        state: nodes that wrote to weights or buffers that it uses.
        writes: memory that it writes to.
        memory: memory of its value.
        shape: shape of its value, if that is one tensor.
        from_input: whether its value depends on the network's input.
        gradient: False for a call under torch.no_grad.
    """

    func: Func | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    refs: tuple[int, ...] = ()
    after: tuple[int, ...] = ()
    state: tuple[int, ...] = ()
    writes: frozenset[int] = frozenset()
    memory: frozenset[int] = frozenset()
    shape: torch.Size | None = None
    from_input: bool = True
    gradient: bool = True

    def run(self, values: dict[int, Any]) -> Any:
        """Repeat the call on other values of the nodes that it refers to."""
        assert self.func is not None
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            args = map_leaves(self.args, lambda leaf: values[leaf.index] if isinstance(leaf, Ref) else leaf)
            kwargs = map_leaves(self.kwargs, lambda leaf: values[leaf.index] if isinstance(leaf, Ref) else leaf)
            result = call(self.func, args, kwargs)
            return args[0] if result is None else result  # y[i] = z returns nothing


def call(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return func(*args, **kwargs). Methods that torch implements in C accept only tensors, so sets use `apply`."""
    if isinstance(func, (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)):
        for leaf in leaves_of((args, kwargs)):
            if isinstance(leaf, Value):
                getter = isinstance(func, MethodWrapperType) and leaf is args[0]
                return getattr(leaf, func.__self__.__name__) if getter else leaf.apply(func, args, kwargs)  # type: ignore[union-attr]
    return func(*args, **kwargs)


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """Return the same nested tuples, lists and dicts with every leaf changed."""
    if isinstance(tree, (tuple, list)):
        parts = [map_leaves(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {key: map_leaves(part, change) for key, part in tree.items()}
    return change(tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    """Yield the leaves of nested tuples, lists and dicts."""
    if isinstance(tree, (tuple, list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves_of(part)
    else:
        yield tree
