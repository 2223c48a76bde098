"""One set, real MNIST, by every path: idx, npz, PNG files, a Dataset, a DataLoader give the same tensors."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from samples import Array, refused, write_folder
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import advibp
from advibp import data
from advibp.data import Data, Lazy, Loader, Split
from advibp.data.formats import idx

TRAIN, TEST, HELD = 600, 120, 100


@pytest.fixture(scope="module")
def parts() -> dict[str, Array]:
    """The first images of MNIST, as bytes."""
    whole = idx.read_folder(Path(advibp.__file__).parent / "data" / "mnist")
    return {part: values[: TRAIN if part.endswith("train") else TEST] for part, values in whole.items()}


@pytest.fixture(scope="module")
def expected(parts: dict[str, Array]) -> Data:
    return data.from_tensors(**parts, validation=HELD)


def everything(images: Split | Lazy | Loader) -> tuple[Tensor, Tensor]:
    if isinstance(images, Loader):
        x, y = zip(*images.batches(0), strict=True)
        return torch.cat(x), torch.cat(y)
    return images.batch(torch.arange(len(images)))


def same(found: Data, expected: Data) -> None:
    for part in ("train", "validation", "test"):
        for mine, theirs in zip(everything(getattr(found, part)), everything(getattr(expected, part)), strict=True):
            assert mine.dtype == theirs.dtype
            assert torch.equal(mine, theirs)
    assert (found.classes, found.input_shape) == (10, (1, 28, 28))
    assert (found.mean, found.std) == (expected.mean, expected.std)


def write_images(folder: Path, parts: dict[str, Array], by_class: bool) -> None:
    folder.mkdir(exist_ok=True)
    for part in ("train", "test"):
        lines = ["path,label"]
        for number, (pixels, label) in enumerate(zip(parts[f"x_{part}"], parts[f"y_{part}"], strict=True)):
            file = folder / part / (str(label) if by_class else "all") / f"{number:05d}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(file)
            lines.append(f"{file.relative_to(folder).as_posix()},{label}")
        if not by_class:
            (folder / f"{part}.csv").write_text("\n".join(lines))


def test_idx(tmp_path: Path, parts: dict[str, Array], expected: Data) -> None:
    write_folder(tmp_path, parts)
    same(data.load(tmp_path, validation=HELD), expected)


@pytest.mark.parametrize("as_floats", [False, True])
def test_npz(tmp_path: Path, parts: dict[str, Array], expected: Data, as_floats: bool) -> None:
    kept = {p: v.astype(np.float32) / np.float32(255) if as_floats and p[0] == "x" else v for p, v in parts.items()}
    np.savez_compressed(tmp_path / "mnist.npz", **kept)
    same(data.load(tmp_path / "mnist.npz", validation=HELD), expected)


def test_images_in_a_table(tmp_path: Path, parts: dict[str, Array], expected: Data) -> None:
    write_images(tmp_path, parts, by_class=False)
    same(data.load(tmp_path, validation=HELD), expected)


def test_images_in_class_folders(tmp_path: Path, parts: dict[str, Array]) -> None:
    write_images(tmp_path, parts, by_class=True)
    found = data.load(tmp_path, validation=0)
    order = np.argsort(parts["y_test"], kind="stable")  # by class, and by name within one
    x, y = everything(found.test)
    assert torch.equal(y, torch.tensor(parts["y_test"][order]).long())
    assert torch.equal(x[:, 0], torch.tensor(parts["x_test"][order]).float() / 255)
    assert found.class_names == tuple("0123456789")


@pytest.mark.parametrize("workers", [0, 2])
def test_datasets(parts: dict[str, Array], expected: Data, workers: int) -> None:
    train, test = (
        TensorDataset(torch.tensor(parts[f"x_{p}"]), torch.tensor(parts[f"y_{p}"])) for p in ("train", "test")
    )
    found = data.from_datasets(train, test, validation=HELD, workers=workers)
    assert isinstance(found.train, Lazy)
    same(found, expected)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders(expected: Data, workers: int) -> None:
    assert isinstance(expected.train, Split)
    assert isinstance(expected.test, Split)
    train, test = (
        DataLoader(TensorDataset(split.x, split.y), 64, num_workers=workers)
        for split in (expected.train, expected.test)
    )
    found = data.from_datasets(train, test, validation=expected.validation)
    assert isinstance(found.train, Loader)
    same(found, expected)


# By name.


@pytest.mark.parametrize("name", [name for name in data.NAMES if name != "mnist"])
def test_names_are_looked_for_under_the_root(tmp_path: Path, name: str) -> None:
    refused(lambda: data.load(name, root=tmp_path, fetch=False), f"advibp data fetch {name}", str(tmp_path))


def test_gtsrb_by_name_has_one_size(tmp_path: Path) -> None:
    folder = tmp_path / "gtsrb"
    for label in range(2):
        for number in range(2):
            file = folder / "train" / f"{label:05d}" / f"{number}.ppm"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20 + number, 30 + label)).save(file)
    (folder / "test").mkdir()
    Image.new("RGB", (50, 50)).save(folder / "test" / "00000.ppm")
    (folder / "test" / "GT-final_test.csv").write_text("Filename;ClassId\n00000.ppm;1\n")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n" for path in files
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))
    assert data.load("gtsrb", root=tmp_path, fetch=False, validation=0).input_shape == (3, 32, 32)
    assert data.load("gtsrb", root=tmp_path, fetch=False, validation=0, size=16).input_shape == (3, 16, 16)
