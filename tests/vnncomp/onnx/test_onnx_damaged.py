"""Files that are damaged, or ask for what is not read, or for too much: a UserError of one sentence, nothing else."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from graphs import model, node, weights, write
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import advibp.vnncomp.onnx
from advibp import UserError

torch.set_num_threads(1)

W, B = weights(2, 1, 3, 3), weights(2)


def small() -> onnx.ModelProto:
    """Return a model with many different operators."""
    nodes = [
        node("Constant", "", "half", value=numpy_helper.from_array(np.float32(0.5))),
        node("Sub", "x half", "s"),
        node("Conv", "s w b", "c", pads=[1, 1, 1, 1], strides=[2, 2], group=1, dilations=[1, 1]),
        node("BatchNormalization", "c b b b v", "n", epsilon=1e-4),
        node("LeakyRelu", "n", "r", alpha=0.1),
        node("MaxPool", "r", "p", kernel_shape=[2, 2]),
        node("Transpose", "p", "t", perm=[0, 2, 3, 1]),
        node("Reshape", "t flat", "f"),
        node("Gather", "f some", "g", axis=1),
        node("Slice", "g begin end axes", "k"),
        node("Concat", "k f", "j", axis=-1),
        node("Gemm", "j m", "y", transB=1),
    ]
    constants = {"w": W, "b": B, "v": B + 2, "flat": [0, -1], "some": [3, 1, 0], "begin": [0], "end": [2], "axes": [1]}
    return model((1, 1, 5, 5), nodes, {**constants, "m": weights(3, 10)})


WHOLE = small().SerializeToString()


def outcome(path: Path) -> str:
    """Return "read" or the message of the UserError. Other errors are raised."""
    try:
        net = advibp.vnncomp.onnx.load(path)
    except UserError as error:
        return str(error)
    net(torch.zeros(2, *net.input_shape, dtype=next(net.parameters(), torch.empty(0)).dtype))
    return "read"


def test_the_whole_file_is_read(tmp_path: Path) -> None:
    assert outcome(write(tmp_path, small())) == "read"


def test_truncated_files(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    for end in range(0, len(WHOLE), 7):
        path.write_bytes(WHOLE[:end])
        assert outcome(path).startswith(str(path))


@settings(max_examples=250)
@given(flips=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(flips: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory) -> None:
    content = bytearray(WHOLE)
    for place, byte in flips:
        content[place] = byte
    path = tmp_path_factory.getbasetemp() / "flipped.onnx"
    path.write_bytes(content)
    assert outcome(path) == "read" or "\n" not in outcome(path)


@settings(max_examples=60)
@given(content=st.binary(max_size=200))
def test_any_bytes(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "any.onnx"
    path.write_bytes(content)
    assert outcome(path) != "read"


NUMBERS = st.one_of(st.integers(-3, 6), st.sampled_from([2**31, 2**62, -(2**62), 2**40, 1000]))


@settings(max_examples=250)
@given(data=st.data())
def test_attributes_and_integers_of_any_kind(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    made = small()
    chosen = data.draw(st.sampled_from([n for n in made.graph.node if n.attribute and n.op_type != "Constant"]))
    name = data.draw(st.sampled_from([a.name for a in chosen.attribute] + ["auto_pad", "ceil_mode", "axis"]))
    value = data.draw(st.one_of(NUMBERS, st.lists(NUMBERS, min_size=1, max_size=4), st.floats(), st.text(max_size=3)))
    kept = [a for a in chosen.attribute if a.name != name]
    del chosen.attribute[:]
    chosen.attribute.extend([*kept, helper.make_attribute(name, value)])
    lists = [t for t in made.graph.initializer if t.data_type == TensorProto.INT64]
    if data.draw(st.booleans()):
        tensor = data.draw(st.sampled_from(lists))
        new = data.draw(st.lists(NUMBERS, max_size=4))
        tensor.CopyFrom(numpy_helper.from_array(np.array(new, np.int64), tensor.name))
    outcome(write(tmp_path_factory.getbasetemp(), made))


def one(op: str, shape: Any = (1, 1, 5, 5), inputs: str = "x", opset: int = 17, **rest: Any) -> onnx.ModelProto:
    constants = {name: rest.pop(name) for name in inputs.split() if name in rest}
    return model(shape, [node(op, inputs, "y", **rest)], constants, opset=opset)


def two_inputs() -> onnx.ModelProto:
    made = one("Relu")
    made.graph.input.append(helper.make_tensor_value_info("other", TensorProto.FLOAT, [1]))
    return made


def two_outputs() -> onnx.ModelProto:
    made = one("Relu")
    made.graph.output.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))
    return made


def cyclic() -> onnx.ModelProto:
    return model((1, 3), [node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "b", "y")])


def without_data() -> onnx.ModelProto:
    made = one("Conv", inputs="x w", w=W)
    made.graph.initializer[0].ClearField("raw_data")
    return made


def half() -> onnx.ModelProto:
    made = one("Relu")
    made.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    return made


def half_weights() -> onnx.ModelProto:
    made = one("Conv", inputs="x w", w=W)
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(W.astype(np.float16), "w"))
    return made


def double_weights() -> onnx.ModelProto:
    made = one("Add", inputs="x w", w=weights(1))
    made.graph.initializer[0].CopyFrom(numpy_helper.from_array(weights(1), "w"))
    return made


def no_shape() -> onnx.ModelProto:
    made = one("Relu")
    made.graph.input[0].type.tensor_type.ClearField("shape")
    return made


def product() -> onnx.ModelProto:
    return model((1, 3), [node("Relu", "x", "r"), node("Mul", "x r", "y")])


def quotient() -> onnx.ModelProto:
    return model((1, 3), [node("Relu", "x", "r"), node("Div", "x r", "y")])


def filled(shape: list[int]) -> onnx.ModelProto:
    nodes = [node("ConstantOfShape", "s", "c"), node("Add", "x c", "y")]
    return model((1, 3), nodes, {"s": shape})


def bomb() -> onnx.ModelProto:
    """Return a model in which each value is twice as long as the one before."""
    nodes = [node("Concat", "x x" if i == 0 else f"c{i - 1} c{i - 1}", f"c{i}", axis=1) for i in range(60)]
    return model((1, 3), [*nodes, node("Relu", "c59", "y")])


def constant_bomb() -> onnx.ModelProto:
    nodes = [node("Concat", f"c{i} c{i}", f"c{i + 1}", axis=0) for i in range(60)]
    return model((1, 3), [*nodes, node("Add", "x c60", "y")], {"c0": weights(3)})


def long_list() -> onnx.ModelProto:
    return one("Conv", inputs="x w", w=W, pads=[1] * 100_000)


def domain() -> onnx.ModelProto:
    made = one("Relu")
    made.graph.node[0].domain = "com.example"
    return made


# What is wrong, and a word of what must be said about it.
WRONG: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "unknown operator": (lambda: one("Softmax"), "Softmax"),
    "foreign operator": (domain, "com.example.Relu"),
    "two inputs": (two_inputs, "'other'"),
    "two outputs": (two_outputs, "2 outputs"),
    "missing constant": (lambda: one("Conv", inputs="x w"), "'w'"),
    "cyclic": (cyclic, "'b'"),
    "no data": (without_data, "'w'"),
    "float16": (half, "float16"),
    "float16 weights": (half_weights, "float16"),
    "float64 weights": (double_weights, "float64"),
    "no shape": (no_shape, "shape"),
    "open axes": (lambda: one("Relu", (1, "C", 3)), "first axis"),
    "old opset": (lambda: one("Relu", opset=6), "opset 6"),
    "product": (product, "Mul_y"),
    "quotient": (quotient, "Div_y"),
    "second output": (
        lambda: model((1, 1, 5, 5), [node("MaxPool", "x", "p i", kernel_shape=[2, 2]), node("Cast", "i", "y", to=1)]),
        "second output",
    ),
    "constant output": (lambda: model((1, 3), [node("Identity", "c", "y")], {"c": weights(3)}), "does not depend"),
    "twice the same name": (lambda: model((1, 3), [node("Relu", "x", "x")]), "name of another value"),
    "wrong channels": (lambda: one("Conv", inputs="x w", w=weights(2, 2, 3, 3)), "Conv_y"),
    "wrong bias": (lambda: one("Conv", inputs="x w b", w=W, b=weights(5)), "Conv_y"),
    "wrong matrix": (lambda: one("MatMul", (1, 3), "x w", w=weights(4, 4)), "MatMul_y"),
    "wrong statistics": (
        lambda: one("BatchNormalization", inputs="x b b b b", b=weights(3)),
        "expected (1, C, ...)",
    ),
    "training": (lambda: one("BatchNormalization", inputs="x b b b b", b=weights(1), training_mode=1), "evaluation"),
    "wrong type of attribute": (lambda: one("Conv", inputs="x w", w=W, group=2.5), "'group'"),
    "unknown attribute": (lambda: one("Relu", alpha=2.0), "'alpha'"),
    "too many inputs": (lambda: one("Relu", inputs="x x x"), "3 inputs"),
    "wrong reshape": (lambda: one("Reshape", inputs="x s", s=[7, -1]), "Reshape_y"),
    "empty slice": (lambda: one("Slice", inputs="x b e a", b=[3], e=[2], a=[2]), "Slice_y"),
    "gather outside": (lambda: one("Gather", inputs="x i", i=[9], axis=2), "Gather_y"),
    "huge constant": (lambda: filled([2**20, 2**20]), "ConstantOfShape_c"),
    "overflowing constant": (lambda: filled([2**62, 2**62]), "ConstantOfShape_c"),
    "negative constant": (lambda: filled([-4, 3]), "ConstantOfShape_c"),
    "doubling": (bomb, "too many"),
    "doubling constants": (constant_bomb, "constant"),
    "a long list": (long_list, "'pads'"),
    "huge pads": (lambda: one("Pad", inputs="x p", p=[0, 0, 2**19, 2**19, 0, 0, 2**19, 2**19]), "Pad_y"),
    "huge kernel": (lambda: one("MaxPool", (1, 1, 4096, 4096), kernel_shape=[2048, 2048]), "MaxPool_y"),
    "dilated in the border": (
        lambda: one("MaxPool", (1, 1, 2, 2), kernel_shape=[2, 1], dilations=[3, 1], pads=[1, 0, 1, 0]),
        "only padding",
    ),
    "same with dilations": (
        lambda: one("MaxPool", kernel_shape=[2, 2], dilations=[2, 2], auto_pad="SAME_UPPER"),
        "auto_pad",
    ),
    "same past its window": (
        lambda: one("Conv", (1, 1, 8, 8), "x w", w=weights(2, 1, 1, 1), strides=[4, 4], auto_pad="SAME_UPPER"),
        "auto_pad",
    ),
    "batch transposed": (lambda: one("Transpose", (1, 3, 4), perm=[1, 0, 2]), "batch axis"),
    "batch moved": (lambda: one("Transpose", (1, 3, 4), perm=[1, 2, 0]), "batch axis"),
    "batch reshaped": (lambda: one("Reshape", (1, 6), "x s", s=[2, 3]), "batch axis"),
    "batch joined": (lambda: one("Concat", (1, 6), "x x", axis=0), "batch axis"),
    "batch gathered": (lambda: one("Gather", (1, 6), "x i", i=[0, 0], axis=0), "batch axis"),
    "batch repeated": (lambda: one("Add", (1, 6), "x c", c=weights(2, 6)), "batch axis"),
    "batch averaged": (lambda: one("ReduceMean", (1, 6), axes=[0]), "batch axis"),
    "batch padded": (lambda: one("Pad", (1, 6), "x p", p=[1, 0, 0, 0]), "batch axis"),
    "batch multiplied": (lambda: one("MatMul", (1, 6), "w x", w=weights(2, 1)), "batch axis"),
    "transA": (lambda: one("Gemm", (1, 6), "x w", w=weights(1, 2), transA=1), "transA"),
}


@pytest.mark.parametrize("name", WRONG)
def test_unsupported_files_are_refused(name: str, tmp_path: Path) -> None:
    make, word = WRONG[name]
    path = write(tmp_path, make())
    with pytest.raises(UserError) as caught:
        advibp.vnncomp.onnx.load(path)
    said = str(caught.value)
    assert word in said
    assert said.startswith(f"{path}: ")
    assert "\n" not in said


def test_weights_count_once_per_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with a thousand layers that share their weights could otherwise exhaust the memory."""
    monkeypatch.setattr("advibp.vnncomp.onnx.torch_program.MAX_WEIGHTS", 100)
    nodes = [node("Gemm", "x w", "a"), node("Gemm", "a w", "b"), node("Gemm", "b w", "y")]
    with pytest.raises(UserError, match="once per use"):
        advibp.vnncomp.onnx.load(write(tmp_path, model((1, 6), nodes, {"w": weights(6, 6)})))


def kept_outside(location: str, **more: str) -> onnx.ModelProto:
    made = one("Conv", inputs="x w", w=W)
    tensor = made.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **more}.items():
        tensor.external_data.add(key=key, value=value)
    return made


def test_weights_beside_the_file_are_read(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"1234" + W.astype("<f4").tobytes())
    net = advibp.vnncomp.onnx.load(write(tmp_path, kept_outside("weights.bin", offset="4")))
    assert torch.equal(next(net.parameters()), torch.tensor(W, dtype=torch.float32))


@pytest.mark.parametrize(
    "location",
    ["missing.bin", "../weights.bin", "/etc/hostname", "link.bin", "", ".", "a\0b", "x" * 5000],
    ids=["missing", "above", "absolute", "link", "none", "folder", "zero", "long"],
)
def test_external_weights_in_other_folders_are_refused(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "weights.bin").write_bytes(W.astype("<f4").tobytes())
    (folder / "link.bin").symlink_to(tmp_path / "weights.bin")
    with pytest.raises(UserError, match="not a file in the folder"):
        advibp.vnncomp.onnx.load(write(folder, kept_outside(location)))


@pytest.mark.parametrize("offset", ["9", "-1", "x", "9" * 40], ids=["late", "negative", "text", "far"])
def test_weights_that_are_too_short(offset: str, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(W.astype("<f4").tobytes())
    with pytest.raises(UserError):
        advibp.vnncomp.onnx.load(write(tmp_path, kept_outside("weights.bin", offset=offset)))


@pytest.mark.parametrize("what", ["missing", "folder"])
def test_no_file(what: str, tmp_path: Path) -> None:
    path = tmp_path if what == "folder" else tmp_path / "missing.onnx"
    with pytest.raises(UserError, match="no such file"):
        advibp.vnncomp.onnx.load(path)


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)  # takes no room on the disk
    with pytest.raises(UserError, match="bytes"):
        advibp.vnncomp.onnx.load(path)


def test_the_package_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = write(tmp_path, one("Relu")), builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name in ("onnx", "onnxruntime"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    for attempt in (
        lambda: advibp.vnncomp.onnx.load(path),
        lambda: advibp.vnncomp.onnx.save(torch.nn.Linear(2, 2), path, (2,)),
    ):
        with pytest.raises(UserError, match=r"advibp\[onnx\]"):
            attempt()
