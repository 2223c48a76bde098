"""A network in two parts, cut at the input of one of its layers.

Layer-wise training attacks a latent value: the part before it is frozen, the part after it is trained. An
`nn.Sequential` is sliced; any other module is recorded on a tape and replayed from the node that holds the value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds.domain import spellings
from advibp.bounds.graph.nodes import Ref, leaves_of
from advibp.bounds.graph.tape import Tape
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy

_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_AFFINE = frozenset(
    spellings(
        "linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul __matmul__ "
        "__rmatmul__ mm bmm addmm baddbmm"
    )
)


@dataclass(frozen=True)
class Cut:
    """before(x) is the input of a layer, after(before(x)) the network's output; both also take sets."""

    layer: str
    before: Callable[[Any], Any]
    after: Callable[[Any], Any]
    frozen: list[nn.Parameter]  # on which `before` depends


def cuts(net: nn.Module, x: Tensor) -> tuple[list[Cut], list[str]]:
    """A cut at the input of every convolution and linear layer that has parameters before it and after it, in the order
    in which they run; and why the others can't be cut. A recorded network takes batches of the size of x (B, ...)
    alone."""
    parts = _flat(net)
    return (_slices(net, parts), []) if parts is not None else _replays(net, x)


def _flat(net: nn.Module) -> list[nn.Module] | None:
    """The layers of a plain chain, nested ones too; None for any other module."""
    hooks = (net._forward_hooks, net._forward_pre_hooks, net._backward_hooks, net._backward_pre_hooks)
    plain = type(net).forward is nn.Sequential.forward and not any(hooks)
    if not isinstance(net, nn.Sequential) or not plain:
        return None
    parts: list[nn.Module] = []
    for child in net:
        inner = _flat(child) if isinstance(child, nn.Sequential) else [child]
        if inner is None or any(list(layer.children()) for layer in inner):
            return None
        parts += inner
    return parts


def _slices(net: nn.Module, parts: list[nn.Module]) -> list[Cut]:
    names = {module: name for name, module in net.named_modules()}
    found = []
    for i, layer in enumerate(parts):
        before, after = nn.Sequential(*parts[:i]), nn.Sequential(*parts[i:])
        frozen = list(before.parameters())
        if isinstance(layer, _LAYERS) and frozen and _leaves_something(frozen, after.parameters()):
            found.append(Cut(names[layer], before, after, frozen))
    return found


def _replays(net: nn.Module, x: Tensor) -> tuple[list[Cut], list[str]]:
    tape = _faithful(net, x)
    found: dict[int, Cut] = {}
    refused: dict[str, None] = {}  # in order, each once
    for index in tape.needed(0, tape.output):
        node = tape.nodes[index]
        inputs = [leaf.index for leaf in leaves_of((node.args, node.kwargs)) if isinstance(leaf, Ref)]
        inputs = [i for i in inputs if tape.nodes[i].from_input]
        if node.func not in _AFFINE or len(inputs) != 1 or inputs[0] in found:
            continue
        frozen = tape.parameters_before(inputs[0])
        if not frozen:
            continue
        try:
            tape.check_cut(inputs[0])
        except UserError as reason:
            refused[str(reason)] = None
            continue
        if _leaves_something(frozen, tape.parameters_between(inputs[0], tape.output)):
            found[inputs[0]] = _replay(tape, inputs[0], tape.name(index), frozen)
    return list(found.values()), list(refused)


def _leaves_something(frozen: list[nn.Parameter], after: Iterable[nn.Parameter]) -> bool:
    """Whether there is something to train after a cut: a layer that is also used before it is frozen."""
    return bool({id(p) for p in after if p.requires_grad} - {id(p) for p in frozen})


def _faithful(net: nn.Module, x: Tensor) -> Tape:
    """A recording that does what the network does the next time, too."""
    with torch.random.fork_rng(), torch.no_grad():
        seed = torch.initial_seed()
        torch.manual_seed(seed)
        tape = Tape.record(net, x)
        torch.manual_seed(seed)
        once_more = run_on_copy(net, x)
        torch.manual_seed(seed)
        if not torch.allclose(tape.replay(x), once_more, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise UserError(
                "The network can't be replayed: run twice on the same images, it does not do the same; let nothing but "
                "its input and its weights decide what it computes."
            )
    return tape


def _replay(tape: Tape, node: int, layer: str, frozen: list[nn.Parameter]) -> Cut:
    return Cut(layer, lambda x: tape.replay(x, 0, node), lambda latent: tape.replay(latent, node), frozen)
