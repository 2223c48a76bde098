"""Images and labels: what is read is what was written, and every damaged input is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import pickle
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from samples import Array, Trap, arrays, idx, refused, write_folder

from advibp import data
from advibp.data.formats import idx as idx_files
from advibp.errors import UserError

in_fresh_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


# What is read is what was written.


@in_fresh_folder
@given(
    x=hnp.arrays(np.uint8, hnp.array_shapes(min_dims=3, max_dims=3, min_side=2, max_side=6)),
    dash=st.sampled_from("-."),
    packed=st.booleans(),
)
def test_idx_folder_round_trip(tmp_path_factory: pytest.TempPathFactory, x: Array, dash: str, packed: bool) -> None:
    folder = tmp_path_factory.mktemp("idx")
    y = np.arange(len(x)) % 2
    write_folder(folder, {"x_train": x, "y_train": y, "x_test": x, "y_test": y}, dash, packed)
    read = data.load(folder, validation=0)
    assert read.input_shape == (1, *x.shape[1:])
    torch.testing.assert_close(read.test.x[:, 0], torch.tensor(x).float() / 255, rtol=0, atol=0)
    assert read.test.y.tolist() == y.tolist()


@pytest.mark.parametrize("shape", [(5, 6), (5, 6, 3), (5, 6, 1), (3, 5, 6), (1, 5, 6)])
def test_npz_layouts(tmp_path: Path, shape: tuple[int, ...]) -> None:
    parts = arrays(shape=shape)
    np.savez_compressed(tmp_path / "mine.npz", **parts)
    read = data.load(tmp_path / "mine.npz", validation=2)
    x = parts["x_test"]
    expected = x[:, None] if x.ndim == 3 else x if shape[0] in (1, 3) else x.transpose(0, 3, 1, 2)
    assert read.name == "mine"
    assert read.test.x.is_contiguous()
    assert torch.equal(read.test.x, torch.tensor(np.ascontiguousarray(expected)).float() / 255)


@given(hnp.arrays(np.float32, (6, 2, 3, 4), elements=st.floats(0, 1, width=32)))
def test_floats_pass_unchanged_and_are_copied(x: Array) -> None:
    tensor = torch.tensor(x)
    y = torch.tensor([0, 1, 2, 0, 1, 2])
    read = data.from_tensors(tensor, y, tensor, y, validation=0)
    before = read.test.x.clone()
    assert torch.equal(before, tensor)
    tensor.fill_(0.5)
    assert torch.equal(read.test.x, before)


@given(st.integers(2, 40), st.data())
def test_splits_part_the_training_set(n: int, draw: st.DataObject) -> None:
    validation = draw.draw(st.integers(0, n - 1))
    limit = draw.draw(st.none() | st.integers(1, n + 5))
    x = np.linspace(0, 1, n, dtype=np.float32)[:, None, None]
    y = np.arange(n)
    read = data.from_tensors(x, y, x[:2], y[:2], validation=validation, limit=limit)
    train, held = set(read.train.y.tolist()), set(read.validation.y.tolist())
    assert not train & held
    assert len(held) == len(read.validation) == validation
    assert len(train) == len(read.train) == min(n - validation, limit or n)
    for split in (read.train, read.validation):
        assert torch.equal(split.x.flatten(), torch.tensor(x.flatten())[split.y])


@given(st.integers(1, 19), st.integers(1, 19))
def test_limit_changes_neither_the_validation_set_nor_the_order(one: int, other: int) -> None:
    parts = arrays()
    a, b = (data.from_tensors(**parts, validation=1, limit=n) for n in sorted((one, other)))
    assert torch.equal(a.validation.x, b.validation.x)
    assert torch.equal(a.train.x, b.train.x[: len(a.train)])


def test_split_does_not_hang_on_any_seed() -> None:
    parts = arrays()
    torch.manual_seed(1)
    np.random.seed(1)
    first = data.from_tensors(**parts, validation=5)
    torch.manual_seed(2)
    np.random.seed(2)
    assert torch.equal(first.train.x, data.from_tensors(**parts, validation=5).train.x)


@given(hnp.arrays(np.uint8, (7, 3, 2, 2)))
def test_statistics_are_the_populations(x: Array) -> None:
    y = np.arange(7)
    read = data.from_tensors(x, y, x, y, validation=0)
    exact = x.astype(np.float64) / 255
    assert read.mean == pytest.approx(exact.mean(axis=(0, 2, 3)), abs=1e-6)
    assert read.std == pytest.approx(exact.std(axis=(0, 2, 3)), abs=1e-6)


def test_take() -> None:
    split = data.from_tensors(**arrays(), validation=0).test
    assert len(split.take(4)) == 4
    assert len(split.take(100)) == 6
    assert len(split.take(0)) == 0
    refused(lambda: split.take(-1), "-1")


def test_classes_may_be_stated() -> None:
    assert data.from_tensors(**arrays(), validation=0).classes == 3
    assert data.from_tensors(**arrays(), validation=0, classes=10).classes == 10


def test_mnist_is_whole_and_quick() -> None:
    start = time.process_time()
    mnist = data.load("mnist")
    assert time.process_time() - start < 5  # a quarter of a second on an idle core
    assert (len(mnist.train), len(mnist.validation), len(mnist.test)) == (59_000, 1_000, 10_000)
    assert (mnist.name, mnist.input_shape, mnist.classes) == ("mnist", (1, 28, 28), 10)
    assert mnist.train.x.dtype == torch.float32
    assert mnist.train.y.dtype == torch.int64
    assert mnist.mean == pytest.approx((0.1307,), abs=2e-4)
    assert mnist.std == pytest.approx((0.3081,), abs=2e-4)
    assert mnist.test.y[:5].tolist() == [7, 2, 1, 0, 4]
    assert mnist.test.x.min() == 0
    assert mnist.test.x.max() == 1
    # Shuffled, not sorted: each class has its fair share of the validation set.
    assert torch.bincount(mnist.validation.y, minlength=10).min() > 50


# Damaged idx files.

IMAGES = idx(arrays()["x_train"])
LABELS = idx(arrays()["y_train"])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "truncated within"),
        (IMAGES[:3], "truncated within"),
        (IMAGES[:9], "truncated within"),
        (IMAGES[:-1], "states 400 bytes"),
        (IMAGES + b"\0", "holds more than the 400 bytes"),
        (LABELS, "00000801 where 00000803 was expected"),
        (b"\x00\x00\x0d\x03" + IMAGES[4:], "00000d03"),
        (b"PNG!" + IMAGES[4:], "504e4721"),
        (struct.pack(">4I", 0x803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "truncated"),
        (struct.pack(">4I", 0x803, 0, 5, 4), "shape (0, 5, 4)"),
        (idx(arrays(train=19)["x_train"]), "20 labels for 19 images"),
        (idx(arrays(shape=(6, 4))["x_train"]), "differ in shape"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_damaged_images(tmp_path: Path, body: bytes, said: str, packed: bool) -> None:
    write_folder(tmp_path, arrays(), packed=packed)
    name = "train-images-idx3-ubyte" + (".gz" if packed else "")
    (tmp_path / name).write_bytes(gzip.compress(body) if packed else body)
    refused(lambda: data.load(tmp_path, validation=0), said, str(tmp_path))


@pytest.mark.parametrize("damage", ["cut", "checksum", "no gzip", "empty"])
def test_damaged_gzip(tmp_path: Path, damage: str) -> None:
    write_folder(tmp_path, arrays())
    file = tmp_path / "train-images-idx3-ubyte.gz"
    whole = file.read_bytes()
    bodies = {"cut": whole[:-20], "checksum": whole[:-8] + bytes(4) + whole[-4:], "no gzip": IMAGES, "empty": b""}
    file.write_bytes(bodies[damage])
    refused(lambda: data.load(tmp_path, validation=0), str(file))


def test_a_bomb_is_refused_unread(tmp_path: Path) -> None:
    write_folder(tmp_path, arrays())
    file = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(file, "wb", compresslevel=9) as stream:
        stream.write(IMAGES)
        for _ in range(64):
            stream.write(bytes(2**20))
    tracemalloc.start()
    try:
        refused(lambda: data.load(tmp_path), str(file), "holds more than the 400 bytes")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", [False, True])
def test_a_false_promise_allocates_nothing(tmp_path: Path, packed: bool) -> None:
    write_folder(tmp_path, arrays(), packed=packed)
    file = tmp_path / ("train-images-idx3-ubyte" + (".gz" if packed else ""))
    body = struct.pack(">4I", 0x803, 2**20, 2**5, 2**5) + bytes(100)  # promises a gigabyte
    file.write_bytes(gzip.compress(body) if packed else body)
    tracemalloc.start()
    try:
        refused(lambda: data.load(tmp_path), str(file), "truncated")
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@in_fresh_folder
@given(position=st.integers(0, 10**6), byte=st.integers(0, 255), part=st.sampled_from(data.PARTS), packed=st.booleans())
def test_a_changed_byte_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, byte: int, part: str, packed: bool
) -> None:
    folder = tmp_path_factory.mktemp("idx")
    write_folder(folder, arrays(), packed=packed)
    file = folder / idx_files.find(folder, part).name
    body = bytearray(file.read_bytes())
    body[position % len(body)] = byte
    file.write_bytes(body)
    read_or_refused(folder)


def read_or_refused(source: Path) -> None:
    message = ""
    try:
        x = data.load(source, validation=0).train.x
        assert 0 <= x.min() <= x.max() <= 1
    except UserError as error:
        message = str(error)
    assert "\n" not in message


def test_missing_idx_file(tmp_path: Path) -> None:
    write_folder(tmp_path, arrays())
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    refused(lambda: data.load(tmp_path), "t10k-labels-idx1-ubyte", str(tmp_path))


# Damaged npz files.


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x_train": None}, "lacks x_train"),
        ({"y_train": None, "y_test": None}, "lacks y_train, y_test"),
        ({"x_train": np.array([{"a": 1}] * 20, dtype=object)}, "pickled"),
        ({"x_train": np.full((20, 5, 4), np.nan)}, "NaN"),
        ({"x_train": np.full((20, 5, 4), np.inf)}, "infinite"),
        ({"x_train": np.full((20, 5, 4), 1.5)}, "scale them to [0, 1]"),
        ({"x_train": np.full((20, 5, 4), -0.1)}, "from -0.1"),
        ({"x_train": np.zeros((20, 5, 4), dtype=np.int64)}, "type int64"),
        ({"x_train": np.zeros((20, 5, 4), dtype=bool)}, "type bool"),
        ({"x_train": np.array(["a"] * 20)}, "shape (20,)"),
        ({"x_train": np.zeros((20, 5), dtype=np.uint8)}, "(5,) for training"),
        ({"x_train": np.zeros((20, 1, 5, 4, 1), dtype=np.uint8)}, "shape (20, 1, 5, 4, 1)"),
        ({"x_train": np.zeros((20, 5, 6, 7), dtype=np.uint8)}, "neither axis 1 nor axis 3"),
        ({"x_train": np.zeros((0, 5, 4), dtype=np.uint8)}, "shape (0, 5, 4)"),
        ({"x_test": np.zeros((6, 9, 9), dtype=np.uint8)}, "differ in shape"),
        ({"y_train": np.arange(20) - 1}, "from -1 to 18"),
        ({"y_train": np.arange(20) * 0.5}, "type float64"),
        ({"y_train": np.arange(19)}, "19 labels for 20 images"),
        ({"y_train": np.arange(20)[:, None]}, "shape (20, 1)"),
        ({"y_test": np.full(6, 2**63, dtype=np.uint64)}, "9223372036854775808"),
        ({"y_train": np.zeros(20, dtype=int), "y_test": np.zeros(6, dtype=int)}, "single class"),
    ],
)
def test_bad_npz(tmp_path: Path, change: dict[str, Array | None], said: str) -> None:
    parts = {part: values for part, values in (arrays() | change).items() if values is not None}
    np.savez(tmp_path / "bad.npz", **parts)
    refused(lambda: data.load(tmp_path / "bad.npz", validation=0), said, "bad.npz")


def test_files_that_are_no_npz(tmp_path: Path) -> None:
    npy = io.BytesIO()
    np.save(npy, np.zeros(3))
    for body in (b"", b"hello", b"PK\x03\x04 and no more", pickle.dumps([1, 2]), npy.getvalue()):
        (tmp_path / "bad.npz").write_bytes(body)
        refused(lambda: data.load(tmp_path / "bad.npz"), "bad.npz")


def test_pickle_in_npz_is_never_run(tmp_path: Path) -> None:
    np.savez(
        tmp_path / "trap.npz", **(arrays() | {"y_train": np.array([Trap(tmp_path / "sprung")] * 20, dtype=object)})
    )
    refused(lambda: data.load(tmp_path / "trap.npz"), "pickled", "y_train")
    assert not (tmp_path / "sprung").exists()


@in_fresh_folder
@given(position=st.integers(0, 10**6), bytes_=st.binary(min_size=1, max_size=4))
def test_changed_npz_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, position: int, bytes_: bytes
) -> None:
    file = tmp_path_factory.mktemp("npz") / "changed.npz"
    np.savez_compressed(file, **arrays())
    body = bytearray(file.read_bytes())
    position %= len(body)
    body[position : position + len(bytes_)] = bytes_
    file.write_bytes(body)
    read_or_refused(file)


# What cannot be found, and options that cannot be met.


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("mnits", "did you mean 'mnist'"),
        ("imagenet", "Unknown data set 'imagenet'"),
        ("no/such/folder", "There is no file or folder"),
        ("nothing.npz", "There is no file or folder nothing.npz"),
        ("x" * 5000, "Unknown data set"),
        ("a\0b", "Unknown data set"),
        ("", "train-images-idx3-ubyte"),
        (__file__, "ends in .npz"),
        (Path("mnist"), "There is no file or folder mnist"),
    ],
)
def test_unknown_source(source: str | Path, said: str) -> None:
    refused(lambda: data.load(source), said)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"validation": 20}, "validation is 20; expected auto, or 0 to 19"),
        ({"validation": -1}, "validation is -1"),
        ({"validation": 0.5}, "validation is 0.5"),
        ({"limit": 0}, "limit is 0"),
        ({"limit": -3}, "limit is -3"),
        ({"limit": 2.5}, "limit is 2.5"),
        ({"classes": 2}, "labels up to 2"),
        ({"x_train": [[1, 2], [3]]}, "x_train of tensors cannot be converted to an array"),
        ({"x_train": torch.zeros(20, 5, 4, 1, 1)}, "shape (20, 5, 4, 1, 1)"),
        ({"x_train": torch.full((20, 5, 4), 2.0, dtype=torch.bfloat16)}, "from 2 to 2"),
        ({"y_train": torch.zeros(20)}, "expected labels as integers"),
        ({"x_train": torch.zeros(20, 5, 4).to_sparse()}, "dense"),
    ],
)
def test_bad_options(options: dict[str, Any], said: str) -> None:
    refused(lambda: data.from_tensors(**({"validation": 0} | arrays() | options)), said)
