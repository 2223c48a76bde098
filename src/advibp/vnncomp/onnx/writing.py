"""Save a network as an ONNX file after onnxruntime has reproduced its outputs."""

from __future__ import annotations

import copy
import io
import json
import os
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.execution.own_copy import copied, run_on_copy
from advibp.storage.checkpoint import write_atomically
from advibp.vnncomp.onnx.onnx_file import PREFIX
from advibp.vnncomp.onnx.onnx_limits import MAX_BYTES, MISSING_PACKAGES

if TYPE_CHECKING:
    from onnx import ModelProto

INPUT, OUTPUT, BATCH = "input", "output", "batch"
TOLERANCE = 1e-5  # relative to the largest output


@dataclass(frozen=True)
class Saved:
    """Result of `advibp.vnncomp.save_onnx`.

    Attributes:
        path: the file.
        operators: how often each ONNX operator occurs, by name.
        difference: largest difference between the outputs of onnxruntime and of the network, relative to the largest
            output.

    Examples:
        >>> import torch, advibp
        >>> advibp.vnncomp.save_onnx(torch.nn.Linear(2, 3), "first.onnx", (2,)).operators
        {'Gemm': 1}
    """

    path: Path
    operators: dict[str, int]
    difference: float


def save(
    net: nn.Module,
    path: str | os.PathLike[str],
    input_shape: Sequence[int],
    *,
    metadata: Mapping[str, Any] | None = None,
) -> Saved:
    """Save a network as an ONNX file. Also: `advibp.vnncomp.save_onnx`.

    The network is exported in evaluation mode, with its weights inside the file and a dynamic batch size. Before the
    file is written, onnxruntime runs it on random inputs in [0, 1] and must agree with the network. Needs the extra
    `advibp[onnx]`.

    Args:
        net: any module (B, *input_shape) -> (B, K). It is not changed.
        path: the file to write.
        input_shape: shape of one input, without the batch axis.
        metadata: facts for other programs, such as class_names and eps. They are written to metadata_props of the file
            with the prefix "advibp.", each as JSON. `metadata_of` reads them.

    Raises:
        UserError: torch can't export the network, or the outputs of onnxruntime differ.

    Examples:
        ```python
        saved = advibp.vnncomp.save_onnx(net, "first.onnx", (1, 28, 28))
        print(saved.operators, saved.difference)
        ```
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist; create it first.")
    net_copy = copy.deepcopy(net).cpu().eval()  # mode and device of the user's network stay as they are
    like = next(net_copy.parameters(), torch.empty(0))
    shape = tuple(input_shape)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(images, *shape, dtype=like.dtype, generator=generator) for images in (3, 1)]
    model = _export(net_copy, batches[0])
    for name, value in (metadata or {}).items():
        model.metadata_props.add(key=f"{PREFIX}{name}", value=json.dumps(value))
    content = model.SerializeToString()
    if len(content) > MAX_BYTES:
        raise UserError(f"the network has {len(content):,} bytes; an ONNX file can have at most {MAX_BYTES:,}.")
    difference = _difference(net_copy, content, batches)
    if not difference <= TOLERANCE:
        raise UserError(
            f"{path} was not written: outputs of onnxruntime and of the network differ by {difference:.1e} of the "
            f"largest output (limit: {TOLERANCE:g}); use standard torch layers."
        )
    write_atomically(path, content)
    return Saved(path, dict(Counter(node.op_type for node in model.graph.node)), difference)


def _export(net: nn.Module, x: Tensor) -> ModelProto:
    """Export with torch's older exporter, which writes one operator per layer, or with the newer one if that fails."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        raise UserError(MISSING_PACKAGES) from None
    errors: list[Exception] = []
    for export in (_by_tracing, _by_dynamo):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                model = onnx.ModelProto.FromString(export(net, copied(x)))
        except Exception as error:  # user code and torch's exporters may raise anything
            errors.append(error)
        else:
            return _clean(model)
    first = (str(errors[0]).strip().splitlines() or [type(errors[0]).__name__])[0]
    raise UserError(f"torch can't export the network ({first}); use standard torch layers in forward.") from errors[0]


def _clean(model: ModelProto) -> ModelProto:
    """Replace Identity copies of weights by the weights, and remove references to the user's source code."""
    graph = model.graph
    weights = {tensor.name for tensor in graph.initializer}
    copies = {n.output[0]: n.input[0] for n in graph.node if n.op_type == "Identity" and n.input[0] in weights}
    nodes = [node for node in graph.node if node.output[0] not in copies]
    for node in nodes:
        node.input[:] = [copies.get(name, name) for name in node.input]
        del node.metadata_props[:]
        node.doc_string = ""
    del graph.node[:]
    graph.node.extend(nodes)
    return model


def _by_tracing(net: nn.Module, x: Tensor) -> bytes:
    file: Any = io.BytesIO()
    axes = {INPUT: {0: BATCH}, OUTPUT: {0: BATCH}}
    torch.onnx.export(net, (x,), file, dynamo=False, input_names=[INPUT], output_names=[OUTPUT], dynamic_axes=axes)
    content: bytes = file.getvalue()
    return content


def _by_dynamo(net: nn.Module, x: Tensor) -> bytes:
    batch = torch.export.Dim(BATCH)
    program: Any = torch.onnx.export(
        net, (x,), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], dynamic_shapes=({0: batch},), verbose=False
    )
    content: bytes = program.model_proto.SerializeToString()
    return content


def _difference(net: nn.Module, content: bytes, batches: Sequence[Tensor]) -> float:
    """Return the largest difference of outputs, relative to the largest output; NaN if an output is NaN."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        actual = [torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0]) for x in batches]
    except Exception as error:  # onnxruntime has no common error class
        first = str(error).strip().splitlines()[0]
        raise UserError(f"onnxruntime can't run the exported network ({first}); save net.float() instead.") from error
    with torch.no_grad():
        expected = [run_on_copy(net, x) for x in batches]
    if any(a.shape != b.shape for a, b in zip(expected, actual, strict=True)):
        return float("nan")
    largest = max(float(output.abs().max()) for output in expected)
    return max(float((a - b).abs().max()) for a, b in zip(expected, actual, strict=True)) / max(largest, 1e-30)
