"""SVHN's MATLAB files: what scipy writes is read as scipy reads it, and no file makes us unpack more than it should."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from samples import Array, quick_and_small, refused

from advibp import data
from advibp.data.formats import mat
from advibp.errors import UserError

DTYPES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]


def images(count: int, seed: int = 0) -> dict[str, Array]:
    x = np.random.RandomState(seed).randint(0, 256, (32, 32, 3, count)).astype(np.uint8)
    return {"X": x, "y": (np.arange(count) % 10 + 1).astype(np.uint8)[:, None]}


def write(folder: Path, packed: bool = True, **change: Array) -> None:
    scipy.io.savemat(folder / "train_32x32.mat", images(30) | change, do_compression=packed)
    scipy.io.savemat(folder / "test_32x32.mat", images(20, 1), do_compression=packed)


@pytest.mark.parametrize("packed", [False, True])
def test_round_trip(tmp_path: Path, packed: bool) -> None:
    write(tmp_path, packed)
    read = data.load(tmp_path, validation=5)
    expected = images(20, 1)
    assert (len(read.train), read.classes, read.input_shape) == (25, 10, (3, 32, 32))
    assert torch.equal(read.test.x, torch.tensor(expected["X"].transpose(3, 2, 0, 1)).float() / 255)
    assert read.test.y.tolist() == [digit % 10 for digit in expected["y"][:, 0].tolist()]  # 10 means 0
    refused(lambda: data.load(tmp_path, size=16), "size is 16")


@given(hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=2, max_dims=4, max_side=5)), st.booleans())
def test_arrays_are_those_that_scipy_reads(tmp_path_factory: pytest.TempPathFactory, x: Array, packed: bool) -> None:
    file = tmp_path_factory.mktemp("mat") / "some.mat"
    others = {"words": "a text", "cells": np.array([1, "b"], dtype=object), "box": {"in": 1}, "maybe": np.array([True])}
    scipy.io.savemat(file, {"a": x, **others, "b": x}, do_compression=packed)
    read = mat.read(file, lambda name, shape: name in ("a", "b"))
    theirs = scipy.io.loadmat(file)
    for name in ("a", "b"):
        np.testing.assert_array_equal(read[name], theirs[name])
        assert read[name].dtype.kind == theirs[name].dtype.kind


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"X": np.zeros((32, 32, 3), np.uint8)}, "shape (32, 32, 3)"),
        ({"X": np.zeros((30, 3, 32, 32), np.uint8)}, "shape (30, 3, 32, 32)"),
        ({"X": np.zeros((32, 32, 3, 30))}, "type float64"),
        ({"X": np.zeros((32, 32, 3, 0), np.uint8)}, "30 labels for 0 images"),
        ({"X": np.zeros((32, 32, 3, 30), np.complex128)}, "no array of real numbers"),
        ({"X": np.array([["a"] * 4] * 4, dtype=object)}, "shape (4, 4)"),
        ({"y": np.zeros((30, 1))}, "other than 1 to 10"),
        ({"y": np.full((30, 1), 11)}, "other than 1 to 10"),
        ({"y": np.full((30, 1), 1.5)}, "other than 1 to 10"),
        ({"y": np.full((30, 1), np.nan)}, "other than 1 to 10"),
        ({"y": np.ones((29, 1))}, "29 labels for 30 images"),
        ({"y": np.ones((30, 2))}, "shape (30, 2)"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_contents(tmp_path: Path, change: dict[str, Array], said: str, packed: bool) -> None:
    write(tmp_path, packed, **change)
    refused(lambda: data.load(tmp_path), said, "train_32x32.mat")


def test_missing_parts(tmp_path: Path) -> None:
    write(tmp_path)
    scipy.io.savemat(tmp_path / "train_32x32.mat", {"X": images(3)["X"]})
    refused(lambda: data.load(tmp_path), "lacks y")
    (tmp_path / "train_32x32.mat").unlink()
    refused(lambda: data.load(tmp_path), "no file train_32x32.mat")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "no MATLAB 5 file"),
        (b"hello" * 100, "no MATLAB 5 file"),
        (b"\x89HDF\r\n\x1a\n".ljust(600), "MATLAB 7.3 file (HDF5)"),
        (b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(126) + b"IM" + bytes(512), "MATLAB 7.3 file (HDF5)"),
    ],
)
def test_other_files(tmp_path: Path, body: bytes, said: str) -> None:
    write(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(body)
    refused(lambda: data.load(tmp_path), said, "train_32x32.mat")


@given(
    position=st.integers(0, 10**6), change=st.binary(min_size=1, max_size=4), packed=st.booleans(), cut=st.booleans()
)
def test_changed_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, change: bytes, packed: bool, cut: bool
) -> None:
    folder = tmp_path_factory.mktemp("svhn")
    write(folder, packed)
    file = folder / "train_32x32.mat"
    body = bytearray(file.read_bytes())
    position %= len(body)
    body[position : position + len(change)] = change
    file.write_bytes(body[:position] if cut else body)
    message = ""
    try:
        data.load(folder, validation=0)
    except UserError as error:
        message = str(error)
    assert "\n" not in message


# Bombs: files made by hand, as scipy would not write them.


def element(kind: int, body: bytes) -> bytes:
    return struct.pack("<II", kind, len(body)) + body + bytes(-len(body) % 8)


def bomb(shape: tuple[int, ...], promised: int, packed: bool, blocks: int = 1) -> bytes:
    """X of this shape, with numbers of that many bytes: zeros, packed a thousand to one."""
    head = element(6, struct.pack("<II", 9, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape)) + element(1, b"X")
    array = struct.pack("<II", 14, min(len(head) + promised, 2**32 - 1)) + head + struct.pack("<II", 2, promised)
    start = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    if not packed:
        return start + array + bytes(1000)
    packer = zlib.compressobj(9)
    body = packer.compress(array) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)  # stands alone, so it can be repeated
    body += block * blocks
    return start + struct.pack("<II", 15, len(body)) + body


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("shape", "promised", "blocks"),
    [
        ((32, 32, 3, 2**20), 3 * 2**30, 1),  # three gibibytes promised, a megabyte there
        ((32, 32, 3, 2**20), 3 * 2**30, 3 * 2**10),  # and all there, in three megabytes
        ((32, 32, 3, 10), 2**31, 2**11),  # modest sizes, but two gibibytes of numbers
        ((32, 32, 3, 2**31 - 1), 100, 1),
        ((32, 32, 3, -5), 100, 1),
    ],
)
def test_bombs(tmp_path: Path, shape: tuple[int, ...], promised: int, blocks: int, packed: bool) -> None:
    write(tmp_path)
    (tmp_path / "train_32x32.mat").write_bytes(bomb(shape, promised, packed, blocks))
    with quick_and_small():
        refused(lambda: data.load(tmp_path), "train_32x32.mat")


@pytest.mark.parametrize("what", ["sizes", "name"])
def test_a_head_without_end_is_refused(tmp_path: Path, what: str) -> None:
    write(tmp_path)
    flags = element(6, struct.pack("<II", 9, 0))
    sizes = struct.pack("<II", 5, 2**30) if what == "sizes" else element(5, struct.pack("<2i", 1, 1))
    head = flags + sizes + struct.pack("<II", 1, 2**30) + bytes(2**24)
    body = zlib.compress(struct.pack("<II", 14, 2**31) + head)
    start = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x100) + b"IM"
    (tmp_path / "train_32x32.mat").write_bytes(start + struct.pack("<II", 15, len(body)) + body)
    with quick_and_small():
        refused(lambda: data.load(tmp_path), "train_32x32.mat is damaged")
