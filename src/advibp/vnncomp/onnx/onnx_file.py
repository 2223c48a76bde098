"""From an ONNX file to a `Graph`. The one module that knows the format; whatever is wrong with a file is told here."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.vnncomp.onnx.onnx_graph import Graph, Node, Shape, shown
from advibp.vnncomp.onnx.onnx_limits import MOST_AXES, MOST_BYTES, MOST_ELEMENTS, MOST_LISTED, MOST_NODES

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

#: Types of numbers by their code in the format, as numpy names them.
TYPES = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
_HALF = {10, 16}  # float16, bfloat16
_OLDEST = 7  # before this opset, operators broadcast otherwise


def read(path: Path) -> Graph:
    """The graph of a file with one input and one output."""
    model = _parsed(path)
    return _graph(model, _External(path.parent))


def _parsed(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError:
        raise UserError("ONNX files need packages that are missing; pip install 'advibp[onnx]'.") from None
    if not path.is_file():
        raise UserError("there is no such file; give the path of an ONNX file.")
    if path.stat().st_size > MOST_BYTES:
        raise UserError(f"the file has more than {MOST_BYTES:,} bytes, which no network read here has.")
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"the file can't be read ({error.strerror}).") from None
    except Exception:  # protobuf's own errors have had several homes
        raise UserError("this is no ONNX file, or a damaged one; export it again.") from None
    if not model.HasField("graph"):
        raise UserError("this is no ONNX file: it holds no graph; export it again.")
    return model


def _graph(model: ModelProto, external: _External) -> Graph:
    graph, opset = model.graph, _opset(model)
    if len(graph.node) > MOST_NODES:
        raise UserError(f"the graph has {len(graph.node):,} nodes, and at most {MOST_NODES:,} are read.")
    if graph.sparse_initializer:
        raise UserError("the file holds sparse weights, which are not read; export them as dense ones.")
    constants = {_text(tensor.name): _tensor(tensor, external) for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]  # old files list weights as inputs
    name, shape, dtype = _input(_only(inputs, "input"))
    return Graph(
        nodes=tuple(_node(node, opset, external) for node in graph.node),
        constants=constants,
        input=name,
        shape=shape,
        dtype=dtype,
        output=_text(_only(graph.output, "output").name),
    )


def _opset(model: ModelProto) -> int:
    found = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(found) != 1 or found[0] < _OLDEST:
        raise UserError(
            f"the file is of opset {found[0] if found else 'unknown'}, and opset {_OLDEST} or later is read; convert "
            "it by onnx.version_converter."
        )
    return found[0]


def _only(values: Iterable[ValueInfoProto], kind: str) -> ValueInfoProto:
    found = list(values)
    if len(found) != 1:
        names = ", ".join(shown(_text(value.name)) for value in found[:10]) or "none"
        raise UserError(f"the network has {len(found)} {kind}s ({names}), and one was expected; export it with one.")
    return found[0]


def _input(value: ValueInfoProto) -> tuple[str, Shape, torch.dtype]:
    kind = value.type.tensor_type
    if kind.elem_type not in (1, 11):
        given = "float16" if kind.elem_type in _HALF else TYPES.get(kind.elem_type, "no tensor")
        raise UserError(f"the input is of {given}, and float32 or float64 was expected; convert the network first.")
    if not kind.HasField("shape") or not 1 <= len(kind.shape.dim) <= MOST_AXES:
        raise UserError("the input has no shape; export the network with one, such as (batch, 1, 28, 28).")
    sizes = [axis.dim_value if axis.HasField("dim_value") and axis.dim_value > 0 else None for axis in kind.shape.dim]
    if None in sizes[1:]:
        told = ", ".join("?" if size is None else str(size) for size in sizes)
        raise UserError(f"the input's shape is ({told}), where only the first axis may be open; export it with sizes.")
    shape = tuple(size or 1 for size in sizes)
    _check_size(shape, "the input")
    return _text(value.name), shape, torch.float32 if kind.elem_type == 1 else torch.float64


def _node(node: NodeProto, opset: int, external: _External) -> Node:
    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    inputs, outputs = tuple(map(_text, node.input)), tuple(map(_text, node.output))
    attributes = {_text(attribute.name): _attribute(attribute, external) for attribute in node.attribute}
    return Node(_text(op), _text(node.name) or "".join(outputs[:1]), inputs, outputs, attributes, opset)


def _text(name: str) -> str:
    """A name, which protobuf gives as bytes where it is no text."""
    if not isinstance(name, str):
        raise UserError("the file holds a name that is no text; it is damaged, export it again.")
    return name


def _attribute(attribute: AttributeProto, external: _External) -> Any:
    """A number, a text, a tensor or a tuple; what no operation here has is kept, and refused when it is asked for."""
    kinds = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}
    value = getattr(attribute, kinds[attribute.type]) if attribute.type in kinds else attribute
    if attribute.type == 3:
        return value.decode(errors="replace")
    if attribute.type == 4:
        return _tensor(value, external)
    if attribute.type in (6, 7) and len(value) > MOST_LISTED:
        raise UserError(f"attribute {shown(attribute.name)} lists {len(value):,} numbers; the file is damaged.")
    return tuple(value) if attribute.type in (6, 7) else value


def _tensor(tensor: TensorProto, external: _External) -> Tensor:
    name = f"constant {shown(_text(tensor.name))}"
    if tensor.data_type not in TYPES:
        given = "float16" if tensor.data_type in _HALF else f"type {tensor.data_type}"
        raise UserError(f"{name} is of {given}, and float32, float64 or integers were expected; convert it first.")
    shape = tuple(tensor.dims)
    _check_size(shape, name)
    kind = np.dtype(TYPES[tensor.data_type])
    size = math.prod(shape) * kind.itemsize
    try:
        if tensor.data_location == tensor.EXTERNAL:
            array = np.frombuffer(external.read(tensor, size, name), kind.newbyteorder("<"))
        elif tensor.HasField("raw_data"):
            array = np.frombuffer(tensor.raw_data, kind.newbyteorder("<"))
        else:
            listed = _listed(tensor)
            array = np.array(listed if len(listed) == math.prod(shape) else (), kind)
        return torch.from_numpy(array.astype(kind).reshape(shape))
    except UserError:
        raise
    except (ValueError, OverflowError):
        raise UserError(f"{name} does not hold what its shape {shape} promises; export the network again.") from None


def _listed(tensor: TensorProto) -> Any:
    """Numbers that are kept one by one, in the field for their type."""
    fields = {1: tensor.float_data, 7: tensor.int64_data, 11: tensor.double_data}
    return fields.get(tensor.data_type, tensor.int32_data)


def _check_size(shape: Shape, name: str) -> None:
    if len(shape) > MOST_AXES or any(size < 0 for size in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise UserError(f"{name} has the shape {shape[:MOST_AXES]}; up to {MOST_ELEMENTS:,} numbers are read.")


class _External:
    """Weights that are kept in files of their own, which must lie in the folder of the ONNX file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._left = folder.resolve(), MOST_BYTES

    def read(self, tensor: TensorProto, size: int, name: str) -> bytes:
        entries = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
        location, offset = entries.get("location", ""), entries.get("offset", "0")
        try:
            path = (self._folder / location).resolve()
            usable = path.is_relative_to(self._folder) and path.is_file() and offset.isdecimal()
        except (OSError, ValueError):  # a name that is too long, or has a zero in it
            usable = False
        if not usable:
            raise UserError(
                f"{name} is kept in {shown(location)}, which is no file in the folder of the ONNX file; put it there, "
                "or export the weights inside."
            )
        if int(offset[:19]) + size > path.stat().st_size:
            raise UserError(f"{name} lies beyond the end of {shown(location)}; export the network again.")
        self._left -= size
        if self._left < 0:
            raise UserError(f"the weights beside the file have more than {MOST_BYTES:,} bytes; they are not read.")
        with path.open("rb") as file:
            file.seek(int(offset))
            return file.read(size)
