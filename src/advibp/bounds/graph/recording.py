"""Record the torch calls that a network makes.

The network runs on a `Traced` value under a TorchFunctionMode that sees every torch function. Each call becomes a
`Node`. Calls that have only weights, buffers or random numbers as arguments are recorded too: a weight that is
computed in forward is computed again, with its gradient, when the tape is replayed. Calls that a replay could not
repeat raise an error.

In-place writes are recognized by the version counters of the arguments, and values that share memory by the address of
their storage. Each node therefore stores the values that it uses and the earlier writes to them.
"""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from advibp.bounds.domain import Func, Value, name_of, running_modules, spellings, unsupported
from advibp.bounds.graph.nodes import Node, Ref, call, leaves_of, map_leaves
from advibp.bounds.graph.replay_checks import READS, check_replayable, no_custom_functions
from advibp.bounds.graph.traced import Recordable, Traced, memory_of, ref_to, refuse_reading, value_of, writes_to
from advibp.errors import UserError

#: Functions of shape, dtype and device, whose results are the same when the network is replayed.
_METADATA = frozenset(
    spellings(
        "size shape dim ndim ndimension numel nelement stride dtype device is_floating_point is_complex is_contiguous "
        "element_size itemsize nbytes get_device is_cuda is_cpu is_mps is_xpu is_meta layout is_sparse is_quantized "
        "is_nested names __len__"
    )
)


class Recording(TorchFunctionMode):
    """The nodes of one run of a network. Node 0 is its input."""

    def __init__(self, net: nn.Module, x: Recordable) -> None:
        super().__init__()
        self.nodes = [Node(memory=frozenset([memory_of(x)]), shape=x.shape)]
        self.output = 0
        self._owned = {memory_of(t) for t in (*net.parameters(), *net.buffers())}
        self._foreign: set[int] = set()  # memory of tensors that were created outside of forward
        self._writer: dict[int, int] = {}  # memory -> the last node that wrote to it
        self._alive: list[Any] = [x]  # kept until the end, so that memory addresses stay unique
        self._device = x.device.type
        self._autocast = _autocast(self._device)
        self.busy = self._over = False  # busy: inside a call that is recorded as a whole

    def run(self, net: nn.Module, x: Recordable) -> None:
        """Run the network and fill `nodes` and `output`."""
        if any(isinstance(m, torch.jit.ScriptModule) for m in net.modules()):
            raise UserError("The network can't be replayed: it is compiled by torch.jit; use its plain module.")
        if any(m._backward_hooks or m._backward_pre_hooks for m in net.modules()):
            raise UserError("The network can't be replayed: it has backward hooks; remove them first.")
        random_state, registered = random.getstate(), dict(_registered(net))
        try:
            # With gradients enabled, so that calls under torch.no_grad can be recognized.
            with torch.inference_mode(False), torch.enable_grad(), no_custom_functions(lambda: self.busy), self:
                self.output = self._output_node(net(Traced(self, 0, x)))
        except UserError:
            raise
        except Exception as error:  # a user's network may raise any error
            raise UserError(
                f"The network can't be recorded: its forward raised {error!r} on a tensor subclass; use only "
                f"torch functions in its forward, and update buffers in place."
            ) from error
        finally:
            self._over = True
            self._alive.clear()
            replaced = [name for name, tensor in _registered(net) if registered.get(name) is not tensor]
            _restore(net, registered)
        if replaced:
            raise UserError(
                f"The network can't be replayed: its forward replaces '{replaced[0]}'; write to it in place."
            )
        if random.getstate() != random_state:
            raise UserError(
                "The network can't be replayed: it uses Python's random module; use torch's random functions instead."
            )

    def _output_node(self, result: Any) -> int:
        """Return the node of the network's result."""
        if isinstance(result, Traced):
            writer = self._writer.get(memory_of(result._value), 0)
            if writer > result._index:  # it was written through a view
                result = result.view(result.shape)
            if self.nodes[result._index].from_input:
                index: int = result._index
                return index
        if isinstance(result, (Traced, Tensor)):
            raise UserError(
                "The network can't be replayed: its output does not depend on its input; return a value that does."
            )
        kind = type(result).__name__
        raise UserError(
            f"The network can't be replayed: it returns a {kind} instead of one tensor; return only the logits."
        )

    def __torch_function__(
        self, func: Func, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Func, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a function on the values that its arguments stand for, and record it."""
        if self.busy:
            return func(*args, **kwargs)
        if self._over:
            raise UserError("A value of a finished recording was used; record the network again.")
        leaves = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, (Traced, Tensor))]
        self.busy = True
        try:
            values = [value_of(leaf) for leaf in leaves]
            before = [writes_to(value) for value in values]
            result = call(func, map_leaves(args, value_of), map_leaves(kwargs, value_of))
            written = [value for value, count in zip(values, before, strict=True) if writes_to(value) != count]
            if func in _METADATA:
                return result
            if any(isinstance(leaf, (Tensor, Value)) for leaf in leaves_of(result)) or written:
                return self._add_node(func, args, kwargs, leaves, written, result)
        finally:
            self.busy = False
        traced = any(isinstance(leaf, Traced) for leaf in leaves)
        if func in READS and (traced or self._owns(leaves)):
            refuse_reading(name_of(func))
        if traced:
            unsupported(f"{name_of(func)} returns no tensor, so it can't be replayed", "remove it from forward.")
        return result

    def _owns(self, leaves: list[Any]) -> bool:
        """Return whether a parameter or buffer of the network is among the arguments."""
        return any(memory_of(leaf) in self._owned for leaf in leaves if isinstance(leaf, Tensor))

    def _add_node(
        self, func: Func, args: Any, kwargs: Any, leaves: list[Any], written: list[Recordable], result: Any
    ) -> Any:
        """Add a node for a call, and return its result as Traced."""
        refs = tuple(dict.fromkeys(leaf._index for leaf in leaves if isinstance(leaf, Traced)))
        after, state = self._writers(leaves)
        from_input = any(self.nodes[i].from_input for i in (*refs, *after, *state))
        check_replayable(func, args, leaves, from_input, _autocast(self._device) != self._autocast)
        index, writes = len(self.nodes), frozenset(map(memory_of, written))
        if writes & self._foreign:
            unsupported(
                f"{name_of(func)} writes to a tensor that was created outside of forward, which can't be replayed",
                "create it in forward, or register it as a buffer.",
            )
        self._writer.update(dict.fromkeys(writes, index))
        modules = running_modules()
        node = Node(
            func=func,
            args=map_leaves(args, ref_to),
            kwargs=map_leaves(kwargs, ref_to),
            module=modules[0] if modules else None,
            refs=refs,
            after=after,
            state=state,
            writes=writes,
            memory=frozenset(memory_of(leaf) for leaf in leaves_of(result) if isinstance(leaf, (Tensor, Value))),
            shape=result.shape if isinstance(result, (Tensor, Value)) else None,
            from_input=from_input,
            gradient=torch.is_grad_enabled(),
        )
        self.nodes.append(node)
        if result is None:  # y[i] = z
            assert isinstance(leaves[0], (Traced, Tensor))
            self._as_traced(index, value_of(leaves[0]), leaves)
            return None
        return self._results(index, result, node, leaves)

    def _results(self, index: int, result: Any, node: Node, leaves: list[Any]) -> Any:
        """Return the results of a call as Traced, with one node for each of several results."""
        if isinstance(result, (Tensor, Value)):
            return self._as_traced(index, result, leaves)
        if not isinstance(result, (tuple, list)):
            return result
        parts = []
        for i, part in enumerate(result):  # one of several results, as of chunk and unbind
            self.nodes.append(
                Node(
                    func=operator.getitem,
                    args=(Ref(index), i),
                    module=node.module,
                    refs=(index,),
                    memory=frozenset([memory_of(part)]) if isinstance(part, (Tensor, Value)) else node.memory,
                    shape=getattr(part, "shape", None),
                    from_input=node.from_input,
                )
            )
            parts.append(self._results(len(self.nodes) - 1, part, node, leaves))
        return type(result)(*parts) if hasattr(result, "_fields") else type(result)(parts)

    def _as_traced(self, index: int, value: Recordable, leaves: list[Any]) -> Any:
        """Return the value of a node as Traced.

        If an argument has this value (in-place operation), the argument now refers to the new node.
        """
        self._alive.append(value)
        for leaf in leaves:
            if value_of(leaf) is value:
                if isinstance(leaf, Traced):
                    leaf._index = index
                return leaf
        return Traced(self, index, value)

    def _writers(self, leaves: list[Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the last writers to the memory of these arguments: to traced values, and to parameters and buffers."""
        after, state = [], []
        for leaf in leaves:
            memory = memory_of(value_of(leaf))
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


def _registered(net: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield all parameters and buffers with their names, including those that are None."""
    for path, module in net.named_modules():
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            yield f"{path}.{name}".lstrip("."), tensor


def _restore(net: nn.Module, owned: dict[str, Any]) -> None:
    """Restore the parameters and buffers, and replace traced values in attributes by plain values."""
    for path, module in net.named_modules():
        for tensors in (module._parameters, module._buffers):
            for name in tensors:
                tensors[name] = owned.get(f"{path}.{name}".lstrip("."), tensors[name])
        for name, value in vars(module).items():
            if any(isinstance(leaf, Traced) for leaf in leaves_of(value)):
                vars(module)[name] = map_leaves(value, _plain)


def _plain(leaf: Any) -> Any:
    """Return the detached value of a traced leaf, or the leaf itself."""
    return leaf._value.detach() if isinstance(leaf, Traced) else leaf


def _autocast(device: str) -> tuple[bool, torch.dtype] | None:
    """Return the state of autocast on a device."""
    if not torch.amp.is_autocast_available(device):
        return None
    return torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)
