"""Arrays of numbers out of MATLAB 5 files, bounded: no more is unpacked than a caller expects.

A file is a header of 128 bytes and a row of elements, each a type, a length and that many bytes padded to 8. A
packed element holds another one. An array is an element that holds four: flags, sizes, name, numbers. This is read
here and not by scipy, whose loadmat unpacks whatever length the innermost element claims (4 GiB out of 4 MB), which
the sizes that whosmat reports do not reveal.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import numpy as np

from advibp.data import file_limits
from advibp.data.assembly import Array
from advibp.errors import UserError

_MATRIX, _PACKED = 14, 15
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_NUMERIC_CLASSES = range(6, 16)  # double, single, int8, ... uint64
_COMPLEX = 0x800
_HEAD = 4096  # enough for flags, sizes and a name

Expect = Callable[[str, tuple[int, ...]], bool]


def read(file: Path, expected: Expect) -> dict[str, Array]:
    """The arrays for whose name and shape ``expected`` says yes; it may raise where the shape is wrong."""
    try:
        with file.open("rb") as stream:
            header = stream.read(128)
            if header.startswith(b"\x89HDF") or b"MATLAB 7.3" in header[:20]:
                raise UserError(f"{file} is a MATLAB 7.3 file (HDF5); save it again as version 5 (-v7).")
            order = {b"IM": "<", b"MI": ">"}.get(header[126:128])
            if order is None:
                raise UserError(f"{file} is no MATLAB 5 file; fetch it again.")
            return dict(found for found in _arrays(stream, order, expected, file) if found)
    except OSError as error:
        raise UserError(f"Cannot read {file} ({error.strerror or error}); check the file and its rights.") from error
    except (struct.error, zlib.error, ValueError, IndexError) as error:
        if isinstance(error, UserError):
            raise
        raise UserError(f"{file} is damaged ({error}); fetch it again.") from error


def _arrays(stream: IO[bytes], order: str, expected: Expect, file: Path) -> Iterator[tuple[str, Array] | None]:
    size = stream.seek(0, os.SEEK_END)
    stream.seek(128)
    while tag := stream.read(8):
        kind, length = struct.unpack(f"{order}II", tag)
        start = stream.tell()
        if start + length > size:
            raise ValueError("it is truncated")
        if kind in (_MATRIX, _PACKED):
            yield _Element(stream, length, kind == _PACKED, order, file).read(expected)
        stream.seek(start + length)


class _Element:
    """One array: its head is looked at first, and its numbers are unpacked if they are wanted."""

    def __init__(self, stream: IO[bytes], length: int, packed: bool, order: str, file: Path) -> None:
        self.stream, self.left, self.order, self.file = stream, length, order, file
        self.length = length
        self.unpacker = zlib.decompressobj() if packed else None
        self.buffer = b""

    def read(self, expected: Expect) -> tuple[str, Array] | None:
        if self.unpacker and self._element_tag()[0] != _MATRIX:
            return None
        flags = struct.unpack(f"{self.order}I", self._element(16)[:4])[0]
        sizes = self._element(1024)
        shape = struct.unpack(f"{self.order}{len(sizes) // 4}i", sizes)
        name = self._element(1024).decode("latin1")
        if min(shape, default=-1) < 0:
            raise ValueError(f"{name} has sizes {shape}")
        if not expected(name, shape):
            return None
        if flags & 0xFF not in _NUMERIC_CLASSES or flags & _COMPLEX:
            raise UserError(f"{name} in {self.file} is no array of real numbers; fetch the file again.")
        return name, self._numbers(name, shape)

    def _numbers(self, name: str, shape: tuple[int, ...]) -> Array:
        kind, length, inside = self._element_tag()
        if kind not in _NUMBERS:
            raise ValueError(f"{name} has numbers of an unknown type")
        dtype = np.dtype(self.order + _NUMBERS[kind])
        values = math.prod(shape)
        if length != values * dtype.itemsize:
            raise ValueError(f"{name} of sizes {shape} has {length} bytes of numbers, not {values * dtype.itemsize}")
        file_limits.check(values, f"{name} in {self.file}", unpacked=length, packed=self.length)
        return np.frombuffer(inside[:length] or self._take(length), dtype).reshape(shape, order="F")

    def _element_tag(self) -> tuple[int, int, bytes]:
        """Type and length; a short element keeps its bytes, 4 at most, in the tag itself."""
        tag = self._take(8)
        kind, length = struct.unpack(f"{self.order}II", tag)
        if kind >> 16:
            return kind & 0xFFFF, min(kind >> 16, 4), tag[4:]
        return kind, length, b""

    def _element(self, most: int) -> bytes:
        """The bytes of a short element, without its padding."""
        _, length, inside = self._element_tag()
        if length > most:
            raise ValueError(f"an element of {length} bytes where at most {most} were expected")
        return inside[:length] if inside else self._take(length + -length % 8)[:length]

    def _take(self, count: int) -> bytes:
        """The next bytes of the array, unpacked if they are packed: never more than asked for, but for one block."""
        parts, missing = [self.buffer[:count]], count - len(self.buffer[:count])
        self.buffer = self.buffer[count:]
        while missing and (block := self._block(missing)):
            parts.append(block[:missing])
            self.buffer = block[missing:]
            missing -= len(parts[-1])
        if missing:
            raise ValueError("it is truncated")
        return b"".join(parts)

    def _block(self, missing: int) -> bytes:
        if self.unpacker is None:
            block = self.stream.read(min(missing, self.left))
            self.left -= len(block)
            return block
        while not self.unpacker.eof:
            packed = self.unpacker.unconsumed_tail
            if not packed:
                packed = self.stream.read(min(2**20, self.left))
                self.left -= len(packed)
            if not packed:
                return b""
            if block := self.unpacker.decompress(packed, max(_HEAD, min(missing, 2**24))):
                return block
        return b""
