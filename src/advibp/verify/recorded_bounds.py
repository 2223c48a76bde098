"""IBP margins as a recorded program: the same tensor operations as `net(Rounded.ball(x, eps))`, without Python's cost.

For a small network most of the time of an IBP pass is spent in Python, which finds the rule of each operation, and in
values that depend only on the weights, such as |W|. `record` runs the pass once, records its tensor operations, and
computes those that depend only on weights. The program does the remaining operations in the same order on the same
numbers, so its margins are equal bit by bit.

The operations must not depend on values, or the recording would hold for one input only. `Rounding.branchless` replaces
the only such branch of the rules. Every other one raises an error in torch while it is recorded, and `record` returns
None.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from advibp.bounds.box import Box
from advibp.bounds.labels import smallest_margin
from advibp.bounds.rounded import Rounded
from advibp.bounds.rounding import Rounding

#: (center, radius, labels) of a Rounded box (B, ...) -> smallest margin (B,).
Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def margins(net: nn.Module, box: Box, rounding: Rounding, y: Tensor) -> Tensor:
    """Return the smallest IBP margin of each image (B,) over a box (B, ...) of inputs, with rounding errors.

    Args:
        net: the network, in evaluation mode.
        box: center and radius as in `Rounded.ball`.
        rounding: the arithmetic.
        y: labels (B,).
    """
    return smallest_margin(net(Rounded(box, rounding)).lower_margins(y), y)


@torch.no_grad()
def record(net: nn.Module, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Program | None:
    """Record the IBP margins of a network whose weights never change.

    Args:
        net: the network, in evaluation mode. No one else may have it, because changes of its weights have no effect on
            the program.
        shape: shape (B, ...) of the images. The program takes only this shape.
        dtype: dtype of the network and of the images.
        device: device of both.

    Returns:
        The program; None if the network can't be recorded, or if the program and the network do not agree bit by bit on
        three random inputs.
    """
    examples = [_example(shape, dtype, device, seed) for seed in range(3)]
    rounding = Rounding(dtype, dtype)
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        _margins_of(net, examples[0], rounding)  # raises for weights that a branchless pass does not check
        recording = Rounding(dtype, dtype, branchless=True)
        graph = make_fx(lambda center, radius, y: margins(net, Box._of(center, radius), recording, y))(*examples[0])
        program = _compiled(_without_constants(graph))
        for example in examples:
            expected = _margins_of(net, example, rounding)
            if not torch.equal(program(*example).nan_to_num(), expected.nan_to_num()):
                return None
    except Exception:  # torch has no common error for programs that can't be recorded
        return None
    return program


def _margins_of(net: nn.Module, example: tuple[Tensor, ...], rounding: Rounding) -> Tensor:
    center, radius, y = example
    return margins(net, Box._of(center.clone(), radius.clone()), rounding, y)


def _example(shape: Sequence[int], dtype: torch.dtype, device: torch.device, seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    ball = Rounded.ball(torch.rand(*shape, generator=generator, dtype=dtype), 0.01 * (1 + 5 * seed))
    y = torch.randint(2, (shape[0],), generator=generator)
    return ball.center.to(device), ball.radius.to(device), y.to(device)


def _without_constants(program: fx.GraphModule) -> fx.GraphModule:
    """Compute the operations that depend only on weights, and keep their results."""
    graph, known = program.graph, dict[fx.Node, Any]()
    for node in list(graph.nodes):
        if node.op == "get_attr":
            known[node] = getattr(program, node.target)
            continue
        if _is_mutable(node) and node.args[0] in known:
            raise ValueError("an operation writes to a value that the program keeps")
        from_weights = node.all_input_nodes or node.target is torch.ops.aten.scalar_tensor.default
        if node.op == "call_function" and from_weights and all(n in known for n in node.all_input_nodes):
            args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
            name = f"known_{len(known)}"
            program.register_buffer(name, node.target(*args, **kwargs))
            with graph.inserting_before(node):
                kept = graph.get_attr(name)
            known[kept] = getattr(program, name)
            node.replace_all_uses_with(kept)
    graph.eliminate_dead_code(lambda node: node.is_impure() or _is_mutable(node))
    program.recompile()
    return program


def _compiled(program: fx.GraphModule) -> Program:
    """Return a Python function of the operations, in which operations and constants are local variables.

    The code that torch.fx generates looks them up in every call, which takes as long as the smaller operations.
    """
    known: dict[str, Any] = {}
    inputs: list[str] = []
    lines: list[str] = []
    for node in program.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "get_attr":
            known[node.name] = getattr(program, node.target)
        elif node.op == "call_function":
            known[f"run_{node.name}"] = getattr(node.target, "_op", node.target)
            arguments = [_code(value, known) for value in node.args]
            arguments += [f"{key}={_code(value, known)}" for key, value in node.kwargs.items()]
            lines.append(f"{node.name} = run_{node.name}({', '.join(arguments)})")
        else:
            lines.append(f"return {_code(node.args[0], known)}")
    names = ", ".join([*inputs, *(f"{name}={name}" for name in known)])
    exec("\n    ".join([f"def run({names}):", *lines]), known)
    run: Program = known["run"]
    return run


def _code(value: Any, known: dict[str, Any]) -> str:
    """Return the code of an argument. A value that is neither a node nor a list becomes a constant in `known`."""
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, list | tuple):
        items = "".join(f"{_code(item, known)}, " for item in value)
        return f"[{items}]" if isinstance(value, list) else f"({items})"
    name = f"value_{len(known)}"
    known[name] = value
    return name


def _is_mutable(node: fx.Node) -> bool:
    """Return whether a node changes its first argument in place."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)
