"""`advibp predict --eps --json`: lines for other programs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from commands import call
from PIL import Image

import advibp


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images in class folders, and a run on it."""
    path, stream = tmp_path_factory.mktemp("predict"), np.random.RandomState(0)
    for part, count in (("train", 40), ("test", 5)):
        for name, level in (("dark", 40), ("light", 200)):
            (path / "pets" / part / name).mkdir(parents=True)
            for k in range(count):
                pixels = np.clip(stream.normal(level, 20, (5, 5)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(path / "pets" / part / name / f"{k}.png")
    data = advibp.data.load(path / "pets", validation=10)
    net = advibp.nets.build("FC 8", data.input_shape, data.classes, seed=0)
    options = {"eps": 0.05, "epochs": 12, "method": "ibp", "warmup_natural": 1, "ramp": 1, "batch_size": 10, "lr": 0.01}
    recipe = advibp.Recipe.load(data=str(path / "pets"), net="FC 8", validation=10, **options)
    advibp.train(net, data, recipe=recipe, out=path / "run", show=advibp.Silent())
    return path


def test_json_lines(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    assert call("predict run test:0 pets/test/light/1.png --eps 0.05 --radius --json") == 0
    out, err = capsys.readouterr()
    first, second = map(json.loads, out.splitlines())
    assert (first["image"], first["label"], first["name"], first["class"]) == ("test:0", 0, "dark", 0)
    assert (second["image"], second["label"], second["name"]) == ("pets/test/light/1.png", None, "light")
    for line in (first, second):
        assert line["certified"] is (line["radius"] >= 0.05) is not line["abstains"]
        assert line["arithmetic"] == "float32"
    image = np.asarray(Image.open("pets/test/light/1.png"))[None]
    prediction = advibp.open_run("run").predict(image, eps=0.05, radius=True)
    assert {"image": "pets/test/light/1.png", "label": None, **prediction.as_dict()} == second
    assert err == ""


def test_text(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    assert call("predict run test:0 --eps 0.01 --by ibp crown-ibp") == 0
    assert "class 0 (dark) (label 0)" in (out := capsys.readouterr().out)
    assert "proved for every change of up to eps 0.01 per pixel, in float32 arithmetic" in out
    assert call("predict run test:0 --eps 1 --radius") == 0
    out = capsys.readouterr().out
    assert "abstains: not proved for every change of up to eps 1 per pixel" in out
    assert "largest proved eps 0." in out


def test_mistakes(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    for words, message in (("--eps 2", "eps is 2"), ("--by milp", "milp"), ("--stage 3", "stage 3")):
        assert call(f"predict run test:0 {words}") == 2
        assert message in capsys.readouterr().err


def test_exported_metadata(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(folder)
    assert call("export run --onnx net.onnx --eps 8/255") == 0
    assert 'metadata: class_names ["dark", "light"], eps 0.03' in capsys.readouterr().out
    facts = {entry.key: json.loads(entry.value) for entry in onnx.load("net.onnx").metadata_props}
    assert facts["advibp.class_names"] == ["dark", "light"]
    assert facts["advibp.eps"] == 8 / 255
    assert facts["advibp.input_range"] == [0.0, 1.0]
    assert facts["advibp.arithmetic"] == "float32"
    assert advibp.vnncomp.onnx_metadata("net.onnx")["class_names"] == ["dark", "light"]
