"""TinyImageNet as its archive is extracted: labels of the validation images, and damaged folders."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_ins import tiny_imagenet

from advibp import UserError, data


def extracted(folder: Path) -> Path:
    for name, body in tiny_imagenet().items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
    return folder


def test_the_validation_images_are_the_test_set(tmp_path: Path) -> None:
    """Also beside a folder of test images, which have no labels."""
    folder = extracted(tmp_path / "tiny-imagenet-200")
    (folder / "test" / "images").mkdir(parents=True)
    for source in (folder, tmp_path):
        loaded = data.load(source, validation=2)
        assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (6, 2, 3)
        assert loaded.class_names == ("n01", "n02")
        assert loaded.test.y.tolist() == [0, 1, 0]
        assert loaded.input_shape == (3, 8, 8)
        bright = loaded.train.x.mean((1, 2, 3)) > 0.75
        assert bright.long().tolist() == loaded.train.y.tolist()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("val_9.JPEG\tn01\t0\t0\t1\t1", "Line 4"),
        ("../../secret\tn01", "Line 4"),
        ("val_0.JPEG", "Line 4"),
        ("val_0.JPEG\tn77", "The class 'n77' of the test images"),
    ],
)
def test_bad_annotations_are_one_sentence(tmp_path: Path, line: str, said: str) -> None:
    folder = extracted(tmp_path)
    with (folder / "val" / "val_annotations.txt").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=said):
        data.load(folder)


def test_a_folder_without_training_images(tmp_path: Path) -> None:
    folder = extracted(tmp_path)
    (folder / "train").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match="no images of TinyImageNet"):
        data.load(folder)
