"""Runs on tables: from a CSV file to a report, by commands and in Python."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

import advibp
from advibp import UserError, cli
from advibp.data.features import check_features
from advibp.storage import checkpoint

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "breast_cancer.csv"
SHORT = ["--epochs", "3", "--warmup-natural", "1", "--warmup-adversarial", "0.5", "--ramp", "1", "--batch-size", "50"]
RADII = "radius=2,area=100,fractal dimension=0.001"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certified run on a table."""
    path = tmp_path_factory.mktemp("tables") / "cells"
    train = [
        "train",
        str(FILE),
        "FC 10",
        "--normalize",
        "true",
        "--eps",
        RADII,
        "--input-range",
        "0,none",
        "--lr",
        "0.01",
    ]
    assert cli.main([*train, *SHORT, "--out", str(path)]) == 0
    assert cli.main(["certify", str(path), "--steps", "5", "--by", "ibp", "crown"]) == 0
    return path


def test_the_set_is_kept_in_the_folder(run: Path) -> None:
    opened = advibp.open_run(run)
    assert opened.recipe.eps == 100
    assert opened.recipe.eps_scale == {"radius": 0.02, "area": 1.0, "fractal dimension": 0.001 / 100}
    around = opened.recipe.perturbation(advibp.data.load(FILE))
    assert repr(opened.perturbation) == repr(around)
    assert around.scale is not None
    assert around.scale.tolist()[1] == 0
    summary = json.loads((run / "certify" / "summary.json").read_text())
    assert summary["perturbation"]["low"] == 0
    assert "--eps-scale" in json.loads((run / "summary.json").read_text())["command"]


def test_features_without_a_radius_never_change(run: Path) -> None:
    test = advibp.data.load(FILE).test
    around = advibp.open_run(run).perturbation
    files = list(run.glob("certify/counterexamples/*"))
    assert files
    for file in files:
        tensors, _ = checkpoint.load(file)
        x = test.x[tensors["index"]]
        assert around.contains(x, tensors["x_adv"], 100.0).all()
        assert torch.equal(tensors["x_adv"][:, 1], x[:, 1])


def test_commands_work_on_tables(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", str(run), "--radius", "--limit", "3", "--steps", "2"]) == 0
    assert cli.main(["attack", str(run), "--limit", "3", "--steps", "2"]) == 0
    assert cli.main(["predict", str(run), "test:0", "--eps", "10"]) == 0
    assert "up to radius=0.2, area=10, fractal dimension=0.0001, in" in capsys.readouterr().out
    assert cli.main(["predict", str(run), "test:0", "--eps", "radius=0.3,area=2"]) == 0
    assert "up to radius=0.3, area=2, in" in capsys.readouterr().out
    assert cli.main(["data", str(FILE)]) == 0
    assert "fractal dimension" in capsys.readouterr().out
    props = ["--vnnlib", str(tmp_path / "props"), "--limit", "1"]
    assert cli.main(["export", str(run), "--onnx", str(tmp_path / "n.onnx"), *props]) == 0
    assert cli.main(["report", str(run)]) == 0
    page = (run / "report.html").read_text("utf-8")
    assert '"features":{"names":[["radius"' in page
    assert cli.main(["compare", str(run), str(run)]) in (0, 2)


def test_radii_by_name_replace_those_of_the_training(run: Path) -> None:
    opened, test = advibp.open_run(run), advibp.data.load(FILE).test
    radii = {"radius": 0.5, "area": 20.0}
    predicted = opened.predict(test.x[:20], eps=radii)
    proved = {record.index for record in opened.certify(radii, limit=20, out=None) if record.verdict == "robust"}
    assert {i for i, p in enumerate(predicted) if p.certified and p.index == test.y[i]} == proved
    attacked = opened.attack(radii, limit=20).x_adv
    changes = (attacked - test.x[:20]).abs().amax(0)
    allowed = torch.tensor([radii.get(name, 0.0) for name in advibp.data.load(FILE).feature_names])
    assert (changes <= allowed * (1 + 1e-4) + 1e-4).all()


def test_another_set_is_another_run(run: Path) -> None:
    data = advibp.data.load(FILE)
    opened = advibp.open_run(run)
    with pytest.raises(UserError, match="was started with eps_scale"):
        advibp.train(opened.net, data, recipe=opened.recipe, eps={"radius": 100.0}, out=run, resume=True)
    with pytest.raises(UserError, match="was started with input_range"):
        advibp.train(opened.net, data, recipe=opened.recipe, input_range=None, out=run, resume=True)


def test_wrong_keys_are_one_sentence(tmp_path: Path) -> None:
    data = advibp.data.load(FILE)
    net = advibp.nets.build("FC 4", data.input_shape, data.classes, seed=0)
    for options, words in (
        ({"eps": {"radios": 0.1}}, "did you mean 'radius'"),
        ({"eps": [0.1, 0.2]}, "has 2 numbers, but an input has 10"),
        ({"eps": {"radius": 0.0}}, "All radii in eps are 0"),
        ({"eps": 0.1, "flip": True}, "flip and crop augment images"),
    ):
        with pytest.raises(UserError, match=words):
            advibp.train(net, data, epochs=2, warmup_natural=0, warmup_adversarial=0, **options)  # type: ignore[arg-type]
    images = torch.rand(40, 1, 2, 2), torch.arange(40) % 2
    small = advibp.nets.build("FC 4", (1, 2, 2), 2, seed=0)
    with pytest.raises(UserError, match=r"eps is 8.0, but must be a number in \(0, 1\]"):
        advibp.train(small, advibp.data.from_tensors(*images, *images), eps=8)


def test_a_radius_for_each_pixel() -> None:
    x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
    data = advibp.data.from_tensors(x, y, x, y, validation=10)
    net = advibp.nets.build("FC 4", data.input_shape, 2, seed=0)
    radii = torch.tensor([[[0.1, 0.0], [0.2, 0.05]]])
    run = advibp.train(net, data, eps=radii, epochs=1, method="ibp", batch_size=10, ramp=0.5, warmup_natural=0)
    assert run.recipe.eps == pytest.approx(0.2)
    assert run.perturbation.scale is not None
    assert run.perturbation.scale.shape == (1, 2, 2)
    certificate = advibp.certify(net, data.test, run.recipe.eps, perturbation=run.perturbation)
    assert certificate.counts(run.recipe.eps).total() == 60


def test_the_example(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("tabular", ROOT / "examples" / "tabular.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    certificate = module.main(tmp_path / "run")
    errors = certificate.errors(certificate.eps[0])
    assert errors["standard_error"] < 0.1
    assert errors["verified_error"] < 0.15


def test_resume_with_other_names_is_refused(tmp_path: Path) -> None:
    """Radii are given by name, so other names would move them to other columns."""
    x, y = torch.rand(60, 3), torch.arange(60) % 2
    options: dict[str, object] = {"eps": {"a": 0.05}, "epochs": 2, "ramp": 1, "batch_size": 20, "out": tmp_path / "run"}
    for names in (["a", "b", "c"], ["b", "a", "c"]):
        data = advibp.data.from_tensors(x, y, x, y, feature_names=names)
        net = advibp.nets.build("FC 4", data.input_shape, 2, seed=0)
        if names[0] == "a":
            advibp.train(net, data, warmup_natural=0.5, warmup_adversarial=0, show=advibp.Silent(), **options)
            continue
        with pytest.raises(UserError, match="other names of features"):
            advibp.train(
                net, data, warmup_natural=0.5, warmup_adversarial=0, show=advibp.Silent(), resume=True, **options
            )


def test_radii_by_name_on_the_command_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["certify", str(run), "--limit", "4", "--steps", "2", "--json"]
    assert cli.main([*command, "--eps", "radius=1,area=50"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert [row["eps"] for row in facts["eps"]] == [50]
    assert cli.main([*command, "--eps", "radius=2,area=50"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert len({Path(one["records"]).parent for one in (facts, other)}) == 2
    assert Path(facts["records"]).read_text().count("\n") == 4
    again = advibp.open_run(run).certify({"radius": 1, "area": 50}, limit=4, attack=advibp.Attack(steps=2))
    assert [json.loads(line)["seconds"] for line in Path(facts["records"]).read_text().splitlines()] == [
        record.seconds for record in again
    ]
    test = advibp.data.load(FILE).test.take(4)
    expected = advibp.open_run(run).certify({"radius": 1, "area": 50}, data=test, attack=advibp.Attack(steps=2))
    assert facts["eps"][0]["verdicts"] == dict(expected.counts(50.0))
    assert cli.main(["predict", str(run), "test:0", "--eps", "radius=1,area=50", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["eps"] == 50
    files = set()
    for radii in ("radius=1,area=50", "radius=2,area=50"):
        assert cli.main(["attack", str(run), "--limit", "4", "--steps", "2", "--json", "--eps", radii]) == 0
        files.add(json.loads(capsys.readouterr().out)["eps"][0]["examples"])
    assert len(files) == 2
    assert cli.main(["predict", str(run), str(FILE)]) == 2
    assert "is not a row of the table; give test:0" in capsys.readouterr().err
    for wrong, word in ((["rdius=1"], "did you mean 'radius'?"), (["radius=1", "area=2"], "one value")):
        assert cli.main([*command, "--eps", *wrong]) == 2
        assert word in capsys.readouterr().err


def test_reordered_columns_are_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [line.split(",") for line in FILE.read_text().splitlines()]
    other = tmp_path / "other.csv"
    other.write_text("\n".join(",".join([row[1], row[0], *row[2:]]) for row in rows) + "\n")
    assert cli.main(["certify", str(run), "--data", str(other)]) == 2
    message = capsys.readouterr().err
    assert "another order: column 1 is 'texture', but the network expects 'radius'" in " ".join(message.split())
    with pytest.raises(UserError, match="another order"):
        advibp.open_run(run).certify(data=advibp.data.load(other).test)
    renamed = tmp_path / "renamed.csv"
    renamed.write_text("\n".join(",".join(["size" if n == "radius" else n for n in row]) for row in rows) + "\n")
    assert cli.main(["certify", str(run), "--data", str(renamed)]) == 2
    assert "rename or add radius" in " ".join(capsys.readouterr().err.split())


def test_columns_that_are_called_like_unnamed_ones() -> None:
    check_features(["a", "b"], ["x0", "x1"], "table")  # an array has these names
    check_features(["x0", "x1"], ["a", "b"], "table")
    with pytest.raises(UserError, match="another order: column 1 is 'x1', but the network expects 'x0'"):
        check_features(["x0", "x1", "x2"], ["x1", "x0", "x2"], "table")
