"""Tape: the graph of a network, recorded while it runs, and replayed from any of its values.

    tape = Tape.record(net, x)
    tape.replay(x)                          # what net(x) returns
    tape.replay(latent, start=node)         # the rest of the network, from another value at `node`

Recording goes by the same mechanism as sets of inputs: the network runs on a `Traced` value, which hands every call on
to the tensor (or set) it stands for and notes it. So a tape needs no source code and no wrapper classes, and a node is
an operation as the user wrote it: `F.batch_norm`, not its parts. A tape holds weights by reference; numbers that were
read off a shape are constants of it, so it replays batches of the size it was recorded with.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from types import MethodDescriptorType, MethodWrapperType, WrapperDescriptorType
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from advibp.bounds.dispatch import Func, Value, name_of, running_modules, spellings, unsupported
from advibp.errors import UserError

Recordable = Tensor | Value  # what a Traced value can stand for

#: What depends on shape, dtype and device alone, and so stays true when the network is replayed.
_METADATA = frozenset(
    spellings(
        "size shape dim ndim ndimension numel nelement stride dtype device is_floating_point is_complex is_contiguous "
        "element_size itemsize nbytes get_device is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_quantized "
        "is_nested requires_grad is_leaf names"
    )
)


@dataclass(frozen=True)
class Ref:
    """In the arguments of a node: the value of an earlier one."""

    index: int


class Node(NamedTuple):
    """One call: func(*args, **kwargs), made in the `forward` of `module`."""

    func: Func | None  # None for the network's input
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: nn.Module | None
    refs: tuple[int, ...]

    @property
    def in_place(self) -> bool:
        name = getattr(self.func, "__name__", "")
        return bool(self.kwargs.get("inplace")) or name == "__setitem__" or (name[-1:] == "_" and name[-2:] != "__")


class Traced(Value):
    """Stands for a tensor, or for a set of them, and writes down what is done with it."""

    __slots__ = ("_index", "_tape", "_value")

    def __init__(self, tape: Tape, index: int, value: Recordable) -> None:
        self._tape, self._index, self._value = tape, index, value

    @classmethod
    def apply(cls, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tape = next(_traced((args, kwargs)))._tape
        plain_args, plain_kwargs = _map(args, _value_of), _map(kwargs, _value_of)
        result = _call(func, plain_args, plain_kwargs)
        if func in _METADATA:
            return result
        return tape._note(func, args, kwargs, result)

    @classmethod
    def knows(cls, func: Func) -> bool:
        return True

    def __setitem__(self, index: Any, value: Any) -> None:
        self.apply(Tensor.__setitem__, (self, index, value), {})

    def __len__(self) -> int:
        return self._value.shape[0]

    def __repr__(self) -> str:
        return f"Traced(shape={tuple(self._value.shape)})"


def _operator(name: str) -> Callable[..., Any]:
    return lambda value, *args: value.apply(getattr(Tensor, name), (value, *args), {})


# A set can't do these, but it will say so itself.
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "pow", "rpow", "mod", "floordiv"):
    setattr(Traced, f"__{_name}__", _operator(f"__{_name}__"))


def _refuse(name: str) -> Callable[..., NoReturn]:
    def refuse(value: Traced, *args: Any) -> NoReturn:
        _unreplayable(f"'{name}' of a value inside the network")

    return refuse


for _name in ("bool", "float", "int", "index", "complex", "array", "contains"):
    setattr(Traced, f"__{_name}__", _refuse(_name))


def _unreplayable(what: str) -> NoReturn:
    unsupported(
        f"{what} reads its numbers, so the way through the network depends on them and can't be replayed",
        "compute with tensors instead, or train without layer-wise stages.",
    )


@dataclass
class Tape:
    """Calls in the order in which they were made; node 0 is the input."""

    net: nn.Module
    nodes: list[Node]
    output: int = 0

    @classmethod
    def record(cls, net: nn.Module, x: Recordable) -> Tape:
        """Run `net` on x (B, ...), a tensor or a set, and keep what it did."""
        tape = cls(net, [Node(None, (), {}, None, ())])
        with torch.enable_grad():  # so that a tensor that was computed from weights can be told from a constant
            result = net(Traced(tape, 0, x))
        if not isinstance(result, Traced):
            found = type(result).__name__
            raise UserError(f"The network can't be replayed: it returns a {found}, where one tensor was expected.")
        tape.output = result._index
        return tape

    def _note(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Any:
        """A node for a call, and its result as Traced."""
        refs = tuple(t._index for t in _traced((args, kwargs)))
        modules = running_modules()
        module = modules[0] if modules else None
        self.nodes.append(Node(func, _map(args, _ref_to), _map(kwargs, _ref_to), module, refs))
        index = len(self.nodes) - 1
        if isinstance(result, (Tensor, Value)):
            for value in _traced((args, kwargs)):
                if value._value is result:  # in place: whoever holds this value goes on from here
                    value._index = index
                    return value
            return Traced(self, index, result)
        if isinstance(result, (tuple, list)) and all(isinstance(part, (Tensor, Value)) for part in result):
            return type(result)([self._part(index, i, part, module) for i, part in enumerate(result)])
        if result is None and self.nodes[index].in_place:
            return None
        _unreplayable(name_of(func))

    def _part(self, whole: int, i: int, part: Recordable, module: nn.Module | None) -> Traced:
        """One of several results, as chunk and unbind have them."""
        self.nodes.append(Node(operator.getitem, (Ref(whole), i), {}, module, (whole,)))
        return Traced(self, len(self.nodes) - 1, part)

    def replay(self, value: Any, start: int = 0, stop: int | None = None) -> Any:
        """The value of node `stop` (default: the output) when that of node `start` is `value`."""
        result = value
        for _, result in self.trace(value, start, stop):  # noqa: B007
            pass
        return result

    def trace(self, value: Any, start: int = 0, stop: int | None = None) -> Iterator[tuple[int, Any]]:
        """The same, node by node: each that runs, and its value; last comes `stop`."""
        stop = self.output if stop is None else stop
        plan = self._plan(start, stop)
        written = any(self.nodes[index].in_place and start in self.nodes[index].refs for index, _ in plan)
        values = {start: value.clone() if written else value}  # the caller's value is not ours to change
        for index, over in plan:
            node = self.nodes[index]
            assert node.func is not None
            values[index] = _call(node.func, _map(node.args, values), _map(node.kwargs, values))
            yield index, values[index]
            for done in over:  # what nobody asks for again need not stay in memory
                del values[done]

    def _plan(self, start: int, stop: int) -> list[tuple[int, list[int]]]:
        """The nodes to run, each with those whose last use it is."""
        if (start, stop) not in self._plans:
            run = self.needed(start, stop)
            self.check_cut(start, stop)
            last: dict[int, int] = {}
            for index in run:
                last |= dict.fromkeys(self.nodes[index].refs, index)
            ends: dict[int, list[int]] = {}
            for ref, index in last.items():
                if ref != stop:
                    ends.setdefault(index, []).append(ref)
            self._plans[start, stop] = [(index, ends.get(index, [])) for index in run]
        return self._plans[start, stop]

    @cached_property
    def _plans(self) -> dict[tuple[int, int], list[tuple[int, list[int]]]]:
        return {}

    def needed(self, start: int, stop: int) -> list[int]:
        """Nodes after `start` on which the value of `stop` depends; all that write in place are among them, since a
        write through one view reaches the others."""
        wanted = {stop}
        for index in range(stop, start, -1):
            if index in wanted or self.nodes[index].in_place:
                wanted.add(index)
                wanted.update(self.nodes[index].refs)
        return sorted(index for index in wanted if index > start)

    def check_cut(self, start: int, stop: int | None = None) -> None:
        """Refuse to replay from `start` if what follows also needs a value from before it, or a tensor that was
        computed from weights on the way: replaying would miss that computation, and its gradient."""
        for index in self.needed(start, self.output if stop is None else stop):
            node = self.nodes[index]
            if any(ref < start for ref in node.refs):
                raise UserError(
                    f"The network can't be cut at {self.name(start)}: {self.name(index)}, which comes later, also uses "
                    f"a value from before it (a skip connection); cut it before or after the connection."
                )
            if any(t.grad_fn is not None for t in _tensors((node.args, node.kwargs))):
                raise UserError(
                    f"The network can't be replayed: {self.name(index)} uses a tensor that was computed from weights; "
                    f"keep the tensor itself as a parameter."
                )

    def name(self, index: int) -> str:
        """Where a node's value is made, as "layer 'block.conv1' (conv2d)"."""
        node = self.nodes[index]
        if node.func is None:
            return "the input"
        func = getattr(node.func, "__name__", "?")
        paths = [path for path, module in self.net.named_modules() if module is node.module]
        return f"layer '{paths[0]}' ({func})" if paths and paths[0] else f"the call of {func}"

    def parameters_before(self, index: int) -> list[nn.Parameter]:
        """The parameters on which the value of a node depends, each once."""
        used = [t for i in self.needed(0, index) for t in _tensors((self.nodes[i].args, self.nodes[i].kwargs))]
        return list(dict.fromkeys(t for t in used if isinstance(t, nn.Parameter)))


def _call(func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """func(*args, **kwargs). Methods that torch wrote in C accept tensors alone, so a set is asked by its gate."""
    if isinstance(func, (MethodDescriptorType, WrapperDescriptorType, MethodWrapperType)):
        for leaf in _leaves((args, kwargs)):
            if isinstance(leaf, Value):
                return leaf.apply(func, args, kwargs)
    return func(*args, **kwargs)


def _map(tree: Any, change: Callable[[Any], Any] | dict[int, Any]) -> Any:
    """The same nest of tuples, lists and dicts with its leaves changed; a dict puts values in the place of Refs."""
    if isinstance(tree, Ref):
        return change[tree.index] if isinstance(change, dict) else tree
    if isinstance(tree, (tuple, list)):
        parts = [_map(part, change) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    if isinstance(tree, dict):
        return {key: _map(part, change) for key, part in tree.items()}
    return tree if isinstance(change, dict) else change(tree)


def _value_of(leaf: Any) -> Any:
    return leaf._value if isinstance(leaf, Traced) else leaf


def _ref_to(leaf: Any) -> Any:
    return Ref(leaf._index) if isinstance(leaf, Traced) else leaf


def _leaves(tree: Any) -> Iterator[Any]:
    if isinstance(tree, (tuple, list, dict)):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _leaves(part)
    else:
        yield tree


def _traced(tree: Any) -> Iterator[Traced]:
    return (leaf for leaf in _leaves(tree) if isinstance(leaf, Traced))


def _tensors(tree: Any) -> Iterator[Tensor]:
    return (leaf for leaf in _leaves(tree) if isinstance(leaf, Tensor))
