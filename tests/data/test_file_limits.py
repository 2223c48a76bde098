"""Files that promise more than they should: refused before anything is allocated."""

from __future__ import annotations

import gzip
import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
from samples import arrays, quick_and_small, refused, write_folder

from advibp import data
from advibp.data import file_limits

GIB = 2**30


def npy_header(shape: tuple[int, ...], dtype: str = "|u1") -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def deflated(head: bytes, megabytes: int) -> bytes:
    """``head`` and zeros, packed. A block after a full flush stands alone, so one can be made and repeated."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = packer.compress(head) + packer.flush(zlib.Z_FULL_FLUSH)
    block = packer.compress(bytes(2**20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return body + block * megabytes + packer.flush()


def write_npz(file: Path, body: bytes, size: int, kind: int = zipfile.ZIP_DEFLATED) -> None:
    """x_train is ``body``, said to unpack to ``size`` bytes."""
    np.savez(file, **{part: values for part, values in arrays().items() if part != "x_train"})
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("x_train.npy", body)
        member = archive.getinfo("x_train.npy")
        member.compress_type, member.file_size = kind, size


def test_ten_gigabytes_of_zeros_in_an_npz(tmp_path: Path) -> None:
    file, head = tmp_path / "bomb.npz", npy_header((10 * 2**20, 32, 32))
    write_npz(file, deflated(head, 10 * 1024), len(head) + 10 * GIB)
    assert file.stat().st_size < 20 * 2**20
    with quick_and_small():
        refused(lambda: data.load(file), "x_train in", "bomb.npz", "more than 500 to 1")


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [
        ((10 * 2**20, 32, 32), "|u1", 2**20),  # the header promises more than the archive
        ((10, 32, 32), "|u1", 10 * GIB),  # the archive more than the header
        ((2**62, 2**62, 2**62), "<f8", 2**20),
        ((0, 2**62), "<f8", 2**20),
        ((1,), "|V1000000000", 2**20),
    ],
)
def test_promises_that_disagree(tmp_path: Path, shape: tuple[int, ...], dtype: str, size: int) -> None:
    file, head = tmp_path / "bomb.npz", npy_header(shape, dtype)
    write_npz(file, deflated(head, 64), len(head) + size)
    with quick_and_small():
        refused(lambda: data.load(file), "x_train in", "is damaged")


def test_members_packed_in_other_ways_are_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "lzma.npz", "w", zipfile.ZIP_LZMA) as archive:
        for part, values in arrays().items():
            stream = io.BytesIO()
            np.save(stream, values)
            archive.writestr(f"{part}.npy", stream.getvalue())
    refused(lambda: data.load(tmp_path / "lzma.npz"), "in a way that numpy does not use")


def test_gigabytes_of_zeros_in_an_idx_file(tmp_path: Path) -> None:
    write_folder(tmp_path, arrays())
    packed = gzip.compress(b"")[:10] + deflated(struct.pack(">4I", 0x803, 2 * 2**20, 32, 32), 2048)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(packed + bytes(8))
    with quick_and_small():
        refused(lambda: data.load(tmp_path), "train-images-idx3-ubyte.gz", "more than 500 to 1")


def test_what_does_not_fit_into_memory(tmp_path: Path) -> None:
    refused(
        lambda: file_limits.check(file_limits.memory() // 4 + 1, "It"),
        "It has",
        "GiB as float32",
        "smaller images",
    )
    file_limits.check(file_limits.memory() // 4, "It")
    # Said to be stored and not packed, so that no ratio gives it away.
    file, values = tmp_path / "large.npz", file_limits.memory() // 3 // 1024 * 1024
    head = npy_header((values // 1024, 32, 32))
    write_npz(file, head, len(head) + values, zipfile.ZIP_STORED)
    with zipfile.ZipFile(file, "a") as archive:
        archive.getinfo("x_train.npy").compress_size = len(head) + values
        archive.writestr("y", b"")  # has the directory written again
    with quick_and_small():
        refused(lambda: data.load(file), "x_train in", "GiB as float32")


def test_dense_but_modest_files_are_read(tmp_path: Path) -> None:
    parts = arrays(train=2000, shape=(32, 32))
    parts["x_train"][:] = 0
    np.savez_compressed(tmp_path / "black.npz", **parts)
    assert data.load(tmp_path / "black.npz").train.x.sum() == 0
