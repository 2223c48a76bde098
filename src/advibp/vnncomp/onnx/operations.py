"""The table of operations: what each does to a value that depends on the input. The rows are in the modules below."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advibp.vnncomp.onnx.onnx_graph import Node, shown
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

Lowering = Callable[..., Value]  # (program, node, *operands)


@dataclass(frozen=True)
class Operation:
    lower: Lowering
    attributes: frozenset[str]


OPERATIONS: dict[str, Operation] = {}


def operation(names: str, attributes: str = "") -> Callable[[Lowering], Lowering]:
    """Register what these operations become. Attributes that are not named are refused: they would change something."""

    def register(lower: Lowering) -> Lowering:
        for name in names.split():
            OPERATIONS[name] = Operation(lower, frozenset(attributes.split()))
        return lower

    return register


def lowered(program: Program, node: Node, operands: Sequence[Operand]) -> Value:
    """The node's first result, by calls that are added to the program."""
    found = OPERATIONS.get(node.op)
    if found is None:
        node.refuse(f"is of a kind that is not read; those that are: {', '.join(sorted(OPERATIONS))}.")
    unknown = sorted(node.attributes.keys() - found.attributes)
    if unknown:
        node.refuse(f"has the attribute {shown(unknown[0])}, which is not known here; export it without.")
    try:
        inspect.signature(found.lower).bind(program, node, *operands)
    except TypeError:
        node.refuse(f"has {len(operands)} inputs, more or fewer than it may have; the file is damaged.")
    return found.lower(program, node, *operands)


def dynamic(node: Node, operand: Operand) -> Value:
    """The operand that has to be the one that depends on the input."""
    if not isinstance(operand, Value):
        node.refuse("takes its first input from the network's, but here it is constant or missing; export it again.")
    return operand


# Last: they register themselves here.
from advibp.vnncomp.onnx import affine, pointwise, pooling, shaping  # noqa: E402, F401
