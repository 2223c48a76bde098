"""Read an ONNX file into a `Graph`. This is the only module that uses the protobuf format."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.vnncomp.onnx.onnx_graph import Graph, Node, Shape, quoted
from advibp.vnncomp.onnx.onnx_limits import (
    MAX_AXES,
    MAX_BYTES,
    MAX_ELEMENTS,
    MAX_LISTED,
    MAX_NODES,
    MISSING_PACKAGES,
)

if TYPE_CHECKING:
    from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, ValueInfoProto

#: Numpy names of the supported element types, by their code in the ONNX format.
TYPES = {1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 11: "float64"}
_HALF = {10, 16}  # float16, bfloat16
#: Start of the keys that advibp writes to metadata_props.
PREFIX = "advibp."
_OLDEST_OPSET = 7  # earlier opsets have other broadcasting rules


def read(path: Path) -> Graph:
    """Return the graph of a file with one input and one output."""
    model = _parsed(path)
    return _graph(model, _External(path.parent))


def metadata_of(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the facts that `advibp export` has written to an ONNX file. Also: `advibp.vnncomp.onnx_metadata`.

    Args:
        path: the file.

    Returns:
        The facts by name: class_names, eps, input_range, arithmetic, ...; {} for a file of another program.

    Raises:
        UserError: the file is not an ONNX file, or a fact is not valid JSON.

    Examples:
        >>> import torch, advibp
        >>> _ = advibp.vnncomp.save_onnx(torch.nn.Linear(2, 3), "first.onnx", (2,), metadata={"eps": 0.1})
        >>> advibp.vnncomp.onnx_metadata("first.onnx")
        {'eps': 0.1}
    """
    try:
        entries = _parsed(Path(path)).metadata_props
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    try:
        return {e.key.removeprefix(PREFIX): json.loads(e.value) for e in entries if e.key.startswith(PREFIX)}
    except (ValueError, RecursionError):
        raise UserError(f"{path} has metadata that is not valid JSON; export the network again.") from None


def _parsed(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError:
        raise UserError(MISSING_PACKAGES) from None
    if not path.is_file():
        raise UserError("no such file; give the path of an ONNX file.")
    if path.stat().st_size > MAX_BYTES:
        raise UserError(f"the file is larger than the limit of {MAX_BYTES:,} bytes; use a smaller network.")
    try:
        model = onnx.ModelProto.FromString(path.read_bytes())
    except OSError as error:
        raise UserError(f"the file can't be read ({error.strerror}).") from None
    except Exception:  # the class of protobuf's errors depends on its version
        raise UserError("this is not an ONNX file, or it is damaged; export the network again.") from None
    if not model.HasField("graph"):
        raise UserError("this is not an ONNX file: it has no graph; export the network again.")
    return model


def _graph(model: ModelProto, external: _External) -> Graph:
    graph, opset = model.graph, _opset(model)
    if len(graph.node) > MAX_NODES:
        raise UserError(f"the graph has {len(graph.node):,} nodes; at most {MAX_NODES:,} are supported.")
    if graph.sparse_initializer:
        raise UserError("the file has sparse weights, which are not supported; export dense weights.")
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
    versions = [entry.version for entry in model.opset_import if entry.domain in ("", "ai.onnx")]
    if len(versions) != 1 or versions[0] < _OLDEST_OPSET:
        raise UserError(
            f"the file has opset {versions[0] if versions else 'unknown'}, but opset {_OLDEST_OPSET} or later is "
            "needed; convert it with onnx.version_converter."
        )
    return versions[0]


def _only(values: Iterable[ValueInfoProto], kind: str) -> ValueInfoProto:
    candidates = list(values)
    if len(candidates) != 1:
        names = ", ".join(quoted(_text(value.name)) for value in candidates[:10]) or "none"
        raise UserError(f"the network has {len(candidates)} {kind}s ({names}); export it with exactly one.")
    return candidates[0]


def _input(value: ValueInfoProto) -> tuple[str, Shape, torch.dtype]:
    kind = value.type.tensor_type
    if kind.elem_type not in (1, 11):
        name = "float16" if kind.elem_type in _HALF else TYPES.get(kind.elem_type, "unknown")
        raise UserError(f"the input has type {name}; convert the network to float32 or float64.")
    if not kind.HasField("shape") or not 1 <= len(kind.shape.dim) <= MAX_AXES:
        raise UserError("the input has no shape; export the network with one, such as (batch, 1, 28, 28).")
    sizes = [axis.dim_value if axis.HasField("dim_value") and axis.dim_value > 0 else None for axis in kind.shape.dim]
    if None in sizes[1:]:
        text = ", ".join("?" if size is None else str(size) for size in sizes)
        raise UserError(f"the input has shape ({text}), but only the first axis may be dynamic; export fixed sizes.")
    shape = tuple(size or 1 for size in sizes)
    _check_size(shape, "the input")
    return _text(value.name), shape, torch.float32 if kind.elem_type == 1 else torch.float64


def _node(node: NodeProto, opset: int, external: _External) -> Node:
    op = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    inputs, outputs = tuple(map(_text, node.input)), tuple(map(_text, node.output))
    attributes = {_text(attribute.name): _attribute(attribute, external) for attribute in node.attribute}
    return Node(_text(op), _text(node.name) or "".join(outputs[:1]), inputs, outputs, attributes, opset)


def _text(name: str) -> str:
    """Check that a name is valid text; protobuf returns bytes if it is not."""
    if not isinstance(name, str):
        raise UserError("the file has a name that is not valid text; it is damaged, export it again.")
    return name


def _attribute(attribute: AttributeProto, external: _External) -> Any:
    """Return a number, a string, a tensor or a tuple. Other types are returned as they are and refused when used."""
    kinds = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}
    value = getattr(attribute, kinds[attribute.type]) if attribute.type in kinds else attribute
    if attribute.type == 3:
        return value.decode(errors="replace")
    if attribute.type == 4:
        return _tensor(value, external)
    if attribute.type in (6, 7) and len(value) > MAX_LISTED:
        raise UserError(f"attribute {quoted(attribute.name)} has {len(value):,} numbers; the file is damaged.")
    return tuple(value) if attribute.type in (6, 7) else value


def _tensor(tensor: TensorProto, external: _External) -> Tensor:
    name = f"constant {quoted(_text(tensor.name))}"
    if tensor.data_type not in TYPES:
        kind_name = "float16" if tensor.data_type in _HALF else f"type {tensor.data_type}"
        raise UserError(f"{name} has {kind_name}; convert the network to float32 or float64.")
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
        raise UserError(f"{name} does not have the size of its shape {shape}; export the network again.") from None


def _listed(tensor: TensorProto) -> Any:
    """Return the numbers of a tensor that is stored as a list, from the field of its type."""
    fields = {1: tensor.float_data, 7: tensor.int64_data, 11: tensor.double_data}
    return fields.get(tensor.data_type, tensor.int32_data)


def _check_size(shape: Shape, name: str) -> None:
    if len(shape) > MAX_AXES or any(size < 0 for size in shape) or math.prod(shape) > MAX_ELEMENTS:
        raise UserError(f"{name} has shape {shape[:MAX_AXES]}; at most {MAX_ELEMENTS:,} elements are supported.")


class _External:
    """Reads weights from external files, which must be in the folder of the ONNX file."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._remaining = folder.resolve(), MAX_BYTES

    def read(self, tensor: TensorProto, size: int, name: str) -> bytes:
        entries = {_text(entry.key): _text(entry.value) for entry in tensor.external_data}
        location, offset = entries.get("location", ""), entries.get("offset", "0")
        try:
            path = (self._folder / location).resolve()
            usable = path.is_relative_to(self._folder) and path.is_file() and offset.isdecimal()
        except (OSError, ValueError):  # a name that is too long or contains a null byte
            usable = False
        if not usable:
            raise UserError(
                f"{name} is stored in {quoted(location)}, which is not a file in the folder of the ONNX file; copy it "
                "there, or export the network with its weights inside."
            )
        if int(offset[:19]) + size > path.stat().st_size:
            raise UserError(f"{name} is beyond the end of {quoted(location)}; export the network again.")
        self._remaining -= size
        if self._remaining < 0:
            raise UserError(f"the external weights are larger than the limit of {MAX_BYTES:,} bytes.")
        with path.open("rb") as file:
            file.seek(int(offset))
            return file.read(size)
