"""Which images are shown, and that they are the right ones."""

from __future__ import annotations

import base64
import dataclasses
import io
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from advibp.cli.run_images import images_of
from advibp.data import Split, load
from advibp.report import shown_images
from advibp.report.shown_images import Missing, Place, Sheets, Source, collect, interesting_first, to_change, to_picture
from advibp.runs.run_files import Certification, RunFiles, read_run
from advibp.storage import checkpoint
from advibp.verify.records import Record


def pixels(sheets: list[dict[str, Any]], number: int) -> np.ndarray[Any, Any]:
    """(H, W) or (H, W, 3) in [0, 1]."""
    (sheet,) = [s for s in sheets if s["first"] <= number < s["first"] + s["count"]]
    raw = base64.b64decode(sheet["uri"].removeprefix("data:image/png;base64,"))
    row, column = divmod(number - sheet["first"], sheet["columns"])
    width, height = sheet["width"], sheet["height"]
    return np.asarray(Image.open(io.BytesIO(raw)))[row * height :, column * width :][:height, :width] / 255


@pytest.fixture
def run(trained: dict[str, Path]) -> RunFiles:
    return read_run(trained["first"])


@pytest.fixture(scope="module")
def mnist() -> Split:
    test = load("mnist").test
    assert isinstance(test, Split)
    return test


def records(run: RunFiles) -> list[Record]:
    assert run.last is not None
    return run.last.records


def test_pictures_are_the_test_images_and_the_counterexamples(run: RunFiles, mnist: Split) -> None:
    found = collect([run], [images_of(run)])
    assert found.total == len(found.numbers) == 60
    assert not found.missing
    for r in records(run):
        clean = pixels(found.images.sheets, found.numbers[r.image])
        assert np.abs(clean - mnist.x[r.index, 0].numpy()).max() < 1 / 255
    broken = [r for r in records(run) if r.verdict == "falsified"]
    assert broken
    assert len(found.broken) == len(broken)
    for r in broken:
        number, now = found.broken[Place(0, None, r.eps, r.index)]
        assert now is not None
        assert now != r.label  # what the network says of it
        assert run.last is not None
        file, _, row = str(r.counterexample).partition("#")
        x_adv = checkpoint.load(run.last.path / file)[0]["x_adv"][int(row), 0].numpy()
        change = (255 * pixels(found.changes.sheets, number) - 128) / 127 * r.eps
        assert np.abs(change - (x_adv - mnist.x[r.index, 0].numpy())).max() < r.eps / 127 + 1e-6


def test_interesting_images_come_first(run: RunFiles) -> None:
    assert run.last is not None
    order = interesting_first(run.last)
    assert sorted(map(id, order)) == sorted(map(id, run.last.records))
    assert {r.verdict for r in order[:8]} >= {"falsified", "misclassified", "robust"}
    margins = [r.lower_margin or 0.0 for r in order if r.verdict == "robust" and r.eps == 0.05]
    assert margins == sorted(margins)


def test_images_of_two_runs_are_stored_once(run: RunFiles, mnist: Split) -> None:
    found = collect([run, run], [Source(mnist), Source(mnist)])
    assert found.images.numbers == 60


def test_color_images_keep_their_colors_and_large_images_are_shrunk() -> None:
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    shown = np.asarray(to_picture(x)) / 255
    assert np.abs(shown - x.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6
    assert to_picture(torch.zeros(3, 300, 200)).size == (64, 96)
    assert to_picture(torch.zeros(5, 8, 8)).mode == "L"
    assert np.asarray(to_change(torch.tensor([[[-0.1, 0.0, 0.1]]]), 0.1)).tolist() == [[1, 128, 255]]


def test_sheets_hold_pictures_of_all_sizes() -> None:
    sheets = Sheets()
    pictures = [to_picture(torch.full((1, size, 4), k / 255)) for k, size in enumerate([4, 6] * 20)]
    assert sorted(sheets.add(pictures)) == list(range(40))
    numbers = sheets.add(pictures[:1])
    assert numbers == [40]
    assert pixels(sheets.sheets, 40).shape == (4, 4)


def test_other_images_than_those_that_were_certified_are_not_shown(run: RunFiles, mnist: Split) -> None:
    others = Split(mnist.x.flip(0), mnist.y.flip(0))
    for test, why in ((others, "not those of the run's data"), (mnist.take(5), "only 5 test images")):
        found = collect([run], [Source(test)])
        assert not found.numbers
        assert [why in told["why"] for told in found.missing] == [True]


def test_without_counterexamples_the_image_alone_is_shown(trained: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(trained["first"], tmp_path / "run", ignore=shutil.ignore_patterns("counterexamples"))
    run = read_run(tmp_path / "run")
    found = collect([run], [images_of(run)])
    assert len(found.numbers) == 60
    assert not found.broken


def test_a_record_cannot_name_a_file_outside_its_folder(run: RunFiles, mnist: Split, tmp_path: Path) -> None:
    last = run.last
    assert last is not None
    (tmp_path / "inside").mkdir()
    shutil.copytree(last.path / "counterexamples", tmp_path / "counterexamples")
    moved_records = [
        dataclasses.replace(r, counterexample=r.counterexample and f"../{r.counterexample}") for r in last.records
    ]
    moved = Certification(tmp_path / "inside", last.summary, moved_records, [])
    assert not collect([dataclasses.replace(run, certified={None: moved})], [Source(mnist)]).broken


def test_predictions_are_shown_only_for_the_certified_network(run: RunFiles, mnist: Split) -> None:
    def predict(x: Tensor) -> Tensor:
        raise AssertionError("asked")

    found = collect([run], [Source(mnist, (), predict, "another")])
    assert found.broken
    assert all(now is None for _, now in found.broken.values())


def test_images_are_limited_by_number_and_by_size(run: RunFiles, mnist: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (0, 7):
        found = collect([run], [Source(mnist)], count)
        assert len(found.numbers) == found.images.numbers == count
        assert found.total == 60
    monkeypatch.setattr(shown_images, "_CHUNK", 10)
    letters = collect([run], [Source(mnist)]).images.letters
    monkeypatch.setattr(shown_images, "ROOM", letters // 2)
    found = collect([run], [Source(mnist)])
    assert 0 < len(found.numbers) < 60
    assert sum(len(sheet["uri"]) for sheet in found.images.sheets) <= letters // 2
    assert len(collect([run], [Source(mnist)], "all").numbers) == 60


def test_names_of_classes_are_known_without_the_data(run: RunFiles, tmp_path: Path) -> None:
    recipe = {**run.recipe, "data": "cifar10", "data_root": str(tmp_path)}
    moved = dataclasses.replace(run, recipe=recipe, path=tmp_path / "moved")  # without the place of the data
    source = images_of(moved)
    assert isinstance(source, Missing)
    assert source.class_names[3] == "cat"
    assert collect([moved], [source]).names[0][3] == "cat"
