"""Recording: the torch calls that a network makes, written down while it runs.

The network runs on a `Traced` value, which stands for a tensor or a set, under a mode that sees every torch function.
Each call becomes a `Node`, those on weights, buffers and random numbers alone too: a weight that is computed on the way
is computed again, gradient and all, when the tape is replayed. What a replay could not repeat is refused here.

Calls that write in place are told by the counters of their arguments, and values that share memory by its address; so a
node knows, besides the values it names, the writes that came before it.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds.domain import Func, Value, name_of, running_modules, spellings, unsupported
from advibp.bounds.graph.nodes import Node, Ref, call, leaves_of, map_leaves
from advibp.errors import UserError

Recordable = Tensor | Value  # what a Traced value can stand for

#: What depends on shape, dtype and device alone, and so stays true when the network is replayed.
_METADATA = frozenset(
    spellings(
        "size shape dim ndim ndimension numel nelement stride dtype device is_floating_point is_complex is_contiguous "
        "element_size itemsize nbytes get_device is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_quantized "
        "is_nested names __len__"
    )
)
#: What turns numbers of a tensor into numbers of Python.
_READS = frozenset(
    spellings(
        "item tolist numpy __bool__ __float__ __int__ __index__ __complex__ __array__ __contains__ is_nonzero equal "
        "allclose"
    )
)
_RAGGED = frozenset(spellings("nonzero argwhere masked_select unique unique_consecutive bincount"))


class Traced(Value):
    """Stands for a tensor, or for a set of them, and writes down what is done with it."""

    __slots__ = ("__weakref__", "_index", "_recording", "_value")

    def __init__(self, recording: Recording, index: int, value: Recordable) -> None:
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


def _operator(name: str) -> Callable[..., Any]:
    return lambda value, *args: value.apply(getattr(Tensor, name), (value, *args), {})


# A set can't do these, but it will say so itself.
_OPERATORS = (
    "eq ne lt le gt ge pow rpow ipow mod rmod imod floordiv rfloordiv ifloordiv and rand or ror xor rxor invert"
)
for _name in _OPERATORS.split():
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


class Recording(TorchFunctionMode):
    """The nodes of one run of a network; node 0 is its input."""

    def __init__(self, net: nn.Module, x: Recordable) -> None:
        super().__init__()
        self.nodes = [Node(memory=frozenset([_memory(x)]), shape=x.shape)]
        self.output = 0
        self._owned = {_memory(t) for t in (*net.parameters(), *net.buffers())}
        self._foreign: set[int] = set()  # memory of tensors that were made elsewhere
        self._writer: dict[int, int] = {}  # memory -> the last node that wrote to it
        self._alive: list[Any] = [x]  # until the end, so that an address stands for one memory
        self._device = x.device.type
        self._autocast = _autocast(self._device)
        self.busy = self._over = False  # busy: inside of a call that is noted as a whole

    def run(self, net: nn.Module, x: Recordable) -> None:
        """Fill `nodes` and `output`. A set of random numbers that torch did not draw can't be drawn again."""
        if any(isinstance(m, torch.jit.ScriptModule) for m in net.modules()):
            raise UserError("The network can't be replayed: it is compiled by torch.jit; use its plain module.")
        if any(m._backward_hooks or m._backward_pre_hooks for m in net.modules()):
            raise UserError("The network can't be replayed: it has backward hooks; remove them first.")
        dice, owned = random.getstate(), dict(_registered(net))
        try:
            # With gradients, so that a call which does without can be told.
            with torch.inference_mode(False), torch.enable_grad(), _no_functions(self), self:
                self.output = self._settle(net(Traced(self, 0, x)))
        except UserError:
            raise
        except Exception as error:  # a network of one's own may raise anything
            raise UserError(
                f"The network can't be recorded: run on a stand-in for a tensor, it raised {error!r}; use torch "
                f"functions alone in its forward, and update buffers in place."
            ) from error
        finally:
            self._over = True
            self._alive.clear()
            replaced = [name for name, tensor in _registered(net) if owned.get(name) is not tensor]
            _leave_plain(net, owned)
        if replaced:
            raise UserError(
                f"The network can't be replayed: it replaces '{replaced[0]}' as it runs; write to it in place."
            )
        if random.getstate() != dice:
            raise UserError("The network can't be replayed: it draws from Python's random; draw by torch instead.")

    def _settle(self, result: Any) -> int:
        """The node of the network's result."""
        if isinstance(result, Traced):
            writer = self._writer.get(_memory(result._value), 0)
            if writer > result._index:  # written through a view of it
                result = result.view(result.shape)
            if self.nodes[result._index].from_input:
                index: int = result._index
                return index
        if isinstance(result, (Traced, Tensor)):
            raise UserError("The network can't be replayed: its output does not depend on its input; return what does.")
        found = type(result).__name__
        raise UserError(
            f"The network can't be replayed: it returns a {found}, where one tensor was expected; return the logits "
            f"alone."
        )

    def __torch_function__(
        self, func: Func, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on what its arguments stand for, and note it."""
        if self.busy:
            return func(*args, **kwargs)
        if self._over:
            raise UserError("A value of a recording that is over was used; record the network again.")
        leaves = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, (Traced, Tensor))]
        self.busy = True
        try:
            values = [_value_of(leaf) for leaf in leaves]
            before = [_writes_to(value) for value in values]
            result = call(func, map_leaves(args, _value_of), map_leaves(kwargs, _value_of))
            written = [value for value, count in zip(values, before, strict=True) if _writes_to(value) != count]
            if func in _METADATA:
                return result
            if any(isinstance(leaf, (Tensor, Value)) for leaf in leaves_of(result)) or written:
                return self._note(func, args, kwargs, leaves, written, result)
        finally:
            self.busy = False
        traced = any(isinstance(leaf, Traced) for leaf in leaves)
        if func in _READS and (traced or self._owns(leaves)):
            _unreplayable(name_of(func))
        if traced:
            unsupported(f"{name_of(func)} returns no tensor, so it can't be replayed", "leave it out of forward.")
        return result

    def _owns(self, leaves: list[Any]) -> bool:
        return any(_memory(leaf) in self._owned for leaf in leaves if isinstance(leaf, Tensor))

    def _note(
        self, func: Func, args: Any, kwargs: Any, leaves: list[Any], written: list[Recordable], result: Any
    ) -> Any:
        """A node for a call, and its result as Traced."""
        refs = tuple(dict.fromkeys(leaf._index for leaf in leaves if isinstance(leaf, Traced)))
        after, state = self._writers(leaves)
        from_input = any(self.nodes[i].from_input for i in (*refs, *after, *state))
        self._check(func, args, leaves, from_input)
        index, writes = len(self.nodes), frozenset(map(_memory, written))
        if writes & self._foreign:
            unsupported(
                f"{name_of(func)} writes to a tensor that was made outside of forward, which can't be replayed",
                "make it in forward, or register it as a buffer.",
            )
        self._writer.update(dict.fromkeys(writes, index))
        modules = running_modules()
        node = Node(
            func=func,
            args=map_leaves(args, _ref_to),
            kwargs=map_leaves(kwargs, _ref_to),
            module=modules[0] if modules else None,
            refs=refs,
            after=after,
            state=state,
            writes=writes,
            memory=frozenset(_memory(leaf) for leaf in leaves_of(result) if isinstance(leaf, (Tensor, Value))),
            shape=result.shape if isinstance(result, (Tensor, Value)) else None,
            from_input=from_input,
            gradient=torch.is_grad_enabled(),
        )
        self.nodes.append(node)
        if result is None:  # y[i] = z
            assert isinstance(leaves[0], (Traced, Tensor))
            self._stand_for(index, _value_of(leaves[0]), leaves)
            return None
        return self._results(index, result, node, leaves)

    def _results(self, index: int, result: Any, node: Node, leaves: list[Any]) -> Any:
        if isinstance(result, (Tensor, Value)):
            return self._stand_for(index, result, leaves)
        if not isinstance(result, (tuple, list)):
            return result
        parts = []
        for i, part in enumerate(result):  # one of several results, as chunk and unbind have them
            self.nodes.append(
                Node(
                    func=operator.getitem,
                    args=(Ref(index), i),
                    module=node.module,
                    refs=(index,),
                    memory=frozenset([_memory(part)]) if isinstance(part, (Tensor, Value)) else node.memory,
                    shape=getattr(part, "shape", None),
                    from_input=node.from_input,
                )
            )
            parts.append(self._results(len(self.nodes) - 1, part, node, leaves))
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)

    def _stand_for(self, index: int, value: Recordable, leaves: list[Any]) -> Any:
        """The value of a node, as Traced; if it is one of the arguments, whoever holds that goes on from here."""
        self._alive.append(value)
        for leaf in leaves:
            if _value_of(leaf) is value:
                if isinstance(leaf, Traced):
                    leaf._index = index
                return leaf
        return Traced(self, index, value)

    def _writers(self, leaves: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The last writers to the memory of these arguments: to values, and to what the network owns."""
        after, state = [], []
        for leaf in leaves:
            memory = _memory(_value_of(leaf))
            if isinstance(leaf, Tensor) and memory not in self._owned:
                self._foreign.add(memory)
            writer = self._writer.get(memory)
            if writer is None:
                continue
            if memory in self._owned:
                state.append(writer)
            elif isinstance(leaf, Traced) and writer > leaf._index:
                after.append(writer)
        return tuple(dict.fromkeys(after)), tuple(dict.fromkeys(state))

    def _check(self, func: Func, args: Any, leaves: list[Any], from_input: bool) -> None:
        """Refuse what a replay would not repeat."""
        if from_input and (func in _RAGGED or _picks(func, args)):
            unsupported(
                f"{name_of(func)} returns as many elements as its numbers say, which can't be replayed",
                "use a mask, as in torch.where, or train without layer-wise stages.",
            )
        if _autocast(self._device) != self._autocast:
            unsupported(
                "autocast is switched inside the network, which can't be replayed",
                "switch it around the whole network, or train without layer-wise stages.",
            )
        for leaf in leaves:
            if isinstance(leaf, Tensor) and leaf.grad_fn is not None:
                unsupported(
                    f"{name_of(func)} uses a tensor that was computed from weights before forward, so it can't be "
                    f"replayed",
                    "compute it in forward, or keep the tensor itself as a parameter.",
                )


@contextmanager
def _no_functions(recording: Recording) -> Iterator[None]:
    """Refuse functions with a gradient of their own, which torch does not tell a mode about."""
    Function = torch.autograd.Function
    apply = vars(Function)["apply"]

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        if recording.busy:  # the rules of sets may use them
            return apply.__get__(None, cls)(*args, **kwargs)
        unsupported(
            f"{cls.__name__}, a torch.autograd.Function, has a gradient of its own, which can't be replayed",
            "use torch functions instead, or train without layer-wise stages.",
        )

    Function.apply = classmethod(refuse)  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Function.apply = apply  # type: ignore[method-assign]


def _picks(func: Func, args: Any) -> bool:
    """Whether elements are selected where a value is true."""
    if func is torch.where or func is Tensor.where:
        return len(args) == 1
    if func in (torch.repeat_interleave, Tensor.repeat_interleave):
        return any(isinstance(arg, Traced) for arg in args[1:])
    masks = [leaf._value.dtype for leaf in leaves_of(args[1:]) if isinstance(leaf, Traced)]
    return func is Tensor.__getitem__ and any(dtype in (torch.bool, torch.uint8) for dtype in masks)


def _registered(net: nn.Module) -> Iterator[tuple[str, Any]]:
    """Parameters and buffers by name, those that are None too."""
    for path, module in net.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield f"{path}.{name}".lstrip("."), tensor


def _leave_plain(net: nn.Module, owned: dict[str, Any]) -> None:
    """The network owns what it owned before; of the run it keeps, for others to look at, plain values."""
    for path, module in net.named_modules():
        for registered in (module._parameters, module._buffers):
            for name in registered:
                registered[name] = owned.get(f"{path}.{name}".lstrip("."), registered[name])
        for name, kept in vars(module).items():
            if any(isinstance(leaf, Traced) for leaf in leaves_of(kept)):
                vars(module)[name] = map_leaves(kept, _plain)


def _plain(leaf: Any) -> Any:
    return leaf._value.detach() if isinstance(leaf, Traced) else leaf


def _autocast(device: str) -> tuple[bool, torch.dtype] | None:
    if not torch.amp.is_autocast_available(device):
        return None
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)


def _memory(value: Recordable) -> int:
    """Values that share memory have the same. Views of a set share the counter of its changes."""
    return value.untyped_storage()._cdata if isinstance(value, Tensor) else id(value._changes)


def _writes_to(value: Recordable) -> int:
    """How often a value was written to; inference tensors do not count."""
    if isinstance(value, Tensor):
        return 0 if value.is_inference() else value._version
    return value._changes[0]


def _value_of(leaf: Any) -> Any:
    return leaf._value if isinstance(leaf, Traced) else leaf


def _ref_to(leaf: Any) -> Any:
    return Ref(leaf._index) if isinstance(leaf, Traced) else leaf
