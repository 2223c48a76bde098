"""A dry run answers at once: it loads no data, fetches none, trains nothing and writes nothing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from commands import call, halves

from advibp.data.fetch import catalogue
from advibp.data.fetch.known_sets import ROWS, Row
from advibp.recipe import Recipe
from advibp.reproduce import PLANS
from advibp.runs import first_net
from advibp.runs.estimate import pass_seconds, placeholder_data, predict_seconds
from advibp.runs.recipe_data import load_data
from advibp.training import Training


@pytest.fixture
def no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the data in the package exist; loading, downloading and training fail."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("a dry run must not load, fetch or train")

    monkeypatch.setenv("ADVIBP_DATA", str(tmp_path / "data"))
    monkeypatch.setattr("advibp.data.load", refuse)
    monkeypatch.setattr("advibp.runs.sweep.load_data", refuse)
    monkeypatch.setattr("advibp.data.fetch.catalogue.download", refuse)
    monkeypatch.setattr(catalogue, "_fetch", refuse)
    monkeypatch.setattr(Training, "step", refuse)


def dry_run(command: str, out: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the output without line breaks."""
    assert call(f"reproduce {command} --dry-run --threads 1 --out {out}") == 0
    assert not out.exists()
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("no_data")
@pytest.mark.parametrize("name", [*PLANS, "cifar-table --scale paper", "models-table --data cifar10"])
def test_it_neither_loads_nor_fetches(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = dry_run(name, tmp_path / "out", capsys)
    hours = re.search(r"Training: about ([\d:]+) in total", printed)
    assert hours
    trains = name not in ("gradient-cases", "theory")
    assert (hours[1] != "0:00") == trains
    assert ("This prediction" in printed) == trains
    assert not (tmp_path / "data").exists()


@pytest.mark.usefixtures("no_data")
def test_data_of_unknown_size_get_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, y = halves(40, size=28)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    printed = dry_run(f"cnn-table --data {tmp_path / 'own.npz'}", tmp_path / "out", capsys)
    assert "Training: about 0:00 in total" in printed
    assert "The total excludes 4 runs" in printed
    assert printed.count("unknown") >= 4


def row(name: str) -> Row:
    return next(row for row in ROWS if row.name == name)


def test_a_stand_in_has_the_sizes_of_the_data() -> None:
    for recipe in (Recipe.load(), Recipe.load(limit=300, validation=100)):
        data, found = load_data(recipe, "mnist", recipe.limit), placeholder_data(recipe, row("mnist"))
        assert (found.input_shape, found.classes) == (data.input_shape, data.classes)
        assert [len(s) for s in (found.train, found.validation, found.test)] == [
            len(s) for s in (data.train, data.validation, data.test)
        ]
    colored = placeholder_data(Recipe.load(data="cifar10"), row("cifar10"))
    assert (colored.input_shape, len(colored.train)) == ((3, 32, 32), 49_000)
    assert colored.train.sample()["x"].untyped_storage().nbytes() < 20_000  # no memory for the images


def test_a_prediction_counts_what_is_left() -> None:
    recipe = Recipe.load(net="a", eps=0.1, epochs=10, stages=2, stage_epochs=5, threads=1)
    data = placeholder_data(recipe, row("mnist"))
    training = Training(first_net(recipe, data), data, recipe)
    assert pass_seconds(training) > 0
    left = [predict_seconds(training, 1.0, epochs) for epochs in (0, 1, 5, 10, 15, 19, 20)]
    assert left == sorted(left, reverse=True)
    assert left[-1] == 0
    assert left[3] == pytest.approx(2 * left[4])  # one of two stages is over
    per_image = 5 + 6  # forward passes of the adversarial and the IBP loss
    assert left[2] - left[3] == pytest.approx(5 * 230 * 256 * per_image)
