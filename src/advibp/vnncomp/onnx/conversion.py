"""Convert an ONNX file to a module: constant nodes are computed now, all others become torch calls."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from advibp.errors import UserError
from advibp.vnncomp.onnx.folding import Folding
from advibp.vnncomp.onnx.onnx_file import read
from advibp.vnncomp.onnx.onnx_graph import Graph, Node, quoted
from advibp.vnncomp.onnx.onnx_limits import MAX_AXES
from advibp.vnncomp.onnx.onnx_net import OnnxNet
from advibp.vnncomp.onnx.operations import lower_node
from advibp.vnncomp.onnx.simplification import simplify_calls
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value, reshape


def load(path: str | os.PathLike[str]) -> OnnxNet:
    """Load a network from an ONNX file with one input and one output. Also: `advibp.vnncomp.load_onnx`.

    The file may come from an untrusted source: no code from the file is run. The network accepts any batch size,
    whatever batch size the file was exported with. Needs the extra `advibp[onnx]`.

    Args:
        path: an .onnx file. External weights must be in the same folder.

    Returns:
        The network in evaluation mode: (B, *net.input_shape) -> (B, K). Outputs are flattened to one axis.

    Raises:
        UserError: the file is missing or damaged, or uses an operator that is not supported.

    Examples:
        ```python
        net = advibp.vnncomp.load_onnx("first.onnx")
        logits = net(torch.rand(8, *net.input_shape))
        ```
    """
    path = Path(path)
    try:
        return _net(read(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error.__cause__
    except Exception as error:  # a damaged file can fail in many ways
        raise UserError(f"{path}: the file can't be read ({_first_line(error)}); export it again.") from error


def _net(graph: Graph) -> OnnxNet:
    # An input of one number without a batch axis gets one, so that a batch of inputs has two axes.
    program = Program((1, 1) if graph.shape == (1,) else graph.shape, graph.dtype)
    output = _output(graph, program)
    net = OnnxNet(
        simplify_calls(program.calls, output.number),
        output,
        input_name=graph.input,
        output_name=graph.output,
        file_input_shape=graph.shape,
        input_shape=program.input.item_shape,
    )
    try:
        with torch.no_grad():  # so far the calls were tried on the meta device only
            net(torch.zeros(1, *net.input_shape, dtype=graph.dtype))
    except Exception as error:
        raise UserError(f"the network can't be run ({_first_line(error)}); export it again.") from error
    return net.eval()


def _output(graph: Graph, program: Program) -> Value:
    """Add all nodes to the program and return the value of the output, (B, K)."""
    start = program.input
    if graph.shape == (1,):
        start = program.call(Node("input", graph.input), reshape, start, shape=(1,), item_shape=())
    values: dict[str, Operand] = {**graph.constants, graph.input: start}
    folding, extra_outputs = Folding(), dict[str, Node]()
    for node in graph.nodes:
        operands = [_operand(node, name, values, extra_outputs) for name in node.inputs]
        result = _convert(node, operands, program, folding)
        if not node.outputs or node.outputs[0] in values:
            node.refuse("has no output, or one with the name of another value; export the network again.")
        values[node.outputs[0]] = result
        extra_outputs.update(dict.fromkeys(filter(None, node.outputs[1:]), node))
    last = Node("output", graph.output)
    output = _operand(last, graph.output, values, extra_outputs)
    if not isinstance(output, Value):
        raise UserError("the output does not depend on the input; export the network again.")
    return program.reshape(last, output, (1, torch.Size(output.item_shape).numel()))


def _operand(node: Node, name: str, values: dict[str, Operand], extra_outputs: dict[str, Node]) -> Operand:
    """Return the value of one input of a node; None if the input is omitted."""
    if name in extra_outputs:
        node.refuse(
            f"uses {quoted(name)}, the second output of {extra_outputs[name]}; only first outputs are supported."
        )
    if name and name not in values:
        node.refuse(f"uses {quoted(name)}, which no earlier node computes; the file is damaged, export it again.")
    return values[name] if name else None


def _convert(node: Node, operands: list[Operand], program: Program, folding: Folding) -> Operand:
    """Compute a constant node, or add the calls of any other node to the program."""
    while operands and operands[-1] is None:
        operands.pop()
    constant = not any(isinstance(operand, Value) for operand in operands)
    try:
        if node.op in ("Shape", "Size") or (constant and folding.supports(node)):
            result: Operand = folding.run(node, operands)
        else:
            result = lower_node(program, node, operands)
    except UserError:
        raise
    except Exception as error:  # torch raises various types if shapes or dtypes do not match
        raise UserError(f"{node} can't be computed ({_first_line(error)}); export the network again.") from error
    if len(result.shape if result is not None else ()) > MAX_AXES:
        node.refuse(f"has a result with more than {MAX_AXES} axes; export the network with fewer.")
    return result


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
