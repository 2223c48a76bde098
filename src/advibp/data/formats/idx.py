"""idx files: a big-endian header (0x0000 08 dims, then one size per dimension) and one byte per value."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import PARTS, Array
from advibp.errors import UserError

STEMS = dict(zip(PARTS, ("train-images", "train-labels", "t10k-images", "t10k-labels"), strict=True))


def recognize(folder: Path) -> bool:
    """Return True if the folder contains idx files with the names of MNIST."""
    return any(path.name.startswith(tuple(STEMS.values())) and "-ubyte" in path.name for path in folder.iterdir())


def read_folder(folder: Path, test: bool = True) -> dict[str, Array]:
    """Read the four files, each of which may be compressed with gzip; without ``test``, not those of the test set.

    Returns:
        ``x_train`` and ``x_test`` of shape (N, H, W), and ``y_train`` and ``y_test`` of shape (N,), all uint8 and
        read-only.

    Raises:
        UserError: If a file is missing, unreadable or damaged, or needs more memory than the machine has.
    """
    parts = PARTS if test else ("x_train", "y_train")
    return {part: _read(find(folder, part), 3 if part[0] == "x" else 1) for part in parts}


def find(folder: Path, part: str) -> Path:
    """Return the file of a part such as ``x_train``."""
    ending = "idx3-ubyte" if part[0] == "x" else "idx1-ubyte"
    stem = STEMS[part]
    for name in (f"{stem}{dash}{ending}{gz}" for dash in "-." for gz in ("", ".gz")):
        if (file := folder / name).is_file():
            return file
    raise UserError(f"The folder {folder} has no file {stem}-{ending} or {stem}-{ending}.gz; put it there.")


def _read(file: Path, dims: int) -> Array:
    with ExitStack() as stack:
        try:
            stream: IO[bytes] | gzip.GzipFile = stack.enter_context(file.open("rb"))
            size = capacity = stream.seek(0, os.SEEK_END)
            stream.seek(0)
            if file.name.endswith(".gz"):
                capacity *= file_limits.DEFLATE_RATIO
                stream = stack.enter_context(gzip.GzipFile(fileobj=stream))
            return _read_stream(stream, size, capacity, dims, file)
        except (gzip.BadGzipFile, zlib.error, EOFError) as error:
            raise UserError(f"{file} is not a valid gzip file ({error}); download it again.") from error
        except OSError as error:
            raise UserError(
                f"Cannot read {file} ({error.strerror or error}); check the file and its permissions."
            ) from error


def _read_stream(stream: IO[bytes] | gzip.GzipFile, compressed: int, capacity: int, dims: int, file: Path) -> Array:
    """Read the values.

    Args:
        stream: The decompressed stream.
        compressed: Size of the file on disk, in bytes.
        capacity: Upper bound of the size after decompression, in bytes.
        dims: Number of dimensions that the header must have.
        file: Named in errors.
    """
    header_size = 4 + 4 * dims
    header = stream.read(header_size)
    magic = struct.pack(">HBB", 0, 8, dims)
    if len(header) >= 4 and header[:4] != magic:
        raise UserError(
            f"{file} begins with {header[:4].hex()} where {magic.hex()} was expected: it is not an idx file "
            f"of bytes in {dims} dimension(s); check that images and labels are not swapped."
        )
    if len(header) < header_size:
        raise UserError(f"{file} is truncated within its {header_size}-byte header; download it again.")
    shape = struct.unpack(f">{dims}I", header[4:])
    size = int(np.prod([int(n) for n in shape], dtype=object))
    if size <= capacity:
        file_limits.check(size, file, unpacked=size, packed=compressed)
    # read() allocates the requested size, so a size that the file cannot contain is not requested.
    body = stream.read(size + 1) if size <= capacity else b""
    if len(body) < size:
        raise UserError(f"{file} is truncated: its header states {size} bytes and fewer follow; download it again.")
    if len(body) > size:
        raise UserError(f"{file} holds more than the {size} bytes that its header states; download it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
