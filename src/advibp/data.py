"""Images and labels as tensors: MNIST (shipped inside the package), folders of idx files, npz files, your own arrays.

Pixels are float32 in [0, 1], labels int64 from 0. The validation images are a fixed part of the training set, never
of the test set. Nothing here unpickles, and nothing trusts what a file's header promises.
"""

from __future__ import annotations

import difflib
import gzip
import os
import struct
import zlib
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from advibp.errors import UserError

NAMES = ("mnist",)
PARTS = ("x_train", "y_train", "x_test", "y_test")
MAX_CLASSES = 100_000

_SPLIT_SEED = 2021  # never the run's seed: all runs must share one validation set
_IDX_STEMS = dict(zip(PARTS, ("train-images", "train-labels", "t10k-images", "t10k-labels"), strict=True))
_DEFLATE_RATIO = 1032  # deflate cannot pack more bytes than this into one
_CHANNELS = (1, 3, 4)  # what a colour axis can look like: grey, RGB, RGBA

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Split:
    """Images ``x`` (N, C, H, W), float32 in [0, 1], and their labels ``y`` (N,), int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, n: int) -> Split:
        """The first ``n`` images, or all if there are fewer."""
        if n < 0:
            raise UserError(f"Cannot take {n} images; give 0 or more.")
        return Split(self.x[:n], self.y[:n])


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; ``mean`` and ``std`` are those of its training images."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of the population (divided by N)."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        x = self.train.x
        count = x.numel() // x.shape[1]
        mean = x.sum(dim=(0, 2, 3), dtype=torch.float64) / count
        # Two passes, in chunks: exact enough for a constant channel to give 0, without a float64 copy of all images.
        centre = mean[:, None, None]
        squares = [(part.double() - centre).square_().sum(dim=(0, 2, 3)) for part in torch.split(x, 2048)]
        std = (torch.stack(squares).sum(dim=0) / count).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())


def load(source: str | Path, *, validation: int = 1000, limit: int | None = None) -> Data:
    """The data set ``source``: ``"mnist"``, a folder of idx files, or an .npz file.

    ``validation`` images are taken out of the training set, always the same ones; ``limit`` then keeps that many of
    the training images that remain.
    """
    if isinstance(source, str) and source in NAMES:
        name, arrays = source, _read_idx_folder(resources.files("advibp").joinpath(source))
    else:
        path = Path(os.path.expanduser(source))
        name, arrays = path.stem, _read_path(path, source)
    return _assemble(arrays, name, str(source), validation, limit)


def from_tensors(
    x_train: Tensor | npt.ArrayLike,
    y_train: Tensor | npt.ArrayLike,
    x_test: Tensor | npt.ArrayLike,
    y_test: Tensor | npt.ArrayLike,
    *,
    name: str = "tensors",
    classes: int | None = None,
    validation: int = 1000,
    limit: int | None = None,
) -> Data:
    """Your own images (N, C, H, W) or (N, H, W), uint8 or floats in [0, 1], and labels (N,); they are copied.

    ``classes`` defaults to the largest label + 1.
    """
    given = dict(zip(PARTS, (x_train, y_train, x_test, y_test), strict=True))
    arrays = {part: _as_array(part, values, name) for part, values in given.items()}
    return _assemble(arrays, name, name, validation, limit, classes)


def _read_path(path: Path, source: str | Path) -> dict[str, Array]:
    # os.path, not Path: it answers False, without raising, for names that no file can have.
    if os.path.isdir(path):
        return _read_idx_folder(path)
    if os.path.exists(path):
        if path.suffix.lower() != ".npz":
            raise UserError(f"Cannot read {path}: expected a folder of idx files or a file that ends in .npz.")
        return _read_npz(path)
    if isinstance(source, str) and not path.suffix and os.sep not in source:
        close = difflib.get_close_matches(source.lower(), NAMES, n=1)
        hint = f"did you mean '{close[0]}'? " if close else ""
        raise UserError(
            f"Unknown data set '{source}': {hint}Use {', '.join(NAMES)}, a folder of idx files, or an .npz file."
        )
    raise UserError(f"There is no file or folder {path}; give a folder of idx files, an .npz file, or 'mnist'.")


# idx files: a big-endian header (0x0000 08 dims, then one size per dimension) and one byte per value.


def _read_idx_folder(folder: Traversable) -> dict[str, Array]:
    return {part: _read_idx(_find_idx(folder, part), 3 if part[0] == "x" else 1) for part in PARTS}


def _find_idx(folder: Traversable, part: str) -> Traversable:
    ending = "idx3-ubyte" if part[0] == "x" else "idx1-ubyte"
    stem = _IDX_STEMS[part]
    for name in (f"{stem}{dash}{ending}{gz}" for dash in "-." for gz in ("", ".gz")):
        if (found := folder.joinpath(name)).is_file():
            return found
    raise UserError(f"The folder {folder} has no file {stem}-{ending} or {stem}-{ending}.gz; put it there.")


def _read_idx(file: Traversable, dims: int) -> Array:
    """The values of an idx file, uint8 and read-only: (N, H, W) for ``dims`` 3, (N,) for 1."""
    with ExitStack() as stack:
        try:
            stream: IO[bytes] | gzip.GzipFile = stack.enter_context(file.open("rb"))
            capacity = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            if file.name.endswith(".gz"):
                capacity *= _DEFLATE_RATIO
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            return _read_idx_stream(stream, capacity, dims, file)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"{file} is not a sound gzip file ({error}); fetch it again.") from error
        except OSError as error:
            raise UserError(
                f"Cannot read {file} ({error.strerror or error}); check the file and its rights."
            ) from error


def _read_idx_stream(stream: IO[bytes] | gzip.GzipFile, capacity: int, dims: int, file: Traversable) -> Array:
    size = 4 + 4 * dims
    header = stream.read(size)
    magic = struct.pack(">HBB", 0, 8, dims)
    if len(header) >= 4 and header[:4] != magic:
        raise UserError(
            f"{file} begins with {header[:4].hex()} where {magic.hex()} was expected: it is no idx file "
            f"of bytes in {dims} dimension(s); check that images and labels are not swapped."
        )
    if len(header) < size:
        raise UserError(f"{file} is truncated within its {size}-byte header; fetch it again.")
    shape = struct.unpack(f">{dims}I", header[4:])
    promised = int(np.prod([int(n) for n in shape], dtype=object))
    # read() allocates what it is asked for, so a promise that cannot be kept is refused before it is believed.
    body = stream.read(promised + 1) if promised <= capacity else b""
    if len(body) < promised:
        raise UserError(f"{file} is truncated: its header promises {promised} bytes and fewer follow; fetch it again.")
    if len(body) > promised:
        raise UserError(f"{file} holds more than the {promised} bytes its header promises; fetch it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        opened = np.load(path, allow_pickle=False)
    except Exception as error:  # numpy, zipfile and zlib each raise their own kinds on a damaged file
        raise UserError(f"{path} is not a sound .npz file; save it again with numpy.savez.") from error
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise UserError(f"{path} holds a single array; expected an .npz with {', '.join(PARTS)}.")
    with opened:
        if missing := [part for part in PARTS if part not in opened]:
            raise UserError(f"{path} lacks {', '.join(missing)}; expected the arrays {', '.join(PARTS)}.")
        arrays = {part: _read_npz_member(opened, part, path) for part in PARTS}
    return arrays | {part: _channels_first(arrays[part], part, path) for part in PARTS if part[0] == "x"}


def _read_npz_member(opened: Mapping[str, Any], part: str, path: Path) -> Array:
    try:
        array = opened[part]
    except Exception as error:  # as above; a pickled array is among them
        if "allow_pickle" in str(error):
            raise UserError(f"{part} in {path} holds pickled objects; save plain numbers instead.") from error
        raise UserError(f"{part} in {path} is damaged; save the file again with numpy.savez.") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"{part} in {path} is no numpy array; save the file again with numpy.savez.")
    return array


def _channels_first(x: Array, part: str, path: Path) -> Array:
    """(N, H, W, C) -> (N, C, H, W); an axis of 1, 3 or 4 is the colours, and the first such wins."""
    if x.ndim != 4 or x.shape[1] in _CHANNELS:
        return x
    if x.shape[3] not in _CHANNELS:
        raise UserError(
            f"{part} in {path} has shape {x.shape}: neither axis 1 nor axis 3 can be 1, 3 or 4 channels; "
            "expected (N, H, W), (N, H, W, C) or (N, C, H, W)."
        )
    return x.transpose(0, 3, 1, 2)


def _as_array(part: str, values: Tensor | npt.ArrayLike, name: str) -> Array:
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            return (values.float() if values.is_floating_point() else values).numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{part} of {name} is no plain array ({error}); give a dense tensor or array.") from error


# The checks, and the one way from arrays to Data.


def _assemble(
    arrays: Mapping[str, Array], name: str, origin: str, validation: int, limit: int | None, classes: int | None = None
) -> Data:
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    _check_images(x_train, "x_train", origin)
    _check_images(x_test, "x_test", origin)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Images of {origin} differ in shape: {x_train.shape[1:]} to train, {x_test.shape[1:]} to test."
        )
    _check_labels(y_train, len(x_train), "y_train", origin)
    _check_labels(y_test, len(x_test), "y_test", origin)
    classes = _count_classes(int(max(y_train.max(), y_test.max())) + 1, classes, origin)
    total = len(x_train)
    if not _is_int(validation) or not 0 <= validation < total:
        raise UserError(f"validation is {validation!r}; expected 0 to {total - 1}, as {origin} has {total} images.")
    if limit is not None and (not _is_int(limit) or limit < 1):
        raise UserError(f"limit is {limit!r}; expected at least 1 training image, or none to keep all.")
    # RandomState's stream is frozen for all numpy versions to come; default_rng's is not.
    order = np.random.RandomState(_SPLIT_SEED).permutation(total)
    held, kept = order[:validation], order[validation:][:limit]
    return Data(
        name=name,
        train=_split(x_train[kept], y_train[kept]),
        validation=_split(x_train[held], y_train[held]),
        test=_split(x_test, y_test),
        classes=classes,
    )


def _check_images(x: Array, part: str, origin: str) -> None:
    where = f"{part} of {origin}"
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise UserError(f"{where} has shape {x.shape}; expected images as (N, H, W) or (N, C, H, W), none of them 0.")
    if x.dtype == np.uint8:
        return
    if x.dtype.kind != "f":
        raise UserError(f"{where} is of type {x.dtype}; expected uint8 from 0 to 255 or floats in [0, 1].")
    low, high = float(x.min()), float(x.max())  # NaN wins both
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"{where} holds NaN or infinite pixels; every pixel must lie in [0, 1].")
    if low < 0 or high > 1:
        raise UserError(f"{where} has pixels from {low:g} to {high:g}; scale them to [0, 1].")


def _check_labels(y: Array, images: int, part: str, origin: str) -> None:
    where = f"{part} of {origin}"
    if y.ndim != 1:
        raise UserError(f"{where} has shape {y.shape}; expected one label per image, (N,).")
    if len(y) != images:
        raise UserError(f"{where} has {len(y)} labels for {images} images; expected one label per image.")
    if y.dtype.kind not in "iu":
        raise UserError(f"{where} is of type {y.dtype}; expected labels as integers.")
    if y.min() < 0 or y.max() >= MAX_CLASSES:
        raise UserError(f"{where} has labels from {y.min()} to {y.max()}; expected 0 to {MAX_CLASSES - 1}.")


def _count_classes(found: int, stated: int | None, origin: str) -> int:
    if stated is not None and (not _is_int(stated) or stated < found):
        raise UserError(f"classes is {stated!r}, but {origin} has labels up to {found - 1}; give at least {found}.")
    classes = found if stated is None else stated
    if classes < 2:
        raise UserError(f"{origin} has a single class; expected labels from 0 to 1 at least.")
    return classes


def _split(x: Array, y: Array) -> Split:
    """Always fresh, contiguous memory: a Data never shares it with a file or with its caller."""
    if x.ndim == 3:
        x = x[:, None]
    scaled = np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x.astype(np.float32)
    return Split(torch.from_numpy(np.ascontiguousarray(scaled)), torch.from_numpy(y.astype(np.int64)))


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
