"""What may be taken out of a tar or zip file, and how: checked first, bounded in size, whole or absent."""

from __future__ import annotations

import gzip
import os
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from advibp.errors import UserError

Members = Collection[str] | Callable[[str], str | None]
"""The names to take, all of which must be there; or a function from a name to the new one, None for what is left."""

_CHUNK = 1 << 20
_HEADERS = 1 << 26  # what a tar's headers and padding may take beside its contents: about a kilobyte for each member
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


def extract(archive: Path, into: Path, *, members: Members, max_bytes: int) -> None:
    """Take ``members`` out of a tar, tar.gz or zip file into the new folder ``into``, whole or absent."""
    if os.path.lexists(into) and not (into.is_dir() and not any(into.iterdir())):
        raise UserError(f"Cannot unpack {archive} into {into}: it exists already; remove it or choose another folder.")
    into.parent.mkdir(parents=True, exist_ok=True)
    beside = into.with_name(f".{into.name}.{secrets.token_hex(4)}")
    beside.mkdir()  # not mkdtemp, whose folders are for their owner alone
    try:
        unpack(archive, beside, members=members, max_bytes=max_bytes)
        os.rename(beside, into)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def unpack(archive: Path, folder: Path, *, members: Members, max_bytes: int) -> None:
    """As `extract`, into a folder that exists; what a broken try leaves there is the caller's to remove.

    The whole archive is looked through before anything is written. Every member must be a plain file or a folder
    within the archive, whether it is taken or not: an archive with anything else is not the one that was meant.
    """
    with _sentences(archive):
        names = _plan(archive, members, max_bytes)
        left = max_bytes
        for member, stream in _read(archive, max_bytes):
            if member.name not in names:
                continue
            target = folder / names[member.name]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                while chunk := stream.read(_CHUNK):
                    left -= len(chunk)
                    if left < 0:
                        raise _too_much(archive, max_bytes)
                    out.write(chunk)
            if target.stat().st_size != member.size:
                raise UserError(f"{archive} is damaged: {member.name!r} is shorter than it should be; fetch it again.")


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    folder: bool
    odd: str | None  # why it is neither a plain file nor a folder


def _plan(archive: Path, members: Members, max_bytes: int) -> dict[str, str]:
    """Member -> where it goes, for those that are taken; raises on everything that could do harm."""
    seen: set[str] = set()
    taken: dict[str, str] = {}
    total = 0
    for member, _ in _read(archive, max_bytes):
        if member.odd or _leaves(member.name, member.folder):
            raise UserError(
                f"{archive} holds {member.name!r}, {member.odd or 'a name that leaves the folder'}; expected plain "
                "files alone, so nothing was unpacked."
            )
        if member.folder:
            continue
        total += member.size
        if total > max_bytes:
            raise _too_much(archive, max_bytes)
        plain = str(PurePosixPath(member.name))
        if plain in seen:
            raise UserError(f"{archive} holds {member.name!r} twice; nothing was unpacked.")
        seen.add(plain)
        new = members(plain) if callable(members) else plain if plain in members else None
        if new is not None:
            taken[member.name] = new
    if not callable(members) and (missing := sorted(set(members) - set(taken.values()))):
        raise UserError(f"{archive} lacks '{missing[0]}'; it is not the archive that was expected.")
    if not taken:
        raise UserError(f"{archive} holds none of the files that were expected in it.")
    targets = set(taken.values())
    above = {str(parent) for target in targets for parent in PurePosixPath(target).parents}
    if len(targets) < len(taken) or targets & above:
        raise UserError(f"{archive} holds several members for one place; nothing was unpacked.")
    return taken


def _leaves(name: str, folder: bool) -> bool:
    """True also for what leaves a folder on Windows, and for names that no file should have."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not (path.parts or folder):
        return True
    return "\\" in name or ":" in name or not name.isprintable()


def _too_much(archive: Path, max_bytes: int) -> UserError:
    return UserError(f"{archive} unpacks to more than the {max_bytes:,} bytes expected, so it was stopped.")


# The two formats, read from front to back.


def _read(archive: Path, max_bytes: int) -> Iterator[tuple[_Member, IO[bytes]]]:
    """Every member with its contents, which can be read until the next member is asked for."""
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"PK":
            yield from _read_zip(file)
        elif start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as unzipped:
                yield from _read_tar(unzipped, max_bytes, archive)
        else:
            yield from _read_tar(file, max_bytes, archive)


def _read_tar(file: IO[bytes] | gzip.GzipFile, max_bytes: int, archive: Path) -> Iterator[tuple[_Member, IO[bytes]]]:
    bounded = _Bounded(file, max_bytes + _HEADERS, _too_much(archive, max_bytes))
    with tarfile.open(fileobj=bounded, mode="r|") as tar:  # type: ignore[call-overload]  # read() is all it needs
        for info in tar:
            odd = None
            if info.issym() or info.islnk():
                odd = "a link"
            elif info.issparse() or info.size < 0 or not (info.isreg() or info.isdir()):
                odd = "a device or another special file"
            contents = tar.extractfile(info) if odd is None and info.isreg() else None
            yield _Member(info.name, info.size, info.isdir(), odd), contents or _NOTHING


def _read_zip(file: IO[bytes]) -> Iterator[tuple[_Member, IO[bytes]]]:
    with zipfile.ZipFile(file) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 where the archive was made without Unix's modes
            odd = None
            if stat.S_ISLNK(kind):
                odd = "a link"
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                odd = "a device or another special file"
            elif info.flag_bits & 1:
                odd = "an encrypted file"
            member = _Member(info.orig_filename, info.file_size, info.is_dir(), odd)
            if odd or member.folder:
                yield member, _NOTHING
            else:
                with opened.open(info) as contents:
                    yield member, contents


class _Nothing:
    def read(self, size: int = -1) -> bytes:
        return b""


_NOTHING: IO[bytes] = _Nothing()  # type: ignore[assignment]


class _Bounded:
    """A stream that stops with an error after ``limit`` bytes: also a tar's headers can be made to swell."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int, error: UserError) -> None:
        self.file, self.left, self.error = file, limit, error

    def read(self, size: int) -> bytes:
        chunk = self.file.read(size)
        self.left -= len(chunk)
        if self.left < 0:
            raise self.error
        return chunk


@contextmanager
def _sentences(archive: Path) -> Iterator[None]:
    try:
        yield
    except _DAMAGED as error:
        raise UserError(f"{archive} is no sound archive ({error}); remove it and fetch it again.") from error
    except RuntimeError as error:  # zipfile's word for what it cannot decrypt
        raise UserError(f"{archive} cannot be unpacked ({error}).") from error
    except OSError as error:
        where = error.filename or archive
        raise UserError(f"Cannot unpack {archive}: {where}: {error.strerror or error}; check the disk.") from error
