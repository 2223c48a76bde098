"""What is written is read again as the same network; and is not written if onnxruntime disagrees."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from commands import call, halves
from graphs import close
from torch import Tensor, nn

import advibp.vnncomp.onnx
from advibp import Box, UserError, nets
from advibp.vnncomp.onnx import writing

torch.set_num_threads(1)

SPECS = {"dm-small": "dm-small", "a": "a", "BatchNorm": "Conv 4 3x3+2p1 BN, FC 20 BN", "residual": "resnet-small"}


def built(spec: str) -> nn.Module:
    """Build a network with a normalization layer and random statistics and biases."""
    net = nets.build(SPECS[spec], mean=0.1, std=0.3, seed=0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for parameter in net.parameters():
            if parameter.dim() == 1:
                parameter.data.add_(torch.randn_like(parameter) * 0.1)
        net(torch.rand(30, 1, 28, 28))
    return net.eval()


@pytest.mark.parametrize("spec", SPECS)
def test_round_trip(spec: str, tmp_path: Path) -> None:
    net, path = built(spec).train(), tmp_path / "net.onnx"
    saved = advibp.vnncomp.onnx.save(net, path, (1, 28, 28))
    assert all(module.training for module in net.modules())
    assert saved.difference <= writing.TOLERANCE
    assert "Identity" not in saved.operators
    assert [file.name for file in tmp_path.iterdir()] == ["net.onnx"]
    onnx.checker.check_model(str(path), full_check=True)
    read = advibp.vnncomp.onnx.load(path)
    x = torch.rand(5, 1, 28, 28)
    assert (read.input_shape, read.output_shape, read.file_input_shape) == ((1, 28, 28), (10,), (1, 1, 28, 28))
    with torch.no_grad():
        outputs = net.eval()(x)
        assert close(read(x), outputs)
        box, y = Box.ball(x, 0.01), outputs.argmax(1)
        assert close(read(box).lower_margins(y), net(box).lower_margins(y), 1e-4)


@pytest.mark.parametrize("spec", ["BatchNorm"])
def test_the_newer_exporter_too(spec: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(net: nn.Module, x: Tensor) -> bytes:
        raise RuntimeError("this torch has it no more")

    monkeypatch.setattr(writing, "_by_tracing", gone)
    net, path = built(spec), tmp_path / "net.onnx"
    advibp.vnncomp.onnx.save(net, path, (1, 28, 28))
    x = torch.rand(5, 1, 28, 28)
    assert close(advibp.vnncomp.onnx.load(path)(x), net(x))
    assert str(Path(__file__).parent).encode() not in path.read_bytes()


def test_loaded_network_can_be_saved(tmp_path: Path) -> None:
    net = built("residual")
    advibp.vnncomp.onnx.save(net, tmp_path / "a.onnx", (1, 28, 28))
    advibp.vnncomp.onnx.save(advibp.vnncomp.onnx.load(tmp_path / "a.onnx"), tmp_path / "b.onnx", (1, 28, 28))
    x = torch.rand(5, 1, 28, 28)
    assert close(advibp.vnncomp.onnx.load(tmp_path / "b.onnx")(x), net(x))


class Chance(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.rand(x.shape[0], 1)


class Moody(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("not today")


@pytest.mark.parametrize(("kind", "word"), [(Chance, "differ"), (Moody, "not today")])
def test_network_that_onnxruntime_cannot_reproduce_is_not_saved(
    kind: type[nn.Linear], word: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=word):
        advibp.vnncomp.onnx.save(kind(3, 2), tmp_path / "net.onnx", (3,))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="folder"):
        advibp.vnncomp.onnx.save(nn.Linear(3, 2), tmp_path / "missing" / "net.onnx", (3,))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = tmp_path_factory.mktemp("export")
    x, y = halves(60)
    np.savez(here / "data.npz", x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    options = "--epochs 1 --batch-size 20 --validation 20 --threads 1 --eps 0.1 --method standard"
    assert call(f"train {here / 'data.npz'} 'FC 8' {options} --out {here / 'run'}") == 0
    return here / "run"


def test_command_prints_what_it_saved(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    assert call(f"export {run} --onnx {path}") == 0
    said = capsys.readouterr().out
    assert all(word in said for word in (str(path), "(batch, 1, 4, 4)", "2 Gemm", "largest difference"))
    x = torch.rand(3, 1, 4, 4)
    assert close(advibp.vnncomp.onnx.load(path)(x), advibp.open_run(run).net(x))


@pytest.mark.parametrize("command", ["export {run}", "export no --onnx a.onnx", "export {run} --onnx no/such/a.onnx"])
def test_error_messages_are_one_line(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert call(command.format(run=run)) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_metadata_is_read_back(tmp_path: Path) -> None:
    net, path = built("dm-small"), tmp_path / "net.onnx"
    facts = {"class_names": ["zero", "größer", '"quoted"'], "eps": 8 / 255, "input_range": [0.0, 1.0]}
    advibp.vnncomp.save_onnx(net, path, (1, 28, 28), metadata=facts)
    onnx.checker.check_model(str(path), full_check=True)
    entries = {entry.key: json.loads(entry.value) for entry in onnx.load(str(path)).metadata_props}
    assert entries == {f"advibp.{name}": value for name, value in facts.items()}
    assert advibp.vnncomp.onnx_metadata(path) == facts
    advibp.vnncomp.load_onnx(path)
    advibp.vnncomp.save_onnx(net, path, (1, 28, 28))
    assert advibp.vnncomp.onnx_metadata(path) == {}
    model = onnx.load(str(path))
    model.metadata_props.add(key="advibp.eps", value="no JSON")
    path.write_bytes(model.SerializeToString())
    with pytest.raises(UserError, match="not valid JSON"):
        advibp.vnncomp.onnx_metadata(path)
    with pytest.raises(UserError, match="no such file"):
        advibp.vnncomp.onnx_metadata(tmp_path / "none.onnx")
