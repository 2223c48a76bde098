"""A network of ours as an ONNX file, which another program has run before it is written."""

from __future__ import annotations

import copy
import io
import os
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.execution.own_copy import copied, run_on_copy
from advibp.storage.checkpoint import write_atomically
from advibp.vnncomp.onnx.onnx_limits import MOST_BYTES

if TYPE_CHECKING:
    from onnx import ModelProto

INPUT, OUTPUT, BATCH = "input", "output", "batch"
TOLERANCE = 1e-5  # of the largest output


@dataclass(frozen=True)
class Saved:
    """What was written: how often each operator occurs, and how far onnxruntime's outputs are from the network's, as a
    share of the largest."""

    path: Path
    operators: dict[str, int]
    difference: float


def save(net: nn.Module, path: str | os.PathLike[str], input_shape: Sequence[int]) -> Saved:
    """Write a network for inputs (B, *input_shape), in evaluation mode, weights inside; B is open.

    Before the file is there, onnxruntime runs it on random inputs in [0, 1] and must agree with the network.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise UserError(f"the folder {path.parent} does not exist; make it first.")
    own = copy.deepcopy(net).cpu().eval()  # the mode and the place of the user's network are theirs
    like = next(own.parameters(), torch.empty(0))
    shape = tuple(input_shape)
    generator = torch.Generator().manual_seed(0)
    batches = [torch.rand(images, *shape, dtype=like.dtype, generator=generator) for images in (3, 1)]
    model = _exported(own, batches[0])
    content = model.SerializeToString()
    if len(content) > MOST_BYTES:
        raise UserError(f"the network has {len(content):,} bytes, and an ONNX file holds up to {MOST_BYTES:,}.")
    difference = _difference(own, content, batches)
    if not difference <= TOLERANCE:
        raise UserError(
            f"onnxruntime computes outputs from the exported network that differ by {difference:.1e} of the largest "
            f"(at most {TOLERANCE:g} was expected), so {path} was not written; use plain torch layers."
        )
    write_atomically(path, content)
    return Saved(path, dict(Counter(node.op_type for node in model.graph.node)), difference)


def _exported(net: nn.Module, x: Tensor) -> ModelProto:
    """By the older exporter first: it writes a layer as one operator of its name, where the newer takes some apart.
    What it can't do, or where torch has it no more, the newer may."""
    try:
        import onnx
        import onnxruntime  # noqa: F401
    except ImportError:
        raise UserError("ONNX files need packages that are missing; pip install 'advibp[onnx]'.") from None
    failed: list[Exception] = []
    for export in (_by_tracing, _by_dynamo):
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                model = onnx.ModelProto.FromString(export(net, copied(x)))
        except Exception as error:  # a network of one's own, and torch's exporter, may raise anything
            failed.append(error)
        else:
            return _tidied(model)
    first = (str(failed[0]).strip().splitlines() or [type(failed[0]).__name__])[0]
    raise UserError(f"torch can't export the network ({first}); use plain torch layers in its forward.") from failed[0]


def _tidied(model: ModelProto) -> ModelProto:
    """Weights that are equal were made one, and copies of it: each use names it. Nor need anyone know where in whose
    source code a layer was."""
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
    """The largest over all outputs, as a share of the largest output; NaN if there is any."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = torch.get_num_threads()
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        found = [torch.from_numpy(session.run([OUTPUT], {INPUT: x.numpy()})[0]) for x in batches]
    except Exception as error:  # its errors have no class of their own
        first = str(error).strip().splitlines()[0]
        raise UserError(f"onnxruntime can't run the exported network ({first}); save net.float() instead.") from error
    with torch.no_grad():
        wanted = [run_on_copy(net, x) for x in batches]
    if any(ours.shape != theirs.shape for ours, theirs in zip(wanted, found, strict=True)):
        return float("nan")
    largest = max(float(output.abs().max()) for output in wanted)
    return max(float((a - b).abs().max()) for a, b in zip(wanted, found, strict=True)) / max(largest, 1e-30)
