"""SVHN: the published files are read by scipy, and all other files are refused without being parsed."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from samples import Array, refused

from advibp import data
from advibp.data.fetch import known_sets
from advibp.data.fetch.known_sets import File


def images(count: int, seed: int) -> dict[str, Array]:
    x = np.random.RandomState(seed).randint(0, 256, (32, 32, 3, count)).astype(np.uint8)
    return {"X": x, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with 30 training and 20 test images, whose checksums replace the published ones."""
    files = []
    for name, count in [("train_32x32.mat", 30), ("test_32x32.mat", 20)]:
        scipy.io.savemat(tmp_path / name, images(count, seed=count), do_compression=True)
        content = (tmp_path / name).read_bytes()
        files.append(File(name, len(content), f"sha256:{hashlib.sha256(content).hexdigest()}"))
    monkeypatch.setattr(known_sets, "SVHN_FILES", tuple(files))
    return tmp_path


def test_images_and_labels(folder: Path) -> None:
    loaded = data.load(folder, validation=5)
    expected = images(20, seed=20)
    assert (len(loaded.train), loaded.classes, loaded.input_shape) == (25, 10, (3, 32, 32))
    assert torch.equal(loaded.test.x, torch.tensor(expected["X"].transpose(3, 2, 0, 1)).float() / 255)
    assert loaded.test.y.tolist() == [digit % 10 for digit in expected["y"][:, 0].tolist()]  # 10 means 0
    refused(lambda: data.load(folder, size=16), "size is 16")


def test_a_missing_file(folder: Path) -> None:
    (folder / "train_32x32.mat").unlink()
    refused(lambda: data.load(folder), "no file train_32x32.mat")


@pytest.mark.parametrize("name", ["train_32x32.mat", "test_32x32.mat"])
@pytest.mark.parametrize("change", ["bit", "truncated", "longer", "empty"])
def test_modified_files_are_not_parsed(folder: Path, name: str, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (folder / name).read_bytes()
    changed = {
        "bit": content[:200] + bytes([content[200] ^ 1]) + content[201:],
        "truncated": content[:-1],
        "longer": content + b"\0",
        "empty": b"",
    }
    (folder / name).write_bytes(changed[change])
    loadmat, parsed = scipy.io.loadmat, []
    monkeypatch.setattr(scipy.io, "loadmat", lambda file, **_: parsed.append(file.getvalue()) or loadmat(file, **_))
    refused(lambda: data.load(folder), f"{name} is not the published SVHN file", "advibp data fetch svhn", ".npz")
    assert changed[change] not in parsed


def test_without_scipy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.io", None)
    refused(lambda: data.load(folder), "pip install 'advibp[svhn]'")
