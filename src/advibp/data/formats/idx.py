"""idx files: a big-endian header (0x0000 08 dims, then one size per dimension) and one byte per value."""

from __future__ import annotations

import gzip
import os
import struct
import zlib
from contextlib import ExitStack
from importlib.resources.abc import Traversable
from typing import IO

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import PARTS, Array
from advibp.errors import UserError

STEMS = dict(zip(PARTS, ("train-images", "train-labels", "t10k-images", "t10k-labels"), strict=True))


def recognise(folder: Traversable) -> bool:
    return any(path.name.startswith(tuple(STEMS.values())) and "-ubyte" in path.name for path in folder.iterdir())


def read_folder(folder: Traversable) -> dict[str, Array]:
    return {part: _read(find(folder, part), 3 if part[0] == "x" else 1) for part in PARTS}


def find(folder: Traversable, part: str) -> Traversable:
    ending = "idx3-ubyte" if part[0] == "x" else "idx1-ubyte"
    stem = STEMS[part]
    for name in (f"{stem}{dash}{ending}{gz}" for dash in "-." for gz in ("", ".gz")):
        if (found := folder.joinpath(name)).is_file():
            return found
    raise UserError(f"The folder {folder} has no file {stem}-{ending} or {stem}-{ending}.gz; put it there.")


def _read(file: Traversable, dims: int) -> Array:
    """The values of an idx file, uint8 and read-only: (N, H, W) for ``dims`` 3, (N,) for 1."""
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
            raise UserError(f"{file} is not a sound gzip file ({error}); fetch it again.") from error
        except OSError as error:
            raise UserError(
                f"Cannot read {file} ({error.strerror or error}); check the file and its rights."
            ) from error


def _read_stream(stream: IO[bytes] | gzip.GzipFile, packed: int, capacity: int, dims: int, file: Traversable) -> Array:
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
    if promised <= capacity:
        file_limits.check(promised, file, unpacked=promised, packed=packed)
    # read() allocates what it is asked for, so a promise that cannot be kept is refused before it is believed.
    body = stream.read(promised + 1) if promised <= capacity else b""
    if len(body) < promised:
        raise UserError(f"{file} is truncated: its header promises {promised} bytes and fewer follow; fetch it again.")
    if len(body) > promised:
        raise UserError(f"{file} holds more than the {promised} bytes its header promises; fetch it again.")
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
