"""Sweeps: combinations, reused runs, interrupted sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Stop, StopAt, halves

from advibp import cli
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.runs import first_net
from advibp.runs.estimate import estimate_seconds, shorten
from advibp.runs.fitting_verifiers import CHEAP
from advibp.runs.sweep import SAMPLE, Evaluation, Sweep, choose_verifiers, combinations, run_name, sweep
from advibp.runs.sweep_table import COLUMNS, markdown, table
from advibp.runs.training_display import Silent
from advibp.verify import Attack

BASE: dict[str, Any] = {
    "net": "FC 8",
    "epochs": 3,
    "batch_size": 20,
    "eps": 0.1,
    "ramp": 1,
    "warmup_natural": 0,
    "warmup_adversarial": 0,
}
VALIDATION = ("validation: standard", "validation: verified")
LOOK = Evaluation(eps=(0.05, 0.1), by=("ibp", "crown"), attack=Attack(steps=3))


def run(out: Path, changes: list[dict[str, Any]], shown: Silent | None = None, **more: Any) -> list[dict[str, Any]]:
    data = halves()
    settings = Sweep(out=out, load=lambda recipe: data, evaluation=LOOK, show=lambda name: shown or Silent())
    return sweep(settings, [(change, Recipe.load(**{**BASE, **more, **change})) for change in changes])


@given(st.dictionaries(st.sampled_from(["lr", "seed", "eps"]), st.lists(st.integers(1, 9), min_size=1, max_size=3)))
def test_combinations(vary: dict[str, list[int]]) -> None:
    every = combinations(vary)
    count = 1
    for values in vary.values():
        count *= len(values)
    assert len(every) == count
    assert all(set(change) == set(vary) for change in every)
    alone = combinations(vary, one_by_one=True)
    assert alone[0] == {}
    assert len(alone) == 1 + sum(map(len, vary.values()))
    assert all(len(change) == 1 for change in alone[1:])


def test_run_names() -> None:
    assert run_name({}) == "base"
    assert run_name({"method": "advibp", "lr": 0.1}) == "advibp-lr-0.1"
    assert "/" not in run_name({"weights": "a/b c"})


def test_sweep_writes_a_table_and_continues(tmp_path: Path) -> None:
    changes = combinations({"method": ["standard", "advibp"], "seed": [0, 1]})
    with pytest.raises(Stop):
        run(tmp_path, changes, StopAt(epoch=2))
    assert (tmp_path / "standard-seed-0" / "recipe.yaml").exists()
    rows = run(tmp_path, changes)
    assert [row["name"] for row in rows] == [f"{m}-seed-{s}" for m in ("standard", "advibp") for s in (0, 1)]
    assert json.loads((tmp_path / "sweep.json").read_text())["rows"] == json.loads(json.dumps(rows))
    for row in rows:
        for percent in row["percent"].values():
            errors = [round(percent[key], 9) for key in ("standard", "PGD", "verified (best)", "verified (IBP)")]
            assert errors == sorted(errors)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")}
    assert len(times) == 4
    assert run(tmp_path, changes) == rows
    assert {p: p.stat().st_mtime_ns for p in tmp_path.rglob("model.safetensors")} == times  # nothing trained again
    head, *body = table(rows)
    assert set(head) == {"method", "seed", "test eps", "images", "best of", *COLUMNS, *VALIDATION}
    assert {row[head.index("best of")] for row in body} == {"IBP, CROWN"}
    assert len(body) == 8
    assert markdown(table(rows)).count("\n") == 10


def test_split_of_the_evaluation(tmp_path: Path) -> None:
    data = halves()
    for split, images in (("test", data.test), ("validation", data.validation)):
        look = Evaluation(eps=(0.1,), attack=Attack(steps=2), split=split)
        recipe = Recipe.load(**BASE)
        rows = sweep(Sweep(out=tmp_path / split, load=lambda recipe: data, evaluation=look), [({}, recipe)])
        folder = tmp_path / split / "base"
        for name, certified in (("certify", data.test), ("certify-validation", data.validation)):
            if split == "test" or name == "certify-validation":
                assert len((folder / name / "records.jsonl").read_text().splitlines()) == len(certified.y)
        assert (folder / "certify").exists() == (split == "test")
        assert len(images.y) == rows[0]["images"]
        assert ("percent" in rows[0], "validation" in rows[0]) == (True, True)


def test_networks_that_ibp_does_not_prove_get_other_verifiers(tmp_path: Path) -> None:
    data = halves()
    look = Evaluation(attack=Attack(steps=2))
    recipes = [({"method": m}, Recipe.load(**{**BASE, "method": m, "eps": 0.02})) for m in ("ibp", "mip", "standard")]
    settings = Sweep(out=tmp_path, load=lambda recipe: data, evaluation=look)
    assert [one.by for one in choose_verifiers(settings, [recipes[0][1]] * 2)] == [("ibp",)] * 2
    chosen = choose_verifiers(settings, [recipe for _, recipe in recipes])
    assert [one.by for one in chosen] == [(*CHEAP,), (*CHEAP, "alpha-crown"), (*CHEAP,)]
    assert {one.sample for one in chosen} == {SAMPLE}
    rows = sweep(settings, recipes)
    head, *body = table(rows)
    assert [row[head.index("best of")] for row in body] == [
        "IBP, CROWN-IBP, CROWN", "IBP, CROWN-IBP, CROWN, alpha-CROWN", "IBP, CROWN-IBP, CROWN"
    ]  # fmt: skip
    for row in rows:
        for errors in (row["percent"], row["validation"]):
            assert errors["0.02"]["verified (best)"] <= errors["0.02"]["verified (IBP)"]


def test_run_with_other_options_is_not_reused(tmp_path: Path) -> None:
    run(tmp_path, [{"seed": 0}])
    (row,) = run(tmp_path, [{"seed": 0}], lr=0.1)
    assert "was started with lr = 0.002, not 0.1" in row["failed"]


def test_failed_run_has_a_row_with_the_reason(tmp_path: Path) -> None:
    rows = run(tmp_path, [{"lr": 1e9, "max_loss": 1e-3}, {"lr": 0.01}])
    assert "diverged" in rows[0]["failed"]
    assert "percent" in rows[1]
    assert any("diverged" in cell for cell in table(rows)[1])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_timed_and_fitted(method: str) -> None:
    recipe = Recipe.load(method=method, net="Conv 3 2x2+1, FC 8", epochs=50, batch_size=20, stage_epochs=20)
    data = halves()
    net = first_net(recipe, data)
    seconds = estimate_seconds(net, data, recipe)
    assert 0 < seconds < 600
    half = shorten(recipe, seconds / 2, seconds)
    assert half.epochs == 25
    assert half.stage_epochs == 10
    assert shorten(recipe, 2 * seconds, seconds) == recipe


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    common = (
        "sweep mnist --limit 300 --epochs 3 --warmup-natural 0 --ramp 1 --sample 20 --test-attack-steps 2 --threads 1"
    )
    words = [*common.split()[:2], "FC 8", *common.split()[2:], "--eps", "0.1", "--vary", "method=ibp,fixed"]
    assert cli.main([*words, "--warmup-adversarial", "0", "--out", "two"]) == 0
    said = capsys.readouterr().out
    assert "1 of 2: ibp" in said
    assert (tmp_path / "two" / "table.md").read_text().count("| ") > 10
    assert "has the lowest verified error on validation images" in said
    for bad, why in (
        ("lr", "has no values"),
        ("lr=", "has no values"),
        ("lrs=1", "did you mean lr"),
        ("eps=2", "eps"),
    ):
        assert cli.main(["sweep", "mnist", "FC 8", "--vary", bad]) == 2
        assert why in capsys.readouterr().err
    for more in (["--minutes", "0"], ["--by", "nobody"], ["--test-eps", "7"], ["--vary", "seed=2"]):
        assert cli.main(["sweep", "mnist", "FC 8", "--vary", "seed=1", *more]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_vary_data_methods_and_networks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Including the user's own methods and networks."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "from advibp import Method, objectives\n"
        "BOTH = Method(description='both', lower=objectives.regular, upper=objectives.ibp, recipe={'lr': 0.5})\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(784, 8), nn.ReLU(), nn.Linear(8, 10))\n"
    )
    common = "--epochs 2 --warmup-natural 0 --warmup-adversarial 0 --ramp 1 --threads 1 --eps 0.1"
    common += " --sample 10 --test-attack-steps 2"
    words = ["sweep", "mnist", "mine.py:make", *common.split(), "--validation", "20"]
    words += ["--vary", "limit=100,200", "--vary", "method=ibp,mine.py:BOTH", "--batch-size", "50"]
    assert cli.main(words) == 0
    rows = json.loads((tmp_path / "runs" / "sweep" / "sweep.json").read_text())["rows"]
    assert [row["recipe"]["limit"] for row in rows] == [100, 100, 200, 200]
    assert [row["recipe"]["lr"] for row in rows] == [0.002, 0.5, 0.002, 0.5]
    steps = [json.loads(line)["steps"] for f in tmp_path.rglob("metrics.jsonl") for line in f.open()]
    assert sorted(set(steps)) == [2, 4]
    (tmp_path / "evil.yaml").write_text("data: mnist\nnet: mine.py:make\n")
    assert cli.main(["sweep", "--recipe", "evil.yaml", "--vary", "seed=0"]) == 2
