"""Build ONNX models by hand, and run them with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

KINDS = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE}


def node(op: str, inputs: str, output: str, **attributes: Any) -> onnx.NodeProto:
    """Return a node; inputs are names separated by spaces, "-" for an omitted one."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(op, names, output.split(), name=f"{op}_{output.split()[0]}", **attributes)


def model(
    shape: Sequence[int | str],
    nodes: Sequence[onnx.NodeProto],
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    dtype: str = "float32",
    listed: bool = False,
) -> onnx.ModelProto:
    """Return a model from "x" to "y". Lists become integer constants; `listed` adds constants to the inputs."""
    tensors = {name: _array(value, dtype) for name, value in (constants or {}).items()}
    inputs = [helper.make_tensor_value_info("x", KINDS[dtype], shape)]
    if listed:
        kinds = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in tensors.items()}
        inputs += [helper.make_tensor_value_info(name, kinds[name], tensors[name].shape) for name in tensors]
    graph = helper.make_graph(
        list(nodes),
        "graph",
        inputs,
        [helper.make_tensor_value_info("y", KINDS[dtype], None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _array(value: Any, dtype: str) -> np.ndarray:
    if isinstance(value, list):
        return np.array(value, np.int64)
    array = np.asarray(value)
    return array.astype(dtype) if array.dtype.kind == "f" else array


def write(folder: Path, made: onnx.ModelProto) -> Path:
    path = folder / "net.onnx"
    path.write_bytes(made.SerializeToString())
    return path


def weights(*shape: int, seed: int = 0, scale: float = 0.5) -> np.ndarray:
    return np.random.RandomState(seed + sum(shape)).uniform(-scale, scale, shape)


def by_onnxruntime(path: Path, x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the outputs (B, K) of images x (B, ...), run one by one in the file's shape."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    rows = [session.run(None, {session.get_inputs()[0].name: image.reshape(*shape).numpy()})[0] for image in x]
    return torch.stack([torch.from_numpy(np.asarray(row)).reshape(-1) for row in rows])


def close(found: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> bool:
    """Return whether tensors are equal up to `tolerance` times the largest number."""
    return found.shape == wanted.shape and bool((found - wanted).abs().max() <= tolerance * wanted.abs().max() + 1e-12)
