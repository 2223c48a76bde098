"""Networks whose input has no batch axis: W x for a vector or a column x."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from graphs import model, node, write

from advibp.vnncomp import Case, Property, decide, load_onnx


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1,), (1, 1), (3,), (3, 1)])
def test_products_from_the_left(shape: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    dice, end = np.random.default_rng(0), shape[1:]
    constants = {
        "a": dice.normal(size=(5, shape[0])),
        "b": dice.normal(size=(5, *end)),
        "c": dice.normal(size=(1, 5)),
        "d": dice.normal(size=(1, *end)),
    }
    nodes = [
        node("MatMul", "a x", "h"),
        node("Add", "h b", "i"),
        node("Relu", "i", "j"),
        node("MatMul", "c j", "k"),
        node("Add", "k d", "y"),
    ]
    path = write(tmp_path, model(shape, nodes, constants, dtype=dtype))
    net = load_onnx(path)
    assert len(net.input_shape) >= 1
    session = onnxruntime.InferenceSession(path.read_bytes())
    points = dice.normal(size=(7, *shape)).astype(dtype)
    expected = np.stack([session.run(None, {"x": point})[0].reshape(-1) for point in points])
    with torch.no_grad():
        outputs = net(torch.from_numpy(points).view(7, *net.input_shape))
    assert outputs.shape == (7, 1)
    assert np.allclose(outputs.numpy(), expected, rtol=1e-5, atol=1e-5)
    low, high = torch.full((shape[0],), -1.0).double(), torch.ones(shape[0]).double()
    for offset, verdict in ((1e3, "unsat"), (-1e3, "sat")):  # y + offset <= 0
        case = Case(low, high, [(torch.ones(1, 1).double(), torch.tensor([offset]).double())])
        assert decide(net, net.input_shape, Property(shape[0], 1, [case]), seconds=600).verdict == verdict
