"""From a file to a network: each node is computed if it is constant, and becomes torch calls if it is not."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from advibp.errors import UserError
from advibp.vnncomp.onnx.arranging import arranged
from advibp.vnncomp.onnx.folding import Folding
from advibp.vnncomp.onnx.onnx_file import read
from advibp.vnncomp.onnx.onnx_graph import Graph, Node, shown
from advibp.vnncomp.onnx.onnx_limits import MOST_AXES
from advibp.vnncomp.onnx.onnx_net import OnnxNet
from advibp.vnncomp.onnx.operations import lowered
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value


def load(path: str | os.PathLike[str]) -> OnnxNet:
    """The network of an ONNX file with one input and one output; its outputs are flattened to (B, K).

    What the file says of a batch of 1 is done to each image of a batch. It may be a stranger's: it runs no code, and
    whatever is wrong with it is a UserError.
    """
    path = Path(path)
    try:
        return _net(read(path))
    except UserError as error:
        raise UserError(f"{path}: {error}") from error.__cause__
    except Exception as error:  # there are more ways to damage a file than we know
        raise UserError(f"{path}: the file can't be read ({_first_line(error)}); export it again.") from error


def _net(graph: Graph) -> OnnxNet:
    program = Program(graph.shape, graph.dtype)
    output = _output(graph, program)
    net = OnnxNet(
        arranged(program.calls, output.number),
        output,
        input_name=graph.input,
        output_name=graph.output,
        file_input_shape=graph.shape,
    )
    try:
        with torch.no_grad():  # on numbers, too, before anyone relies on it
            net(torch.zeros(1, *net.input_shape, dtype=graph.dtype))
    except Exception as error:
        raise UserError(f"the network can't be run ({_first_line(error)}); export it again.") from error
    return net.eval()


def _output(graph: Graph, program: Program) -> Value:
    """Add the graph's nodes to the program; the value of its output, (B, K)."""
    values: dict[str, Operand] = {**graph.constants, graph.input: program.input}
    folding, seconds = Folding(), dict[str, Node]()
    for node in graph.nodes:
        operands = [_operand(node, name, values, seconds) for name in node.inputs]
        made = _made(node, operands, program, folding)
        if not node.outputs or node.outputs[0] in values:
            node.refuse("has no output of its own; the file is damaged, export it again.")
        values[node.outputs[0]] = made
        seconds.update(dict.fromkeys(filter(None, node.outputs[1:]), node))
    last = Node("output", graph.output)
    output = _operand(last, graph.output, values, seconds)
    if not isinstance(output, Value):
        raise UserError("the output does not depend on the input; export the network again.")
    return program.reshape(last, output, (1, torch.Size(output.rows).numel()))


def _operand(node: Node, name: str, values: dict[str, Operand], seconds: dict[str, Node]) -> Operand:
    if name in seconds:
        node.refuse(f"uses {shown(name)}, a second output of {seconds[name]}, which is not read; export it without.")
    if name and name not in values:
        node.refuse(f"uses {shown(name)}, which nothing before it makes; the file is damaged, export it again.")
    return values[name] if name else None


def _made(node: Node, operands: list[Operand], program: Program, folding: Folding) -> Operand:
    while operands and operands[-1] is None:
        operands.pop()
    constant = not any(isinstance(operand, Value) for operand in operands)
    try:
        if node.op in ("Shape", "Size") or (constant and folding.knows(node)):
            made: Operand = folding.run(node, operands)
        else:
            made = lowered(program, node, operands)
    except UserError:
        raise
    except Exception as error:  # torch has many ways to say that shapes or types do not fit
        raise UserError(f"{node} can't be computed ({_first_line(error)}); export it again.") from error
    if len(made.shape if made is not None else ()) > MOST_AXES:
        node.refuse(f"makes more than {MOST_AXES} axes; export it with fewer.")
    return made


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
