"""A run is one thing in Python and on the command line, also from another folder.

Every kind of data and network is trained one way, and then certified, attacked, predicted with, resumed and reported
the other way.
"""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

import advibp
from advibp import Attack, Silent, UserError, open_run, train
from advibp.runs.run_sources import OtherDataWarning

OPTIONS: dict[str, Any] = {
    "eps": 0.05,
    "epochs": 2,
    "method": "ibp",
    "batch_size": 20,
    "lr": 0.01,
    "seed": 0,
    "warmup_natural": 0,
    "ramp": 1,
    "c_decay": 0,
}
FLAGS = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in OPTIONS.items())
MODULE = """
from torch import nn


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(25, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        return self.layers(x)


def make():
    return Own()
"""


def arrays() -> dict[str, np.ndarray[Any, Any]]:
    """Dark and light images."""
    stream = np.random.RandomState(0)
    result: dict[str, np.ndarray[Any, Any]] = {}
    for part, count in (("train", 80), ("test", 10)):
        y = np.arange(count) % 2
        pixels = stream.normal(60 + 130 * y[:, None, None], 20, (count, 5, 5))
        result |= {f"x_{part}": np.clip(pixels, 0, 255).astype(np.uint8), f"y_{part}": y}
    return result


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, code, and an empty folder to work from."""
    path, parts = tmp_path_factory.mktemp("project"), arrays()
    (path / "elsewhere").mkdir()
    np.savez(path / "digits.npz", **parts)
    for part in ("train", "test"):
        for k, (x, y) in enumerate(zip(parts[f"x_{part}"], parts[f"y_{part}"], strict=True)):
            folder = path / "pets" / part / ("dark", "light")[y]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(x).save(folder / f"{k:03d}.png")
    Image.fromarray(parts["x_test"][0]).save(path / "one.png")
    (path / "own_net.py").write_text(MODULE)
    (path / "importable_net.py").write_text(MODULE)
    return path


def data_of(kind: str) -> Any:
    """The data of a kind, in Python."""
    parts = {name: torch.tensor(values) for name, values in arrays().items()}
    x = {part: parts[f"x_{part}"][:, None].float() / 255 for part in ("train", "test")}
    sets = {part: TensorDataset(x[part], parts[f"y_{part}"].long()) for part in x}
    if kind == "npz":
        return advibp.data.load("digits.npz")
    if kind == "folder":
        return advibp.data.load("pets")
    return (sets["train"], sets["test"]) if kind == "dataset" else tuple(t for s in sets.values() for t in s.tensors)


def net_of(kind: str) -> nn.Module:
    """The network of a kind, in Python."""
    if kind == "built":
        return advibp.nets.build("FC 8", (1, 5, 5), 2, seed=0)
    if kind == "module":
        return importlib.import_module("importable_net").make()  # type: ignore[no-any-return]
    return advibp.nets.from_file("own_net.py:make")


@pytest.fixture
def here(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    yield project
    sys.modules.pop("importable_net", None)


DATA, NETS = ("npz", "folder", "tensors", "dataset"), ("built", "file", "module")


@pytest.mark.filterwarnings("ignore::advibp.CollapseWarning")
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("trained_in", ["python", "command line"])
def test_python_and_the_command_line_are_one(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    trained_in: str,
    data: str,
    net: str,
) -> None:
    run, in_files = tmp_path / "run", data in ("npz", "folder")
    name = {"built": "'FC 8'", "file": f"{here}/own_net.py:make", "module": "importable_net:make"}[net]
    if trained_in == "python":
        first = train(net_of(net), data_of(data), out=run, show=Silent(), **OPTIONS)
    else:
        if not in_files:
            return  # only Python has them
        typed = {"npz": "digits.npz", "folder": "pets"}[data]
        assert call(f"train {typed} {name.removeprefix(f'{here}/')} {FLAGS} --out {run}") == 0
        first = open_run(run, None if net == "built" else net_of(net))
    monkeypatch.chdir(here / "elsewhere")
    capsys.readouterr()
    add_net, add_data = "" if net == "built" else f"--net {name}", "" if in_files else f"--data {here}/digits.npz"
    if add_net:
        assert call(f"certify {run}") == 2
        err = capsys.readouterr().err
        assert "--net" in err
        if net == "file" and trained_in == "command line":
            assert f"--net {name}" in err
        if net == "module" and trained_in == "python":
            assert "--net importable_net:Own" in err
    if add_data:
        assert call(f"certify {run} {add_net}") == 2
        assert "given in Python" in (err := capsys.readouterr().err)
        assert "--data FILE" in err
    # The command line.
    assert call(f"certify {run} {add_net} {add_data} --steps 2") == 0
    assert (run / "certify" / "records.jsonl").exists()
    assert call(f"attack {run} {add_net} {add_data} --steps 2 --eps 0.02") == 0
    capsys.readouterr()
    assert call(f"predict {run} {here}/one.png test:0 {add_net} {add_data} --eps 0.01 --json") == 0
    file, test = map(json.loads, capsys.readouterr().out.splitlines())
    assert (file["class"], file["score"], file["certified"]) == (test["class"], test["score"], test["certified"])
    assert file["name"] == (("dark", "light")[file["class"]] if data == "folder" else str(file["class"]))
    resumed = f"{add_data.removeprefix('--data ') or first.recipe.data} {name}" if add_net or add_data else ""
    assert call(f"train {resumed} --resume --out {run} --epochs 3") == 0
    assert call(f"certify {run} {add_net} {add_data} --steps 2") == 0
    assert call(f"report {run}") == 0
    assert (run / "report.html").exists()
    # Python.
    opened = open_run(run, None if net == "built" else net_of_elsewhere(here, net))
    assert len(opened.history) == 3
    with warnings.catch_warnings():
        warnings.simplefilter("error", OtherDataWarning)
        given = {} if in_files else {"data": advibp.data.load(here / "digits.npz")}
        certificate = opened.certify(0.05, attack=Attack(steps=2), **given)
    assert len(certificate.records) == 10
    assert opened.attack(0.02, attack=Attack(steps=2), limit=4, **given).broken.shape == (4,)
    image = np.asarray(Image.open(here / "one.png"))[None]
    assert opened.predict(image, eps=0.01).index == file["class"]
    monkeypatch.chdir(here)
    again = train(net_of(net), data_of(data), out=run, resume=True, show=Silent(), **{**OPTIONS, "epochs": 4})
    assert len(again.history) == 4
    assert again.recipe.net == first.recipe.net
    assert not any(str(here) in line for line in (run / "recipe.yaml").read_text().splitlines())


def net_of_elsewhere(here: Path, kind: str) -> nn.Module:
    return advibp.nets.from_file(f"{here}/own_net.py:make") if kind == "file" else net_of(kind)


@pytest.mark.filterwarnings("ignore::advibp.CollapseWarning")
def test_changed_and_missing_data_are_reported(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, file = arrays(), tmp_path / "mine.npz"
    np.savez(file, **parts)
    data = advibp.data.load(file)
    run = train(net_of("built"), data, out=tmp_path / "run", show=Silent(), **OPTIONS)
    assert run.recipe.data == str(file)
    assert run.certify(limit=3, attack=Attack(steps=1)).records
    np.savez(file, **{**parts, "x_test": 255 - parts["x_test"]})
    opened = open_run(tmp_path / "run")
    with pytest.warns(OtherDataWarning, match="have changed since the training"):
        opened.certify(attack=Attack(steps=1), out=None)
    capsys.readouterr()
    assert call(f"certify {tmp_path}/run --steps 1") == 0
    assert "warning: The test images of" in capsys.readouterr().err
    file.unlink()
    assert call(f"certify {tmp_path}/run --steps 1") == 2
    assert f"was trained on {file}, which does not exist; pass --data FILE" in capsys.readouterr().err
    # The same images in another file are those of the run; others get a folder of their own.
    np.savez(tmp_path / "copy.npz", **parts)
    assert call(f"certify {tmp_path}/run --steps 1 --data {tmp_path}/copy.npz --eps 0.03") == 0
    assert call(f"certify {tmp_path}/run --steps 1 --data {here}/pets --eps 0.03") == 0
    assert (tmp_path / "run" / "certify-on-pets").exists()
    assert not (tmp_path / "run" / "certify-on-copy").exists()
    with pytest.raises(UserError, match="no folder"):
        advibp.Run(run.net, run.recipe, [], {}, None).certify()


def test_damaged_sources(here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(net_of("built"), data_of("npz"), out=tmp_path / "run", show=Silent(), **OPTIONS)
    sources = json.loads((tmp_path / "run" / "sources.json").read_text())
    assert sources["data"]["path"] == str(here / "digits.npz")
    assert sources["net"] == {"kind": "built", "spec": "FC 8"}
    for content in ("{", "[]", '{"data": 3}'):
        (tmp_path / "run" / "sources.json").write_text(content)
        assert call(f"certify {tmp_path}/run --steps 1") == 2
        assert "sources.json is damaged" in capsys.readouterr().err
    (tmp_path / "run" / "sources.json").unlink()  # as in folders of earlier versions
    assert call(f"certify {tmp_path}/run --steps 1") == 0


def test_a_network_that_was_changed_is_not_built_again(tmp_path: Path, here: Path) -> None:
    net = net_of("built")
    net.register_forward_hook(lambda module, inputs, logits: 2 * logits)
    run = train(net, data_of("npz"), out=tmp_path / "run", show=Silent(), **OPTIONS)
    assert run.recipe.net == "Sequential"
    with pytest.raises(UserError, match=r"of the class Sequential .*write a function that returns it"):
        open_run(tmp_path / "run")
