"""CIFAR's binary files: every byte arrives where it belongs, and pickles are not opened."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from samples import Array, Trap, refused

from advibp import data
from advibp.data.formats import cifar

SMALL = {layout: dataclasses.replace(layout, records=20, test_records=10) for layout in (cifar.TEN, cifar.HUNDRED)}


def records(count: int, layout: cifar.Layout, seed: int) -> Array:
    width = layout.label_bytes + 3072
    table = np.frombuffer(np.random.default_rng(seed).bytes(count * width), np.uint8).reshape(count, width).copy()
    table[:, : layout.label_bytes] %= 10  # coarse labels, if any, differ from the fine ones
    table[:, layout.label_bytes - 1] = np.arange(count) % layout.classes
    return table


def write(folder: Path, layout: cifar.Layout) -> list[Array]:
    folder.mkdir(exist_ok=True)
    tables = [records(layout.records, layout, seed) for seed, _ in enumerate(layout.train)]
    tables.append(records(layout.test_records, layout, 99))
    for name, table in zip((*layout.train, layout.test), tables, strict=True):
        (folder / name).write_bytes(table.tobytes())
    return tables


@pytest.mark.parametrize("whole", SMALL)
def test_round_trip(tmp_path: Path, whole: cifar.Layout) -> None:
    layout = SMALL[whole]
    *train, test = write(tmp_path, layout)
    assert cifar.recognize(tmp_path) is whole
    read = cifar.read(tmp_path, layout)
    for part, table in (("train", np.concatenate(train)), ("test", test)):
        assert read[f"y_{part}"].tolist() == table[:, layout.label_bytes - 1].tolist()
        assert read[f"x_{part}"].reshape(len(table), -1).tobytes() == table[:, layout.label_bytes :].tobytes()
    # red, green, blue, each row by row: the second row of the green plane of image 3
    assert (read["x_test"][3, 1, 1] == test[3, layout.label_bytes + 1024 + 32 :][:32]).all()


def test_whole_set_by_the_folder_it_was_unpacked_in(tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-bin"
    *_, test = write(folder, cifar.TEN)
    (tmp_path / "cifar-10-binary.tar.gz").write_bytes(b"as fetched")
    read = data.load(tmp_path, limit=100)
    assert (len(read.train), len(read.validation), len(read.test)) == (100, 1000, 10_000)
    assert (read.input_shape, read.classes, read.name) == ((3, 32, 32), 10, tmp_path.name)
    assert torch.equal(read.test.x[7].flatten(), torch.tensor(test[7, 1:]).float() / 255)
    refused(lambda: data.load(folder, size=16), "size is 16")


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda body: body[:-1], "61,459 bytes; expected 20 records of 3073, 61,460 bytes"),
        (lambda body: body + b"\0", "61,461 bytes"),
        (lambda body: b"", "0 bytes"),
        (lambda body: body[: 3073 * 4] + b"\x0a" + body[3073 * 4 + 1 :], "Record 4"),
        (lambda body: b"\xff" + body[1:], "the label 255; expected 0 to 9"),
    ],
)
def test_damaged(tmp_path: Path, damage, said: str) -> None:  # type: ignore[no-untyped-def]
    layout = SMALL[cifar.TEN]
    write(tmp_path, layout)
    file = tmp_path / "data_batch_3.bin"
    file.write_bytes(damage(file.read_bytes()))
    refused(lambda: cifar.read(tmp_path, layout), said, str(file))


def test_missing_files(tmp_path: Path) -> None:
    write(tmp_path, SMALL[cifar.TEN])
    refused(lambda: data.load(tmp_path), "data_batch_1.bin has 61,460 bytes; expected 10,000 records")
    (tmp_path / "data_batch_1.bin").unlink()
    refused(lambda: data.load(tmp_path), "no file data_batch_1.bin")
    (tmp_path / "data_batch_1.bin").mkdir()
    refused(lambda: data.load(tmp_path), "data_batch_1.bin")


@pytest.mark.parametrize("names", [(*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"), ("train", "test")])
@pytest.mark.parametrize("inside", [False, True])
def test_the_python_version_is_refused_unopened(tmp_path: Path, names: tuple[str, ...], inside: bool) -> None:
    folder = tmp_path / "cifar-10-batches-py" if inside else tmp_path
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_bytes(pickle.dumps({"data": Trap(tmp_path / "sprung")}))
    refused(lambda: data.load(tmp_path), "it is a pickle, which could run code", "advibp data fetch cifar10")
    assert not (tmp_path / "sprung").exists()
