"""IBP margins as a recorded program: the same operations as `net(perturbation.rounded(x, eps))`, without Python's cost.

For a small network most of the time of an IBP pass is spent in Python, which finds the rule of each operation, and in
values that depend only on the weights, such as |W|. `record` runs the pass once, records its tensor operations, and
computes those that depend only on weights. The program does the remaining operations in the same order on the same
numbers, so its margins are equal bit by bit.

The operations must not depend on values, or the recording would hold for one input only. `Rounding.branchless` replaces
the only such branch of the rules. Every other one raises an error in torch while it is recorded, and `record` returns
None.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from advibp.bounds import Perturbation
from advibp.bounds.labels import smallest_margin
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounding import Rounding
from advibp.verify.selftest import spread_over

#: (image (1, ...), eps (R, 1, ...), label (1,)) -> smallest margin at each eps (R,).
Program = Callable[[Tensor, Tensor, Tensor], Tensor]


def margins(
    net: nn.Module, x: Tensor, eps: Tensor, y: Tensor, perturbation: Perturbation, rounding: Rounding
) -> Tensor:
    """Return the smallest IBP margin of an image at several radii, with rounding errors.

    Args:
        net: the network, in evaluation mode.
        x: the image (1, ...), in the range of the perturbation.
        eps: radii (R, 1, ...), finite and not negative. They are exact real numbers.
        y: its label (1,).
        perturbation: range of the inputs, and scale of each feature's radius, on the device of x.
        rounding: the arithmetic.

    Returns:
        Margins (R,).
    """
    count = len(eps)
    ball = perturbation.unchecked_rounded(x.expand(count, *x.shape[1:]), eps, rounding)
    labels = y.expand(count)
    return smallest_margin(net(ball).lower_margins(labels), labels)


@torch.no_grad()
def record(
    net: nn.Module, shape: Sequence[int], radii: int, like: Tensor, perturbation: Perturbation = PIXELS
) -> Program | None:
    """Record the IBP margins of a network whose weights never change.

    Args:
        net: the network, in evaluation mode. No one else may have it, because changes of its weights have no effect on
            the program.
        shape: shape (...) of an image.
        radii: number of radii. The program takes only this number.
        like: a tensor in the dtype and on the device of the network.
        perturbation: range of the inputs, and scale of each feature's radius, on the same device.

    Returns:
        The program; None if the network can't be recorded, or if the program and the network do not agree bit by bit on
        three random inputs.
    """
    examples = [_example(shape, radii, like, perturbation, seed) for seed in range(3)]
    rounding = Rounding(like.dtype, like.dtype)
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        margins(net, *examples[0], perturbation, rounding)  # raises for weights that a branchless pass does not check
        recording = Rounding(like.dtype, like.dtype, branchless=True)
        graph = make_fx(lambda x, eps, y: margins(net, x, eps, y, perturbation, recording))(*examples[0])
        graph = _without_constants(graph)
        expected = [margins(net, *example, perturbation, rounding) for example in examples]
    except Exception:  # torch has no common error for programs that can't be recorded
        return None
    for prepare in (_with_packed_weights, copy.copy):
        try:
            program = _compiled(prepare(graph))
            found = [program(*example) for example in examples]
        except Exception:  # also for programs that can't be run
            continue
        if all(torch.equal(f.nan_to_num(), e.nan_to_num()) for f, e in zip(found, expected, strict=True)):
            return program
    return None


def _example(
    shape: Sequence[int], radii: int, like: Tensor, perturbation: Perturbation, seed: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return an image (1, ...) in the range, radii (R, 1, ...) and a label (1,)."""
    generator = torch.Generator().manual_seed(seed)
    x = spread_over(torch.rand(1, *shape, generator=generator).to(like), perturbation)
    eps = 0.01 * (1 + 5 * seed) * (1 + torch.rand(radii, *[1] * len(shape), generator=generator))
    y = torch.randint(2, (1,), generator=generator)
    return x, eps.to(like.device, torch.float64), y.to(like.device)


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


def _with_packed_weights(program: fx.GraphModule) -> fx.GraphModule:
    """Return a copy in which the weights of 2-d convolutions have the layout of oneDNN.

    torch converts them in every call, which takes a third of the time of a small convolution. The convolution is
    oneDNN's direct one in both cases.
    """
    reorder: Any = torch._C._nn.mkldnn_reorder_conv2d_weight
    program = copy.deepcopy(program)
    for node in list(program.graph.nodes):
        if node.target is not torch.ops.aten.convolution.default:
            continue
        x, weight, bias, stride, padding, dilation, transposed, _, groups = node.args
        tensor = getattr(program, weight.target) if weight.op == "get_attr" else None
        shape = getattr(x.meta.get("val"), "shape", None)
        if tensor is None or shape is None or transposed or tensor.dim() != 4 or tensor.dtype != torch.float32:
            continue
        if tensor.device.type != "cpu" or not torch.backends.mkldnn.is_available():
            continue
        options = (padding, stride, dilation, groups)
        packed = reorder(tensor.detach().to_mkldnn(), *options, shape)
        name = f"packed_{node.name}"
        program.register_buffer(name, packed)
        with program.graph.inserting_before(node):
            arguments: tuple[Any, ...] = (x, program.graph.get_attr(name), bias, *options, "none", [], "")
            new = program.graph.call_function(torch.ops.mkldnn._convolution_pointwise.default, arguments)
            new = program.graph.call_function(torch.ops.aten.contiguous.default, (new,))
        node.replace_all_uses_with(new)
        program.graph.erase_node(node)
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
