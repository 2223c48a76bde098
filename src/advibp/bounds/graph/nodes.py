"""Nodes: the calls of a recorded network, each with what it needs, so that it can be made again on other values."""

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
    """In the arguments of a node: the value of an earlier one."""

    index: int


@dataclass(frozen=True)
class Node:
    """One call: func(*args, **kwargs), made in the `forward` of `module`. Without func: the network's input."""

    func: Func | None = None
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    module: nn.Module | None = None
    refs: tuple[int, ...] = ()  # nodes whose values it uses
    after: tuple[int, ...] = ()  # nodes that wrote to the memory of those values
    state: tuple[int, ...] = ()  # nodes that wrote to weights or buffers it uses
    writes: frozenset[int] = frozenset()  # memory it writes to
    memory: frozenset[int] = frozenset()  # memory of its value
    shape: torch.Size | None = None
    from_input: bool = True  # whether the network's input has a part in it
    gradient: bool = True  # False for a call made under torch.no_grad

    def run(self, values: dict[int, Any]) -> Any:
        """The call, on other values of the nodes it refers to."""
        assert self.func is not None
        with torch.set_grad_enabled(self.gradient and torch.is_grad_enabled()):
            args = map_leaves(self.args, lambda leaf: values[leaf.index] if isinstance(leaf, Ref) else leaf)
            kwargs = map_leaves(self.kwargs, lambda leaf: values[leaf.index] if isinstance(leaf, Ref) else leaf)
            result = call(self.func, args, kwargs)
            return args[0] if result is None else result  # y[i] = z returns nothing


def call(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """func(*args, **kwargs). Methods that torch wrote in C accept tensors alone, so a set is asked by its gate."""
    if isinstance(func, (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)):
        for leaf in leaves_of((args, kwargs)):
            if isinstance(leaf, Value):
                getter = isinstance(func, MethodWrapperType) and leaf is args[0]
                return getattr(leaf, func.__self__.__name__) if getter else leaf.apply(func, args, kwargs)  # type: ignore[union-attr]
    return func(*args, **kwargs)


def map_leaves(tree: Any, change: Callable[[Any], Any]) -> Any:
    """The same nest of tuples, lists and dicts with its leaves changed."""
    if isinstance(tree, (tuple, list)):
        parts = [map_leaves(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {key: map_leaves(part, change) for key, part in tree.items()}
    return change(tree)


def leaves_of(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves_of(part)
    else:
        yield tree
