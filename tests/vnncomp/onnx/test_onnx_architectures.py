"""Networks of the shapes that verifiers are compared on, written by other exporters than ours."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from graphs import by_onnxruntime, close, model, node, weights, write
from torch import nn

import advibp.vnncomp.onnx
from advibp import Box
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.zonotope import Zonotope

torch.set_num_threads(1)


def acas() -> onnx.ModelProto:
    """ACAS Xu: six layers of 50 neurons, a normalized input, MatMul and Add as separate nodes."""
    sizes = [5, *[50] * 6, 5]
    constants: dict[str, Any] = {"mean": weights(1, 1, 1, 5)}
    nodes = [node("Sub", "x mean", "s"), node("Flatten", "s", "r0", axis=1)]
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        constants |= {f"w{i}": weights(before, after, scale=before**-0.5), f"b{i}": weights(after, seed=i)}
        last = i == len(sizes) - 2
        nodes += [node("MatMul", f"r{i} w{i}", f"m{i}"), node("Add", f"m{i} b{i}", "y" if last else f"a{i}")]
        nodes += [] if last else [node("Relu", f"a{i}", f"r{i + 1}")]
    return model((1, 1, 1, 5), nodes, constants, opset=8)


def mnist() -> onnx.ModelProto:
    """ERAN's ConvSmall on MNIST, with a normalization layer and a Reshape for a batch of 1."""
    constants = {
        "mean": weights(1) * 0 + 0.1307,
        "std": weights(1) * 0 + 0.3081,
        "w1": weights(16, 1, 4, 4),
        "b1": weights(16),
        "w2": weights(32, 16, 4, 4, scale=0.1),
        "b2": weights(32),
        "w3": weights(100, 800, scale=0.05),
        "b3": weights(100),
        "w4": weights(10, 100, scale=0.1),
        "b4": weights(10),
        "flat": [1, 800],
    }
    nodes = [
        node("Sub", "x mean", "n"),
        node("Div", "n std", "d"),
        node("Conv", "d w1 b1", "c1", strides=[2, 2], kernel_shape=[4, 4]),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2 b2", "c2", strides=[2, 2]),
        node("Relu", "c2", "r2"),
        node("Reshape", "r2 flat", "f"),
        node("Gemm", "f w3 b3", "g", transB=1),
        node("Relu", "g", "r3"),
        node("Gemm", "r3 w4 b4", "y", transB=1),
    ]
    return model((1, 1, 28, 28), nodes, constants, opset=9, listed=True)


class Block(nn.Module):
    def __init__(self, channels: int, filters: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, filters, 3, 2, 1, bias=False), nn.BatchNorm2d(filters))
        self.second = nn.Sequential(nn.Conv2d(filters, filters, 3, 1, 1, bias=False), nn.BatchNorm2d(filters))
        self.skip = nn.Sequential(nn.Conv2d(channels, filters, 1, 2, bias=False), nn.BatchNorm2d(filters))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(torch.relu(self.first(x))) + self.skip(x))


def resnet(pool: nn.Module, **options: Any) -> onnx.ModelProto:
    """ResNet-2B on CIFAR-10, exported with torch's older exporter."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), Block(8, 16), Block(16, 16), pool]
        net = nn.Sequential(*body, nn.Flatten(), nn.LazyLinear(10)).train()
        net(torch.rand(20, 3, 32, 32))  # so that its statistics are something
    file: Any = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net.eval(), (torch.rand(1, 3, 32, 32),), file, dynamo=False, input_names=["x"], **options)
    made: onnx.ModelProto = onnx.load_from_string(file.getvalue())
    return made


def mnist_fc() -> onnx.ModelProto:
    """VNN-COMP's mnist_fc: images are columns without a batch axis, multiplied from the left."""
    sizes = [784, 64, 64, 10]
    constants: dict[str, Any] = {}
    nodes = []
    for i, (before, after) in enumerate(itertools.pairwise(sizes)):
        constants |= {f"w{i}": weights(after, before, scale=before**-0.5), f"b{i}": weights(after, 1, seed=i)}
        last = i == len(sizes) - 2
        nodes += [node("MatMul", f"w{i} {f'r{i}' if i else 'x'}", f"m{i}")]
        nodes += [node("Add", f"m{i} b{i}", "y" if last else f"a{i}")]
        nodes += [] if last else [node("Relu", f"a{i}", f"r{i + 1}")]
    return model((784, 1), nodes, constants, opset=9)


def by_dynamo(kind: str) -> onnx.ModelProto:
    """The same network, exported with torch's newer exporter and a dynamic batch size."""
    pytest.importorskip("onnxscript")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets: dict[str, Callable[[], list[nn.Module]]] = {
            "conv": lambda: [
                nn.Conv2d(3, 8, 4, 2, 1),
                nn.LeakyReLU(0.1),
                nn.Dropout(),
                nn.Conv2d(8, 8, 3, 1, 2, 2, groups=2),
                nn.MaxPool2d(3, 2, 1, ceil_mode=True),
                nn.Flatten(),
            ],
            "residual": lambda: [Block(3, 8), Block(8, 8), nn.AdaptiveAvgPool2d(1), nn.Flatten()],
        }
        net = nn.Sequential(*nets[kind](), nn.LazyLinear(10)).train()
        net(torch.rand(20, 3, 32, 32))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batch = ({0: torch.export.Dim("n")},)
        program: Any = torch.onnx.export(
            net.eval(), (torch.rand(2, 3, 32, 32),), dynamo=True, dynamic_shapes=batch, verbose=False
        )
    made: onnx.ModelProto = program.model_proto
    return made


def resnet_by_hand() -> onnx.ModelProto:
    """The same network with BatchNormalization nodes and global average pooling."""
    constants: dict[str, Any] = {"g": weights(10, 8), "h": weights(10)}
    for i, channels in enumerate((3, 8, 8)):
        constants |= {f"w{i}": weights(8, channels, 3, 3), f"v{i}": weights(8, seed=i) + 1}
        constants |= {f"{letter}{i}": weights(8, seed=ord(letter)) for letter in "smb"}
    norm = [node("BatchNormalization", f"c{i} s{i} b{i} m{i} v{i}", f"n{i}") for i in range(3)]
    nodes = [
        node("Conv", "x w0", "c0", strides=[2, 2], pads=[1, 1, 1, 1]),
        norm[0],
        node("Relu", "n0", "r0"),
        node("Conv", "r0 w1", "c1", pads=[1, 1, 1, 1]),
        norm[1],
        node("Relu", "n1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1, 1, 1, 1]),
        norm[2],
        node("Add", "n2 r0", "a"),
        node("Relu", "a", "r"),
        node("GlobalAveragePool", "r", "p"),
        node("Flatten", "p", "f"),
        node("Gemm", "f g h", "y", transB=1),
    ]
    return model(("batch", 3, 32, 32), nodes, constants, opset=13)


NETS: dict[str, Callable[[], onnx.ModelProto]] = {
    "acas": acas,
    "mnist": mnist,
    "resnet, average pool": lambda: resnet(nn.AvgPool2d(2)),
    "resnet, open batch": lambda: resnet(nn.AdaptiveAvgPool2d(1), dynamic_axes={"x": {0: "n"}}),
    "resnet, BatchNorm kept": lambda: resnet(
        nn.AdaptiveAvgPool2d(1), training=torch.onnx.TrainingMode.PRESERVE, do_constant_folding=False, opset_version=12
    ),
    "resnet by hand": resnet_by_hand,
    "mnist_fc": mnist_fc,
    "conv by dynamo": lambda: by_dynamo("conv"),
    "resnet by dynamo": lambda: by_dynamo("residual"),
}


@pytest.mark.parametrize("name", NETS)
def test_known_architectures(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, NETS[name]())
    net = advibp.vnncomp.onnx.load(path)
    x = torch.rand(3, *net.input_shape, generator=torch.Generator().manual_seed(0))
    outputs = net(x)
    assert close(outputs, by_onnxruntime(path, x, net.file_input_shape))
    assert net(Box.ball(x, 0.01, within=None)).elided or name == "mnist_fc"  # whose matrices are on the left
    _check_bounds(net, x)


def _check_bounds(net: advibp.vnncomp.onnx.OnnxNet, x: torch.Tensor) -> None:
    y = net(x).argmax(1)
    box = Box.ball(x, 0.01, within=None)
    generator = torch.Generator().manual_seed(1)
    points = box.center + box.radius * (torch.rand(20, *box.shape, generator=generator) * 2 - 1).sign()
    outputs = net(points.flatten(0, 1)).unflatten(0, (20, 3))
    margins = outputs.gather(2, y.expand(20, -1).unsqueeze(2)) - outputs
    room = 1e-4 * float(outputs.abs().max())
    with torch.no_grad():
        by_ibp = net(box)
        linear = LinearBounds(net, box)
        found = [by_ibp.lower_margins(y), linear.margins(y), net(Zonotope.from_box(box)).lower_margins(y)]
    for lower in found:
        assert bool((margins >= lower - room).all())


def test_acas_becomes_linear_layers_and_relus(tmp_path: Path) -> None:
    net = advibp.vnncomp.onnx.load(write(tmp_path, acas()))
    assert net.input_shape == (1, 1, 5)
    assert net.file_input_shape == (1, 1, 1, 5)
    assert [step.func.__name__ for step in net.steps.values()] == ["sub", "reshape", *["linear", "relu"] * 6, "linear"]
