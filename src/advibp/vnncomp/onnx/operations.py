"""The table of supported ONNX operators. Each entry adds the torch calls of one operator to a program."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from advibp.vnncomp.onnx.onnx_graph import Node, quoted
from advibp.vnncomp.onnx.torch_program import Operand, Program, Value

Lowering = Callable[..., Value]  # (program, node, *operands)

PRODUCT_OF_VALUES = "multiplies two values that depend on the input, which has no bounds; use constant factors."
WINDOW_IN_PADDING = "has windows that contain only padding; export it with less padding."


@dataclass(frozen=True)
class Operation:
    lower: Lowering
    attributes: frozenset[str]


OPERATIONS: dict[str, Operation] = {}


def operation(names: str, attributes: str = "") -> Callable[[Lowering], Lowering]:
    """Register a function for these operators. Nodes with attributes that are not listed are refused."""

    def register(lower: Lowering) -> Lowering:
        for name in names.split():
            OPERATIONS[name] = Operation(lower, frozenset(attributes.split()))
        return lower

    return register


def lower_node(program: Program, node: Node, operands: Sequence[Operand]) -> Value:
    """Add the calls of a node to the program and return the node's first result."""
    entry = OPERATIONS.get(node.op)
    if entry is None:
        node.refuse(f"is not a supported operator; supported are {', '.join(sorted(OPERATIONS))}.")
    unknown = sorted(node.attributes.keys() - entry.attributes)
    if unknown:
        node.refuse(f"has the attribute {quoted(unknown[0])}, which is not supported; export the network without it.")
    try:
        inspect.signature(entry.lower).bind(program, node, *operands)
    except TypeError:
        node.refuse(f"has {len(operands)} inputs, too many or too few; the file is damaged, export it again.")
    return entry.lower(program, node, *operands)


def dynamic(node: Node, operand: Operand) -> Value:
    """Return an operand that must depend on the network's input."""
    if not isinstance(operand, Value):
        node.refuse("needs an input that depends on the network's input, but it is constant or missing.")
    return operand


# Imported last, because these modules register their operators in the table above.
from advibp.vnncomp.onnx import affine, pointwise, pooling, shaping  # noqa: E402, F401
