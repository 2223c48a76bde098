"""Every operator that is read, against onnxruntime; on batches; and on sets, which must hold what their points give."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from graphs import by_onnxruntime, close, model, node, weights, write
from hypothesis import given, settings
from hypothesis import strategies as st

import advibp.vnncomp.onnx
from advibp import Box, UserError
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.zonotope import Zonotope

torch.set_num_threads(1)


@dataclass
class Case:
    shape: Sequence[int | str]
    nodes: Sequence[onnx.NodeProto]
    constants: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    linear: bool = True  # whether there are linear bounds of it


def one(op: str, shape: Sequence[int | str], inputs: str = "x", opset: int = 17, **rest: Any) -> Case:
    """Return a case with one node. Keywords that name an input are constants, all others are attributes."""
    constants = {name: rest.pop(name) for name in inputs.split() if name in rest}
    linear = rest.pop("linear", True)
    return Case(shape, [node(op, inputs, "y", **rest)], constants, opset, linear)


IMAGE, LINE = (1, 2, 6, 5), (1, 2, 9)
W, W1, B = weights(4, 2, 3, 3), weights(4, 2, 3), weights(4)
BN = {name: weights(2, seed=i) + (1.5 if name == "v" else 0) for i, name in enumerate("sbmv")}

CASES = {
    "conv": one("Conv", IMAGE, "x w", w=W),
    "conv bias, stride, pads": one("Conv", IMAGE, "x w b", w=W, b=B, strides=[2, 1], pads=[1, 1, 1, 1]),
    "conv uneven pads": one("Conv", IMAGE, "x w b", w=W, b=B, pads=[0, 1, 2, 0]),
    "conv dilations": one("Conv", IMAGE, "x w b", w=W, b=B, dilations=[2, 1], kernel_shape=[3, 3]),
    "conv groups": one("Conv", IMAGE, "x w", w=weights(4, 1, 3, 2), group=2),
    "conv same upper": one("Conv", IMAGE, "x w", w=weights(4, 2, 2, 3), auto_pad="SAME_UPPER", strides=[2, 2]),
    "conv same, a step past its window": one(
        "Conv", IMAGE, "x w", w=weights(4, 2, 1, 1), auto_pad="SAME_UPPER", strides=[2, 2]
    ),
    "conv same lower": one("Conv", IMAGE, "x w", w=weights(4, 2, 2, 4), auto_pad="SAME_LOWER"),
    "conv valid": one("Conv", IMAGE, "x w", w=W, auto_pad="VALID"),
    "conv1d": one("Conv", LINE, "x w b", w=W1, b=B, strides=[2], pads=[1, 2], dilations=[2]),
    "gemm": one("Gemm", (1, 6), "x w c", w=weights(6, 4), c=weights(4)),
    "gemm all options": one("Gemm", (1, 6), "x w c", w=weights(4, 6), c=weights(1, 4), alpha=0.5, beta=2.0, transB=1),
    "gemm one bias": one("Gemm", (1, 6), "x w c", w=weights(6, 4), c=weights(1)),
    "gemm no bias": one("Gemm", ("N", 6), "x w", w=weights(6, 4)),
    "matmul": one("MatMul", (1, 6), "x w", w=weights(6, 4)),
    "matmul deep": one("MatMul", (1, 3, 6), "x w", w=weights(6, 4)),
    "matmul vector": one("MatMul", (1, 6), "x w", w=weights(6)),
    "matmul leading ones": one("MatMul", (1, 3, 6), "x w", w=weights(1, 6, 4)),
    "matmul from the left": one("MatMul", (1, 6, 3), "w x", w=weights(4, 6)),
    "matmul of a vector": one("MatMul", (6,), "x w", w=weights(6, 4)),
    "matmul on a vector": one("MatMul", (6,), "w x", w=weights(4, 6)),
    "matmul column": one("MatMul", (6, 1), "w x", w=weights(4, 6)),
    "matmul to a row": one("MatMul", (6, 3), "w x", w=weights(1, 6)),
    "matmul and add": Case((1, 6), [node("MatMul", "x w", "m"), node("Add", "b m", "y")], {"w": weights(6, 4), "b": B}),
    "add": one("Add", (1, 2, 3), "x c", c=weights(2, 3)),
    "add leading one": one("Add", (1, 2, 3), "x c", c=weights(1, 2, 1)),
    "add more axes": one("Add", (1, 3), "c x", c=weights(1, 1, 3)),
    "add wider": one("Add", (1, 1, 3), "c x", c=weights(4, 1)),
    "add no batch axis": one("Add", (4, 3), "x c", c=weights(2, 4, 3)),
    "sub": one("Sub", (1, 3), "x c", c=weights(3)),
    "sub from": one("Sub", (1, 3), "c x", c=weights(3)),
    "mul": one("Mul", (1, 2, 3), "x c", c=weights(2, 1)),
    "mul scalar": one("Mul", (1, 3), "c x", c=weights()),
    "div": one("Div", (1, 3), "x c", c=weights(3) + 2),
    "neg": one("Neg", (1, 3)),
    "relu": one("Relu", (1, 3)),
    "relu on a vector": one("Relu", (3,)),
    "leaky": one("LeakyRelu", (1, 3), alpha=0.2),
    "leaky default": one("LeakyRelu", (1, 3)),
    "sigmoid": one("Sigmoid", (1, 3)),
    "tanh": one("Tanh", (1, 3)),
    "clip": one("Clip", (1, 5), "x l h", l=weights() * 0 - 0.2, h=weights() * 0 + 0.3, linear=False),
    "clip attributes": one("Clip", (1, 5), opset=7, min=-0.25, max=0.25, linear=False),
    "clip below": one("Clip", (1, 5), "x - h", h=weights() * 0 + 0.3, linear=False),
    "clip as relu": one("Clip", (1, 5), "x l", l=weights() * 0),
    "flatten": one("Flatten", IMAGE),
    "flatten axis": one("Flatten", IMAGE, axis=-3),
    "flatten axis 0": one("Flatten", IMAGE, axis=0),
    "reshape": one("Reshape", IMAGE, "x s", s=[1, -1]),
    "reshape zeros": one("Reshape", IMAGE, "x s", s=[0, 0, -1]),
    "reshape fixed": one("Reshape", (1, 12), "x s", s=[1, 3, 4]),
    "reshape batch": one("Reshape", ("N", 2, 6), "x s", s=[-1, 12]),
    "reshape vector": one("Reshape", IMAGE, "x s", s=[-1]),
    "reshape to images": one("Reshape", (12,), "x s", s=[1, 2, 3, 2]),
    "squeeze": one("Squeeze", (1, 3, 1, 2), "x a", a=[2]),
    "squeeze attribute": one("Squeeze", (1, 3, 1, 2), opset=11, axes=[-2]),
    "squeeze all": one("Squeeze", (1, 1, 1, 5)),
    "unsqueeze": one("Unsqueeze", (1, 3), "x a", a=[1, -1]),
    "unsqueeze attribute": one("Unsqueeze", (1, 3), opset=11, axes=[2]),
    "unsqueeze vector": one("Unsqueeze", (3,), "x a", a=[0]),
    "transpose": one("Transpose", (1, 2, 3, 4), perm=[0, 2, 3, 1]),
    "transpose ones": one("Transpose", (1, 1, 3), perm=[1, 0, 2]),
    "transpose no batch axis": one("Transpose", (3, 2, 1)),
    "batch norm": one("BatchNormalization", IMAGE, "x s b m v", **BN, epsilon=1e-3),
    "batch norm flat": one("BatchNormalization", (1, 2), "x s b m v", **BN),
    "batch norm old": one("BatchNormalization", IMAGE, "x s b m v", opset=8, **BN),
    "max pool": one("MaxPool", IMAGE, kernel_shape=[2, 2]),
    "max pool strides, pads": one("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
    "max pool uneven": one("MaxPool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[0, 0, 1, 2]),
    "max pool same": one("MaxPool", IMAGE, kernel_shape=[2, 2], auto_pad="SAME_UPPER"),
    "max pool ceil": one("MaxPool", (1, 1, 6, 6), kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "max pool dilations": one("MaxPool", IMAGE, kernel_shape=[2, 2], strides=[1, 2], dilations=[2, 2]),
    "max pool 1d": one("MaxPool", LINE, kernel_shape=[3], strides=[2], linear=False),
    "average pool": one("AveragePool", IMAGE, kernel_shape=[2, 3]),
    "average pool pads": one("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "average pool count": one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "average pool uneven": one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0], strides=[2, 1]),
    "average pool uneven count": one("AveragePool", IMAGE, kernel_shape=[3, 3], pads=[0, 1, 2, 0], count_include_pad=1),
    "average pool same": one("AveragePool", IMAGE, kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
    "average pool ceil": one("AveragePool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], ceil_mode=1, opset=19),
    "average pool 1d": one("AveragePool", LINE, kernel_shape=[3], strides=[2], pads=[1, 0]),
    "global average pool": one("GlobalAveragePool", IMAGE),
    "global max pool": one("GlobalMaxPool", IMAGE),
    "reduce mean": one("ReduceMean", IMAGE, axes=[2, 3], keepdims=0),
    "reduce mean input": one("ReduceMean", IMAGE, "x a", opset=18, a=[-1, -2]),
    "reduce sum": one("ReduceSum", IMAGE, "x a", a=[1], keepdims=0),
    "reduce sum attribute": one("ReduceSum", IMAGE, opset=11, axes=[1]),
    "concat": Case((1, 3), [node("Neg", "x", "n"), node("Concat", "x n x", "y", axis=1)]),
    "concat constant": one("Concat", (1, 2, 3), "c x", c=weights(1, 1, 3), axis=-2),
    "concat no batch axis": one("Concat", (3, 2), "x c", c=weights(1, 2), axis=0),
    "slice": one("Slice", IMAGE, "x b e a s", b=[1, -1], e=[5, -9], a=[2, 3], s=[2, -1]),
    "slice attributes": one("Slice", IMAGE, opset=9, starts=[0, 1], ends=[1, 999], axes=[0, 2]),
    "slice no axes": one("Slice", (1, 7), "x b e", b=[0, 2], e=[1, 5]),
    "gather one": one("Gather", (1, 4, 3), "x i", i=2 * torch.ones((), dtype=torch.int64).numpy(), axis=1),
    "gather several": one("Gather", (1, 4, 3), "x i", i=[2, -4, 2], axis=1),
    "gather table": one("Gather", (1, 4), "x i", i=torch.tensor([[2, 0], [1, 1]]).numpy(), axis=-1),
    "gather no batch axis": one("Gather", (4, 3, 2), "x i", i=torch.tensor(1).numpy(), axis=0),
    "identity": one("Identity", (1, 3)),
    "dropout": one("Dropout", (1, 3)),
    "dropout old": one("Dropout", (1, 3), opset=10, ratio=0.3),
    "cast to the same": one("Cast", (1, 3), to=1),
    "pad": one("Pad", IMAGE, "x p c", p=[0, 0, 1, 0, 0, 1, 0, 2], c=weights()),
    "pad attribute": one("Pad", IMAGE, opset=7, pads=[0, 0, 1, 0, 0, 0, 0, 2], value=0.5),
    "pad axes": one("Pad", IMAGE, "x p - a", opset=18, p=[1, 2], a=[-1]),
    "residual": Case(
        IMAGE,
        [
            node("Conv", "x w", "c", pads=[1, 1, 1, 1]),
            node("Relu", "c", "r"),
            node("Add", "r x", "s"),
            node("Relu", "s", "y"),
        ],
        {"w": weights(2, 2, 3, 3)},
    ),
    "shape arithmetic": Case(
        ("N", 2, 3, 4),
        [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n", axis=0),
            node("Unsqueeze", "n axes", "u"),
            node("Constant", "", "rest", value=onnx.numpy_helper.from_array(torch.tensor([-1]).numpy())),
            node("Concat", "u rest", "t", axis=0),
            node("Reshape", "x t", "y"),
        ],
        {"zero": torch.tensor(0).numpy(), "axes": [0]},
    ),
    "constants": Case(
        (1, 4),
        [
            node("ConstantOfShape", "two", "ones", value=onnx.helper.make_tensor("v", 1, [1], [1.5])),
            node("Cast", "four", "f", to=1),
            node("Sqrt", "f", "q"),
            node("Mul", "ones q", "m"),
            node("Transpose", "w", "t"),
            node("MatMul", "x t", "z"),
            node("Slice", "m begin end", "k"),
            node("Expand", "k wide", "e"),
            node("Sub", "z e", "y"),
        ],
        {"two": [2], "four": [4], "w": weights(3, 4), "begin": [0], "end": [1], "wide": [1, 3]},
    ),
}
each = pytest.mark.parametrize("name", CASES)


def built(name: str, **options: Any) -> onnx.ModelProto:
    case = CASES[name]
    return model(case.shape, case.nodes, case.constants, opset=case.opset, **options)


def images(net: advibp.vnncomp.onnx.OnnxNet, count: int = 3, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    like = next(net.parameters(), torch.empty(0))
    return torch.rand(count, *net.input_shape, dtype=like.dtype, generator=generator) * 2 - 1


@each
def test_batch_equals_onnxruntime_on_each_image(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, built(name))
    net = advibp.vnncomp.onnx.load(path)
    x = images(net)
    assert close(net(x), by_onnxruntime(path, x, net.file_input_shape))
    assert net.input_name == "x"
    assert net(x).shape == (3, *net.output_shape)


@pytest.mark.parametrize("opset", [7, 10, 13, 21])
def test_it_is_the_same_in_other_opsets(opset: int, tmp_path: Path) -> None:
    """Only opsets in which onnxruntime supports this form of the node."""
    same = 0
    for name, case in CASES.items():
        path = write(tmp_path, model(case.shape, case.nodes, case.constants, opset=opset))
        shape = [size if isinstance(size, int) else 1 for size in case.shape]
        x = torch.rand(2, math.prod(shape), generator=torch.Generator().manual_seed(0)) * 2 - 1
        try:
            wanted = by_onnxruntime(path, x, shape)
        except Exception:  # its errors have no class of their own
            continue
        net = advibp.vnncomp.onnx.load(path)
        assert close(net(x.view(2, *net.input_shape)), wanted), name
        same += 1
    assert same > 70


@each
def test_float64_and_copies(name: str, tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, built(name)))
    x = images(net)
    double = copy.deepcopy(net).double()
    assert close(double(x.double()).float(), net(x))
    assert double(x.double()).dtype == torch.float64
    assert not any(p.requires_grad for p in net.parameters())
    assert torch.equal(pickle.loads(pickle.dumps(net))(x), net(x))
    if name != "cast to the same" and "constant" not in name:
        single = advibp.vnncomp.onnx.load(write(tmp_path, built(name, dtype="float64")))
        assert close(single(x.double()).float(), net(x))


@each
def test_bounds_contain_sampled_points(name: str, tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, built(name))).double()
    box = Box.ball(images(net).double(), 0.3, within=None)
    generator = torch.Generator().manual_seed(1)
    noise = torch.rand(40, *box.shape, dtype=torch.float64, generator=generator) * 2 - 1
    noise[:20] = noise[:20].sign()
    points = box.center + box.radius * noise
    outputs = net(points.flatten(0, 1)).unflatten(0, (40, 3))
    found = [net(box), net(Zonotope.from_box(box)).to_box()]
    if CASES[name].linear:
        found += [LinearBounds(net, box).output(), LinearBounds(net, box).refine().output()]
    for bounds in found:
        assert bounds.shape == outputs.shape[1:]
        assert bool((outputs >= bounds.lower - 1e-9).all())
        assert bool((outputs <= bounds.upper + 1e-9).all())


def test_weights_that_are_listed_as_inputs(tmp_path: Path) -> None:
    path = write(tmp_path, built("gemm", listed=True))
    net = advibp.vnncomp.onnx.load(path)
    assert close(net(images(net)), by_onnxruntime(path, images(net), (1, 6)))


def test_matmul_and_add_become_one_linear_layer(tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, built("matmul and add")))
    assert len(net.steps) == 1
    assert net(Box.ball(images(net), 0.1, within=None)).elided


def test_matmul_that_is_used_twice_is_not_fused(tmp_path: Path) -> None:
    nodes = [node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Add", "a m", "y")]
    path = write(tmp_path, model((1, 6), nodes, {"w": weights(6, 4), "b": B}))
    net = advibp.vnncomp.onnx.load(path)
    assert close(net(images(net)), by_onnxruntime(path, images(net), (1, 6)))


def test_unused_nodes_are_removed(tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "y"), node("Neg", "x", "z")]
    assert len(advibp.vnncomp.onnx.load(write(tmp_path, model((1, 6), nodes))).steps) == 1


def test_errors_name_the_node(tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, built("clip")))
    with pytest.raises(UserError, match="Clip_y"):
        LinearBounds(net, Box.ball(images(net), 0.1, within=None))


def test_inputs_of_another_shape_are_refused(tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, built("gemm")))
    with pytest.raises(UserError, match=r"\(B, 6\)"):
        net(torch.rand(2, 7))


@settings(max_examples=40)
@given(data=st.data())
def test_random_windows_equal_onnxruntime(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Convolutions and pooling with any kernel, stride, dilation and padding."""
    op = data.draw(st.sampled_from(["Conv", "MaxPool", "AveragePool"]))
    size, kernel, stride = (tuple(data.draw(st.integers(1, most)) for _ in "hw") for most in (8, 4, 3))
    options: dict[str, Any] = {"kernel_shape": list(kernel), "strides": list(stride)}
    if data.draw(st.booleans()):
        options["auto_pad"] = data.draw(st.sampled_from(["SAME_UPPER", "SAME_LOWER", "VALID"]))
        if options["auto_pad"] != "VALID":  # onnxruntime fails where a stride leaves pixels out
            options["strides"] = [min(pair) for pair in zip(kernel, stride, strict=True)]
    else:
        options["pads"] = [data.draw(st.integers(0, kernel[i % 2] - 1)) for i in range(4)]
    if op == "AveragePool":
        options["count_include_pad"] = data.draw(st.integers(0, 1))
    if op != "Conv":
        options["ceil_mode"] = data.draw(st.integers(0, 1))
    constants = {"w": weights(2, 2, *kernel)} if op == "Conv" else {}
    made = model((1, 2, *size), [node(op, " ".join(["x", *constants]), "y", **options)], constants)
    path = write(tmp_path_factory.mktemp("windows"), made)
    pads = options.get("pads", [0] * 4)
    room = [size[i] + pads[i] + pads[i + 2] for i in (0, 1)]
    if options.get("auto_pad", "VALID") == "VALID" and any(k > r for k, r in zip(kernel, room, strict=True)):
        with pytest.raises(UserError, match="larger than its input"):
            advibp.vnncomp.onnx.load(path)
        return
    net = advibp.vnncomp.onnx.load(path)
    x = images(net)
    assert close(net(x), by_onnxruntime(path, x, net.file_input_shape))
