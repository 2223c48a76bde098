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

from advibp.cli.report_command import images_of
from advibp.data import Split, load
from advibp.report import shown_images
from advibp.report.shown_images import Source, show
from advibp.runs.run_files import Certification, RunFiles, read_run


def pixels(uri: str) -> np.ndarray[Any, Any]:
    """(H, W) or (H, W, 3) in [0, 1]."""
    raw = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(raw))) / 255


def at(shown: dict[str, Any], eps: float) -> dict[str, Any]:
    return next(one for one in shown["shown"] if one["eps"] == eps)


@pytest.fixture
def run(trained: dict[str, Path]) -> RunFiles:
    return read_run(trained["first"])


@pytest.fixture(scope="module")
def mnist() -> Split:
    test = load("mnist").test
    assert isinstance(test, Split)
    return test


def test_images_with_margins_near_zero_come_first(run: RunFiles, mnist: Split) -> None:
    found = at(show([run], [Source(mnist)]), 0.05)
    assert run.last is not None
    margins = sorted(r.lower_margin for r in run.last.records if r.eps == 0.05 and r.verdict == "robust")  # type: ignore[type-var]
    assert [image["margin"] for image in found["proved"]] == margins[:12]
    left = [image["margin"] for image in found["open"]]
    assert left == sorted(left, reverse=True)
    assert all(margin <= 0 for margin in left)
    assert {image["verdict"] for image in found["open"]} == {"unknown"}


def test_pictures_are_the_test_images_and_the_counterexamples(run: RunFiles, mnist: Split) -> None:
    shown = show([run], [images_of(run)])
    found = at(shown, 0.05)
    for kind in ("proved", "broken", "open"):
        assert found[kind]
        for image in found[kind]:
            clean = pixels(shown["pictures"][image["clean"]])
            assert np.abs(clean - mnist.x[image["index"], 0].numpy()).max() < 1 / 255
            assert image["label"] == int(mnist.y[image["index"]])
    for image in found["broken"]:
        clean, changed = (pixels(shown["pictures"][image[name]]) for name in ("clean", "adversarial"))
        assert 0 < np.abs(changed - clean).max() <= 0.05 + 1 / 255
        assert image["now"] != image["label"]  # what the network says of it


def test_brighter_pixels_are_blue_and_darker_ones_orange() -> None:
    delta = torch.tensor([[[0.1, -0.1, 0.0, 0.05]]])
    brighter, darker, same, half = np.asarray(shown_images._change(delta, 0.1))[0].tolist()
    assert brighter == list(shown_images._BRIGHTER)
    assert darker == list(shown_images._DARKER)
    assert same == [255, 255, 255]
    assert half == pytest.approx([(255 + channel) / 2 for channel in shown_images._BRIGHTER], abs=1)


def test_color_images_keep_their_colors_and_large_images_are_shrunk() -> None:
    x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(0))
    shown = np.asarray(shown_images._picture(x)) / 255
    assert np.abs(shown - x.permute(1, 2, 0).numpy()).max() <= 0.5 / 255 + 1e-6
    assert shown_images._picture(torch.zeros(3, 300, 200)).size == (64, 96)
    assert shown_images._picture(torch.zeros(5, 8, 8)).mode == "L"
    assert np.asarray(shown_images._change(torch.zeros(3, 8, 8), 0.1)).max() <= 128


def test_other_images_than_those_that_were_certified_are_not_shown(run: RunFiles, mnist: Split) -> None:
    others = Split(mnist.x.flip(0), mnist.y.flip(0))
    for test, why in ((others, "not those of the run's data"), (mnist.take(5), "only 5 test images")):
        shown = show([run], [Source(test)])
        assert shown["shown"] == []
        assert [why in told["why"] for told in shown["missing"]] == [True]


def test_without_counterexamples_the_image_alone_is_shown(trained: dict[str, Path], tmp_path: Path) -> None:
    shutil.copytree(trained["first"], tmp_path / "run", ignore=shutil.ignore_patterns("counterexamples"))
    run = read_run(tmp_path / "run")
    for image in at(show([run], [images_of(run)]), 0.05)["broken"]:
        assert "clean" in image
        assert "adversarial" not in image


def test_a_record_cannot_name_a_file_outside_its_folder(run: RunFiles, mnist: Split, tmp_path: Path) -> None:
    last = run.last
    assert last is not None
    (tmp_path / "inside").mkdir()
    shutil.copytree(last.path / "counterexamples", tmp_path / "counterexamples")
    records = [
        dataclasses.replace(r, counterexample=r.counterexample and f"../{r.counterexample}") for r in last.records
    ]
    moved = Certification(tmp_path / "inside", last.summary, records, [])
    shown = show([dataclasses.replace(run, certified={None: moved})], [Source(mnist)])
    assert all("adversarial" not in image for image in at(shown, 0.05)["broken"])


def test_predictions_are_shown_only_for_the_certified_network(run: RunFiles, mnist: Split) -> None:
    def predict(x: Tensor) -> Tensor:
        raise AssertionError("asked")

    shown = show([run], [Source(mnist, (), predict, "another")])
    assert all("now" not in image for image in at(shown, 0.05)["broken"])


def test_images_fit_their_size_limit(run: RunFiles, mnist: Split, monkeypatch: pytest.MonkeyPatch) -> None:
    all_of_them = show([run], [Source(mnist)])["pictures"]
    room = sum(map(len, all_of_them)) // 2
    monkeypatch.setattr(shown_images, "_ROOM", room)
    fewer = show([run], [Source(mnist)])["pictures"]
    assert 0 < sum(map(len, fewer)) <= room
