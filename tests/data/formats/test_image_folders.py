"""Folders of images: every layout gives the images that were put there, and nothing else is opened."""

from __future__ import annotations

import hashlib
import pickle
import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image
from samples import Array, Trap, quick_and_small, refused

from advibp import data
from advibp.data.formats import image_files, single_image
from advibp.errors import UserError


def save(file: Path, shape: tuple[int, ...] = (6, 5, 3)) -> Array:
    file.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.randint(0, 256, shape).astype(np.uint8)
    Image.fromarray(pixels).save(file)
    return pixels


def tree(folder: Path, classes: tuple[str, ...] = ("bee", "ant"), each: int = 4, **options: Any) -> None:
    for part in ("train", "test"):
        for name in classes:
            for number in range(each):
                save(folder / part / name / f"{number}.png", **options)


def as_tensor(pixels: Array) -> torch.Tensor:
    x = torch.tensor(pixels).float() / 255
    return x[None] if x.dim() == 2 else x.permute(2, 0, 1)


# Layouts.


@pytest.mark.parametrize("suffix", [".png", ".PNG", ".ppm", ".bmp"])
@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 3)])
def test_lossless_files_arrive_unchanged(tmp_path: Path, suffix: str, shape: tuple[int, ...]) -> None:
    suffix = ".pgm" if suffix == ".ppm" and len(shape) == 2 else suffix
    expected = []
    for part in ("train", "test"):
        for label, name in enumerate(("ant", "bee")):
            for number in range(3):
                pixels = save(tmp_path / part / name / f"{number}{suffix}", shape)
                expected += [(label, pixels)] if part == "test" else []
    read = data.load(tmp_path, validation=2)
    assert read.class_names == ("ant", "bee")
    assert (read.classes, len(read.train), len(read.test)) == (2, 4, 6)
    assert read.test.y.tolist() == [label for label, _ in expected]
    assert torch.equal(read.test.x, torch.stack([as_tensor(pixels) for _, pixels in expected]))


def test_jpeg_is_what_pil_makes_of_it(tmp_path: Path) -> None:
    tree(tmp_path)
    save(tmp_path / "test" / "ant" / "0.jpeg")
    read = data.load(tmp_path, validation=0)
    assert torch.equal(read.test.x[0], as_tensor(np.asarray(Image.open(tmp_path / "test" / "ant" / "0.jpeg"))))


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (("10", "9", "0"), ("0", "9", "10")),  # numbers in their order
        (("00010", "9", "007"), ("007", "9", "00010")),
        (("10", "9", "a"), ("10", "9", "a")),  # names in theirs
        (("b", "a", "B"), ("B", "a", "b")),
    ],
)
def test_order_of_classes(tmp_path: Path, classes: tuple[str, ...], names: tuple[str, ...]) -> None:
    tree(tmp_path, classes, each=1)
    read = data.load(tmp_path, validation=0)
    assert read.class_names == names
    for label, name in enumerate(names):
        file = tmp_path / "test" / name / "0.png"
        assert torch.equal(read.test.x[read.test.y == label][0], as_tensor(np.asarray(Image.open(file))))


@pytest.mark.parametrize("layout", ["fetched", "original", "original, labels above", "kaggle"])
def test_gtsrb(tmp_path: Path, layout: str) -> None:
    """As it is fetched, as its archives unpack, and as another copy of it is laid out."""
    train, test, table = {
        "fetched": ("train", "test", "test/GT-final_test.csv"),
        "original": (
            "GTSRB/Final_Training/Images",
            "GTSRB/Final_Test/Images",
            "GTSRB/Final_Test/Images/GT-final_test.csv",
        ),
        "original, labels above": ("GTSRB/Final_Training/Images", "GTSRB/Final_Test/Images", "GT-final_test.csv"),
        "kaggle": ("Train", "Test", "Test.csv"),
    }[layout]
    for label in (0, 1, 2, 10):
        name = str(label) if layout == "kaggle" else f"{label:05d}"
        for number in range(3):
            save(tmp_path / train / name / f"{number:05d}.ppm", (15 + label, 20, 3))
        (tmp_path / train / name / f"GT-{name}.csv").write_text(f"Filename;ClassId\n00000.ppm;{label}\n")
    labels = [10, 0, 2]
    images = [save(tmp_path / test / f"{number:05d}.ppm", (20, 20, 3)) for number in range(3)]
    if layout == "kaggle":
        rows = ["Width,Height,ClassId,Path"] + [f"20,20,{label},Test/{k:05d}.ppm" for k, label in enumerate(labels)]
    else:
        rows = ["Filename;Width;ClassId"] + [f"{k:05d}.ppm;20;{label}" for k, label in enumerate(labels)]
    (tmp_path / table).write_text("\r\n".join(rows) + "\r\n")
    read = data.load(tmp_path, validation=0, size=20)
    assert (len(read.train), read.classes, read.input_shape) == (12, 4, (3, 20, 20))
    assert read.test.y.tolist() == [3, 0, 2]
    assert torch.equal(read.test.x, torch.stack([as_tensor(pixels) for pixels in images]))
    assert [int(name) for name in read.class_names or ()] == [0, 1, 2, 10]


@pytest.mark.parametrize("delimiter", [",", ";"])
@pytest.mark.parametrize("header", ["Filename ClassId", "path label", "FILE Class", "\ufefffilename target"])
def test_tables(tmp_path: Path, delimiter: str, header: str) -> None:
    images = [save(tmp_path / "all" / f"{number}.png") for number in range(6)]
    for part, numbers in (("train", (3, 1, 5, 0)), ("test", (4, 2))):
        rows = [header.split()] + [[f"all/{number}.png", "even" if number % 2 == 0 else "odd"] for number in numbers]
        (tmp_path / f"{part}.csv").write_text("\n".join(delimiter.join(row) for row in rows) + "\n\n", encoding="utf-8")
    read = data.load(tmp_path, validation=0)
    assert read.class_names == ("even", "odd")
    assert read.test.y.tolist() == [0, 0]
    assert torch.equal(read.test.x, torch.stack([as_tensor(images[4]), as_tensor(images[2])]))
    assert sorted(read.train.y.tolist()) == [0, 1, 1, 1]


def test_one_tree_is_parted_by_the_names_of_its_files(tmp_path: Path) -> None:
    for name in ("ant", "bee"):
        for number in range(60):
            save(tmp_path / "set" / name / f"{number}.png", (3, 3))
    read = data.load(tmp_path / "set", validation=0)
    chosen = [
        hashlib.sha256(f"{name}/{number}.png".encode()).digest()
        for name in ("ant", "bee")
        for number in sorted(map(str, range(60)))
    ]
    assert len(read.test) == sum(int(digest.hex(), 16) % 6 == 0 for digest in chosen)
    assert 8 <= len(read.test) <= 34
    assert len(read.train) + len(read.test) == 120
    # Elsewhere, and with one more image, what was to test is still to test.
    shutil.move(tmp_path / "set", tmp_path / "other")
    save(tmp_path / "other" / "bee" / "zebra.png", (3, 3))
    again = data.load(tmp_path / "other", validation=0)
    seen = {row.numpy().tobytes() for row in again.test.x}
    assert {row.numpy().tobytes() for row in read.test.x} <= seen


def test_what_is_no_image_is_passed_over(tmp_path: Path) -> None:
    tree(tmp_path)
    for name in (".hidden.png", "Thumbs.db", "notes.txt", "GT-00000.csv", "._0.png"):
        (tmp_path / "train" / "ant" / name).write_text("no image")
    (tmp_path / "train" / ".cache").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "train" / "bee" / "folder.png").mkdir()
    assert len(data.load(tmp_path, validation=0).train) == 8


# Sizes and modes.


def test_sizes_that_differ(tmp_path: Path) -> None:
    tree(tmp_path)
    save(tmp_path / "test" / "bee" / "odd.png", (7, 5, 3))
    refused(lambda: data.load(tmp_path), "0.png is 5x6 pixels", "odd.png is 5x7", "--size")
    read = data.load(tmp_path, size=4, validation=0)
    assert read.input_shape == (3, 4, 4)
    file = tmp_path / "test" / "bee" / "odd.png"
    resized = np.asarray(Image.open(file).resize((4, 4), Image.Resampling.BILINEAR))
    assert torch.equal(read.test.x[-1], as_tensor(resized))


@given(hnp.arrays(np.uint8, (5, 5)), st.booleans())
def test_grey_among_colors_becomes_color(tmp_path_factory: pytest.TempPathFactory, grey: Array, first: bool) -> None:
    folder = tmp_path_factory.mktemp("mixed")
    files = [folder / "a.png", folder / "b.png"]
    Image.fromarray(grey).save(files[0 if first else 1])
    Image.new("RGB", (5, 5), (10, 20, 30)).save(files[1 if first else 0])
    read = image_files.read_all(files, None)
    assert read.shape == (2, 3, 5, 5)
    assert (read[0 if first else 1] == grey).all()
    assert image_files.read_all([files[0 if first else 1]] * 2, None).shape == (2, 5, 5)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
def test_every_mode_of_8_bits(tmp_path: Path, mode: str) -> None:
    tree(tmp_path)
    image = Image.new("RGB", (5, 6), (0, 0, 0)).convert(mode)
    image.save(tmp_path / "test" / "ant" / "0.png")
    assert data.load(tmp_path, validation=0).test.x[0].sum() == 0


def png(width: int, height: int, depth: int, color: int, body: bytes) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(body)) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("grey.png", png(5, 6, 16, 0, bytes(11 * 6))),
        ("grey and alpha.png", png(5, 6, 16, 4, bytes(21 * 6))),
        ("color.png", png(5, 6, 16, 2, bytes(31 * 6))),
        ("grey.pgm", b"P5 5 6 65535 " + bytes(60)),
        ("color.ppm", b"P6 5 6 1023 " + bytes(180)),
    ],
)
def test_more_than_8_bits(tmp_path: Path, name: str, body: bytes) -> None:
    tree(tmp_path)
    (tmp_path / "train" / "ant" / name).write_bytes(body)
    refused(lambda: data.load(tmp_path), f"{name} has more than 8 bits")
    refused(lambda: single_image.read(tmp_path / "train" / "ant" / name, (3, 6, 5)), f"{name} has more than 8 bits")


# Damage, traps, mistakes.


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        png(5, 6, 8, 2, bytes(16 * 6))[:45],
        png(5, 6, 8, 2, b"short"),
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"P6 5 6 255 ",
    ],
)
def test_damaged_images(tmp_path: Path, body: bytes) -> None:
    tree(tmp_path)
    (tmp_path / "train" / "bee" / "bad.png").write_bytes(body)
    refused(lambda: data.load(tmp_path), "bad.png cannot be read as an image")


@given(st.sampled_from(["png", "jpeg", "ppm", "bmp"]), st.integers(0, 10**6), st.binary(min_size=1, max_size=4))
def test_changed_bytes_are_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, suffix: str, place: int, change: bytes
) -> None:
    file = tmp_path_factory.mktemp("changed") / f"0.{suffix}"
    save(file)
    body = bytearray(file.read_bytes())
    place %= len(body)
    body[place : place + len(change)] = change
    file.write_bytes(body)
    message = ""
    try:
        assert image_files.read(file, 4).shape[:2] == (4, 4)
    except UserError as error:
        message = str(error)
    assert "\n" not in message


@pytest.mark.parametrize("size", [60_000, 12_000, 9_600, 5_000])
def test_image_bombs(tmp_path: Path, size: int, recwarn: pytest.WarningsRecorder) -> None:
    tree(tmp_path)
    (tmp_path / "train" / "ant" / "bomb.png").write_bytes(png(size, size, 8, 2, bytes(2**20)))
    with quick_and_small():
        refused(lambda: data.load(tmp_path, size=8), "bomb.png has", "pixels")
    assert not recwarn.list


def test_a_pickle_called_png_is_not_opened_as_one(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "train" / "ant" / "trap.png").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    refused(lambda: data.load(tmp_path), "trap.png")
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "name", ["../secret.png", "a/../../secret.png", "{outside}/secret.png", "link.png", "away/secret.png"]
)
def test_paths_that_lead_out(tmp_path: Path, name: str) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "set"
    save(outside / "secret.png")
    save(tmp_path / "secret.png")
    save(folder / "0.png")
    (folder / "a").mkdir()
    (folder / "link.png").symlink_to(outside / "secret.png")
    (folder / "away").symlink_to(outside)
    for part in ("train", "test"):
        (folder / f"{part}.csv").write_text(f"path,label\n0.png,a\n{name.format(outside=outside)},b\n")
    refused(lambda: data.load(folder), "Line 3 of", "out of the data set")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no column filename"),
        ("path,size\n0.png,3\n", "no column classid"),
        ("path,label\n", "lists no images"),
        ("path,label\n0.png\n", "Line 2 of"),
        ("path,label\n0.png,\n", "lacks a file or a class"),
        ("path,label\nnone.png,a\n", "not a file in"),
        ("path,label\n" + "x" * 5000 + ",a\n", "not a file in"),
        ("path,label\na\0b,a\n", "train.csv"),
        ('path,label\n"' + "x" * 200_000 + '",a\n', "train.csv cannot be read as CSV"),
        (b"path,label\n\xff\xfe.png,a\n", "train.csv cannot be read as CSV"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str | bytes, said: str) -> None:
    save(tmp_path / "0.png")
    (tmp_path / "test.csv").write_text("path,label\n0.png,a\n0.png,b\n")
    (tmp_path / "train.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    refused(lambda: data.load(tmp_path), said)


def test_folders_that_lack_something(tmp_path: Path) -> None:
    tree(tmp_path)
    (tmp_path / "train" / "cow").mkdir()
    refused(lambda: data.load(tmp_path), "cow holds no image")
    (tmp_path / "train" / "cow").rmdir()
    save(tmp_path / "test" / "dog" / "0.png")
    refused(lambda: data.load(tmp_path), "class 'dog' of the test images")
    shutil.rmtree(tmp_path / "test")
    save(tmp_path / "test" / "0.png")
    refused(lambda: data.load(tmp_path), "no class folders", "GT-final_test.csv")
    shutil.rmtree(tmp_path / "test")
    shutil.rmtree(tmp_path / "train")
    for name in ("ant/3.png", "bee/3.png"):
        assert int(hashlib.sha256(name.encode()).hexdigest(), 16) % 6
        save(tmp_path / name)
    refused(lambda: data.load(tmp_path), "too few")


def test_a_folder_of_something_else_is_told_what_is_understood(tmp_path: Path) -> None:
    for fill in (lambda: None, lambda: save(tmp_path / "0.png"), lambda: (tmp_path / "empty").mkdir()):
        fill()
        refused(lambda: data.load(tmp_path), str(tmp_path), "data_batch_1.bin", "train_32x32.mat", "train/<class>")


@pytest.mark.parametrize("size", [0, -3, 2.5, True, 10**6])
def test_bad_sizes(tmp_path: Path, size: Any) -> None:
    refused(lambda: data.load(tmp_path, size=size), f"size is {size}")


def test_size_is_for_images_alone() -> None:
    refused(lambda: data.load("mnist", size=20), "size is 20")
