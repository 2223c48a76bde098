"""Tape: the recorded graph of a network, which can be replayed from any of its values.

    tape = Tape.record(net, x)
    tape.replay(x)                          # the same as net(x)
    tape.replay(latent, start=node)         # the rest of the network, from another value at `node`

Recording uses the same mechanism as sets of inputs, so it needs no source code and no wrapper classes. A node is an
operation as the user wrote it: `F.batch_norm`, not its parts. A tape refers to the weights and does not copy them.
Numbers that were read from a shape, and the modes of the layers, are constants of the tape: it replays only batches of
the recorded size, in the recorded modes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds.domain import Value, spellings, unsupported
from advibp.bounds.graph.nodes import Node, Ref, leaves_of, map_leaves
from advibp.bounds.graph.recording import Recording
from advibp.bounds.graph.traced import Recordable
from advibp.errors import UserError

__all__ = ["Node", "Ref", "Tape"]

_FLOATS = frozenset(spellings("float double"))


@dataclass
class Tape:
    """The calls of a network in the order in which they were made.

    Attributes:
        net: the network.
        nodes: the calls. Node 0 is the input.
        output: index of the node of the output.

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> from advibp.bounds.graph.tape import Tape
        >>> net, x = nn.Sequential(nn.Linear(2, 3), nn.ReLU()), torch.rand(4, 2)
        >>> tape = Tape.record(net, x)
        >>> len(tape.nodes), torch.equal(tape.replay(x), net(x))
        (3, True)
    """

    net: nn.Module
    nodes: list[Node]
    output: int = 0

    @classmethod
    def record(cls, net: nn.Module, x: Recordable) -> Tape:
        """Run `net` on x (B, ...), a tensor or a set, and record its calls."""
        with torch.inference_mode(False):
            x = x.clone()  # the network may write to it
        recording = Recording(net, x)
        recording.run(net, x)
        return cls(net, recording.nodes, recording.output)

    @classmethod
    def record_wide(cls, net: nn.Module, x: Tensor, dtype: torch.dtype) -> Tape:
        """Record a network in its own dtype, for a replay in float64.

        All constants become float64: weights, and values that the network computes from weights only. Those are
        computed in the network's dtype before they are converted. (A float64 copy of the network would compute other
        numbers.)

        Args:
            net: the network.
            x: inputs (B, ...).
            dtype: dtype of the network.
        """
        x = x.to(dtype)
        tape = cls.record(net, x)
        with torch.no_grad():
            known: dict[int, Any] = {}
            for index, value in tape.trace(x):
                if not tape.nodes[index].from_input:
                    known[index] = map_leaves(value, _copy)  # copied now, because the network may write to it later
                elif any(isinstance(v, Tensor) and v.dtype != dtype for v in leaves_of(value)):
                    unsupported(
                        f"{tape.name(index)} is not of type {dtype}, so it has no exact linear bounds",
                        "verify it by ibp or deepz.",
                    )

            def widen(leaf: Any) -> Any:
                if isinstance(leaf, Ref):
                    return map_leaves(known[leaf.index], widen) if leaf.index in known else leaf
                if leaf is dtype:  # a cast to the dtype that the value already has
                    return torch.float64
                floating = isinstance(leaf, Tensor) and leaf.is_floating_point()
                return leaf.detach().double() if floating else leaf

            nodes = [
                replace(
                    node,
                    func=Tensor.double if node.func in _FLOATS else node.func,
                    args=map_leaves(node.args, widen),
                    kwargs=map_leaves(node.kwargs, widen),
                    refs=tuple(ref for ref in node.refs if ref not in known),
                )
                if node.from_input
                else node
                for node in tape.nodes
            ]
        return cls(net, nodes, tape.output)

    def replay(self, value: Any, start: int = 0, stop: int | None = None) -> Any:
        """Return the value of node `stop` (default: the output) if node `start` has this value."""
        result = value
        for _, result in self.trace(value, start, stop):  # noqa: B007
            pass
        return result

    def trace(
        self,
        value: Any,
        start: int = 0,
        stop: int | None = None,
        change: Callable[[int, Any], Any] = lambda index, value: value,
    ) -> Iterator[tuple[int, Any]]:
        """Replay node by node. Yield the index and the value of each node that runs; the last one is `stop`.

        Args:
            value: the value of node `start`.
            start: the node before the first one that runs. Default: the input.
            stop: the last node that runs. Default: the output.
            change: returns the value that replaces the value of a node.
        """
        stop = self.output if stop is None else stop
        self._check_shape(value, start)
        plan = self._plan(start, stop)
        writes = frozenset[int]().union(*(self.nodes[index].writes for index, _ in plan))
        # Do not change the caller's value. A set may treat an operation as a view that copies a tensor.
        if writes & self.nodes[start].memory or (writes and isinstance(value, Value)):
            value = map_leaves(value, _copy)
        values = {start: value}
        del value
        for index, over in plan:
            values[index] = change(index, self.nodes[index].run(values))
            yield index, values[index]
            for done in over:  # free values after their last use
                del values[done]

    def _check_shape(self, value: Any, start: int) -> None:
        """Raise if the value does not have the recorded shape."""
        expected, shape = self.nodes[start].shape, getattr(value, "shape", None)
        if shape != expected and expected is not None and shape is not None:
            raise UserError(
                f"The network was recorded with shape {tuple(expected)} at {self.name(start)}, but the value has shape "
                f"{tuple(shape)}; record it again for that shape."
            )

    def _plan(self, start: int, stop: int) -> list[tuple[int, list[int]]]:
        """Return the nodes to run, each with the nodes whose last use it is."""
        if (start, stop) not in self._plans:
            self.check_cut(start, stop)
            run = self.needed(start, stop)
            last: dict[int, int] = {index: index for index in run if index != stop}
            for index in run:
                last |= dict.fromkeys(self.nodes[index].refs, index)
            ends: dict[int, list[int]] = {}
            for ref, index in last.items():
                ends.setdefault(index, []).append(ref)
            self._plans[start, stop] = [(index, ends.get(index, [])) for index in run]
        return self._plans[start, stop]

    @cached_property
    def _plans(self) -> dict[tuple[int, int], list[tuple[int, list[int]]]]:
        return {}

    def needed(self, start: int, stop: int) -> list[int]:
        """Return the nodes to run for the value of `stop`, given that of `start`.

        These are all nodes after `start` on which it depends, and the earlier nodes that they need and that do not
        depend on the input.
        """
        return sorted(index for index in self._reached(start, stop) if index != start and self._runs(index, start))

    def _runs(self, index: int, start: int) -> bool:
        """Return whether a node runs in a replay from `start`."""
        return index > start or not self.nodes[index].from_input

    def _reached(self, start: int, stop: int) -> dict[int, int]:
        """Return the nodes that `stop` depends on, up to `start`, each with one node that needs it."""
        reached, todo = {stop: stop}, [stop]
        while todo:
            index = todo.pop()
            if index == start or not self._runs(index, start):
                continue
            node = self.nodes[index]
            # Writes to weights and buffers before `start` have already happened.
            for needed in (*node.refs, *node.after, *(i for i in node.state if i > start)):
                if needed not in reached:
                    reached[needed] = index
                    todo.append(needed)
        return reached

    def check_cut(self, start: int, stop: int | None = None) -> None:
        """Raise if the nodes after `start` also need a value from before it."""
        stop = self.output if stop is None else stop
        for index, user in self._reached(start, stop).items():
            if index != start and not self._runs(index, start):
                self._refuse_cut(start, user)
            # Memory that `start` wrote to and that is read through another view is not in the value of `start`.
            if index != start and start in self.nodes[index].after:
                self._refuse_cut(start, index)

    def _refuse_cut(self, start: int, user: int) -> None:
        raise UserError(
            f"The network can't be cut at {self.name(start)}: {self.name(user)}, which comes later, also uses a value "
            f"from before it (a skip connection); cut it before or after the connection."
        )

    def name(self, index: int) -> str:
        """Return where a node's value is computed, as "layer 'block.conv1' (conv2d)"."""
        node = self.nodes[index]
        if node.func is None:
            return "the input"
        func = getattr(node.func, "__name__", "?")
        if func == "__get__":
            func = getattr(getattr(node.func, "__self__", None), "__name__", func)
        paths = [path for path, module in self.net.named_modules() if module is node.module]
        return f"layer '{paths[0]}' ({func})" if paths and paths[0] else f"the call of {func}"

    def parameters_before(self, index: int) -> list[nn.Parameter]:
        """Return the parameters on which the value of a node depends, each once."""
        return self.parameters_between(0, index)

    def parameters_between(self, start: int, stop: int) -> list[nn.Parameter]:
        """Return the parameters of the nodes that run for the value of `stop`, given that of `start`."""
        nodes = [self.nodes[i] for i in self.needed(start, stop)]
        used = [leaf for node in nodes for leaf in leaves_of((node.args, node.kwargs))]
        return list(dict.fromkeys(t for t in used if isinstance(t, nn.Parameter)))


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, (Tensor, Value)) else value
