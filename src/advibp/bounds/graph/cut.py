"""Split a network into two parts at the input of one of its layers.

Layer-wise training freezes the part before the cut and trains the part after it. An `nn.Sequential` is sliced. Any
other module is recorded on a tape and replayed from the node of the latent value.
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
    """A network split at the input of a layer: after(before(x)) is the network's output.

    Attributes:
        layer: name of the layer after the cut.
        before: maps the input of the network to the input of the layer. It also takes sets.
        after: maps the input of the layer to the output of the network. It also takes sets.
        frozen: the parameters on which `before` depends.
    """

    layer: str
    before: Callable[[Any], Any]
    after: Callable[[Any], Any]
    frozen: list[nn.Parameter]


def cuts(net: nn.Module, x: Tensor) -> tuple[list[Cut], list[str]]:
    """Find all cuts at the input of a convolution or linear layer that have parameters before and after them.

    Args:
        net: the network.
        x: inputs (B, ...). A recorded network accepts only batches of this size.

    Returns:
        The cuts in the order in which their layers run, and for each layer that cannot be cut the reason.

    Examples:
        >>> import torch
        >>> from advibp import nets
        >>> from advibp.bounds.graph.cut import cuts
        >>> found, refused = cuts(nets.build("FC 5, FC 4", (1, 3, 3), 2), torch.rand(2, 1, 3, 3))
        >>> [cut.layer for cut in found]
        ['3', '5']
    """
    parts = _flat_layers(net)
    return (_sliced_cuts(net, parts), []) if parts is not None else _replayed_cuts(net, x)


def split(net: Any, layers: int, x: Tensor) -> Cut:
    """Split a network so that its last `layers` layers are behind the cut.

    BatchNorm, ReLU and Flatten are layers of their own. In a network that is no plain nn.Sequential the recorded torch
    operations are counted.

    Args:
        net: the network.
        layers: number of layers behind the cut.
        x: a batch, (B, ...), on which a network that is no nn.Sequential is recorded.

    Raises:
        UserError: if the network has too few layers, or a skip connection leads past the cut.

    Examples:
        >>> import torch
        >>> from advibp import nets
        >>> net, x = nets.build("FC 5, FC 4", (1, 3, 3), 2), torch.rand(2, 1, 3, 3)
        >>> cut = split(net, 3, x)
        >>> cut.after, torch.equal(cut.after(cut.before(x)), net(x))
        (Sequential(
          (0): Linear(in_features=5, out_features=4, bias=True)
          (1): ReLU()
          (2): Linear(in_features=4, out_features=2, bias=True)
        ), True)
    """
    parts = _flat_layers(net) if isinstance(net, nn.Module) else None
    if parts is not None:
        _check_layers(layers, len(parts))
        before = nn.Sequential(*parts[:-layers])
        return Cut("", before, nn.Sequential(*parts[-layers:]), list(before.parameters()))
    tape = _record_repeatable(net, x)
    nodes = [i for i in tape.needed(0, tape.output) if tape.nodes[i].from_input and tape.nodes[i].shape is not None]
    _check_layers(layers, len(nodes))
    node = nodes[-layers - 1]
    tape.check_cut(node)
    return _replayed_cut(tape, node, tape.name(nodes[-layers]), tape.parameters_before(node))


def _check_layers(layers: int, count: int) -> None:
    if not 0 < layers < count:
        raise UserError(
            f"The network has {count} layers, so its last {layers} can't be attacked in a latent box; set taps_layers "
            f"to 1 to {count - 1}."
        )


def _flat_layers(net: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a plain nn.Sequential, including nested ones; None for any other module."""
    hooks = (net._forward_hooks, net._forward_pre_hooks, net._backward_hooks, net._backward_pre_hooks)
    plain = type(net).forward is nn.Sequential.forward and not any(hooks)
    if not isinstance(net, nn.Sequential) or not plain:
        return None
    parts: list[nn.Module] = []
    for child in net:
        inner = _flat_layers(child) if isinstance(child, nn.Sequential) else [child]
        if inner is None or any(list(layer.children()) for layer in inner):
            return None
        parts += inner
    return parts


def _sliced_cuts(net: nn.Module, parts: list[nn.Module]) -> list[Cut]:
    """Return the cuts of a plain nn.Sequential."""
    names = {module: name for name, module in net.named_modules()}
    cuts_found = []
    for i, layer in enumerate(parts):
        before, after = nn.Sequential(*parts[:i]), nn.Sequential(*parts[i:])
        frozen = list(before.parameters())
        if isinstance(layer, _LAYERS) and frozen and _has_trainable(frozen, after.parameters()):
            cuts_found.append(Cut(names[layer], before, after, frozen))
    return cuts_found


def _replayed_cuts(net: nn.Module, x: Tensor) -> tuple[list[Cut], list[str]]:
    """Return the cuts of a recorded module, and the reasons why other layers cannot be cut."""
    tape = _record_repeatable(net, x)
    cuts_found: dict[int, Cut] = {}
    refused: dict[str, None] = {}  # an ordered set
    for index in tape.needed(0, tape.output):
        node = tape.nodes[index]
        inputs = [leaf.index for leaf in leaves_of((node.args, node.kwargs)) if isinstance(leaf, Ref)]
        inputs = [i for i in inputs if tape.nodes[i].from_input]
        if node.func not in _AFFINE or len(inputs) != 1 or inputs[0] in cuts_found:
            continue
        frozen = tape.parameters_before(inputs[0])
        if not frozen:
            continue
        try:
            tape.check_cut(inputs[0])
        except UserError as reason:
            refused[str(reason)] = None
            continue
        if _has_trainable(frozen, tape.parameters_between(inputs[0], tape.output)):
            cuts_found[inputs[0]] = _replayed_cut(tape, inputs[0], tape.name(index), frozen)
    return list(cuts_found.values()), list(refused)


def _has_trainable(frozen: list[nn.Parameter], after: Iterable[nn.Parameter]) -> bool:
    """Return whether a parameter after the cut can be trained. A layer that is also used before the cut is frozen."""
    return bool({id(p) for p in after if p.requires_grad} - {id(p) for p in frozen})


def _record_repeatable(net: nn.Module, x: Tensor) -> Tape:
    """Record the network. Raise if it does not repeat its computation."""
    with torch.random.fork_rng(), torch.no_grad():
        seed = torch.initial_seed()
        torch.manual_seed(seed)
        tape = Tape.record(net, x)
        torch.manual_seed(seed)
        output = run_on_copy(net, x)
        torch.manual_seed(seed)
        if not torch.allclose(tape.replay(x), output, rtol=1e-3, atol=1e-4, equal_nan=True):
            raise UserError(
                "The network can't be replayed: it returned different outputs for the same images; its outputs must "
                "depend only on its input and its weights."
            )
    return tape


def _replayed_cut(tape: Tape, node: int, layer: str, frozen: list[nn.Parameter]) -> Cut:
    """Return a cut that replays both parts of a tape."""
    return Cut(layer, lambda x: tape.replay(x, 0, node), lambda latent: tape.replay(latent, node), frozen)
