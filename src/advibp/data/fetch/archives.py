"""Safe extraction from tar and zip files: all members are checked first, and the extracted size is limited."""

from __future__ import annotations

import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from advibp.errors import UserError

_CHUNK = 1 << 20
_HEADERS = 1 << 26  # limit for the headers and padding of a tar file: about a kilobyte per member
_DAMAGED = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


def extract(archive: Path, folder: Path, *, members: Callable[[str], str | None], max_bytes: int) -> None:
    """Extract files from a tar, tar.gz or zip file.

    Nothing is written unless every member is a regular file or a folder whose path stays in ``folder``, including
    the members that are not extracted. `tarfile.data_filter` is not used because it accepts links and has no size
    limit. If the contents are damaged, some files may already have been written; the caller removes them.

    Args:
        archive: The file to read.
        folder: Where the files are written. It is created if needed.
        members: Maps the name of a member to its path in ``folder``, or to None if it is not extracted.
        max_bytes: Limit for the total size of all members.

    Raises:
        UserError: If the archive is damaged, unsafe or too large, contains none of the members, or cannot be written.
    """
    with _archive_errors(archive):
        targets = _plan(archive, members, max_bytes)
        remaining = max_bytes
        for member, stream in _read(archive, max_bytes):
            if member.name not in targets or stream is None:
                continue
            target = folder / targets[member.name]
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as out:
                while chunk := stream.read(_CHUNK):
                    remaining -= len(chunk)
                    if remaining < 0:
                        raise _too_large(archive, max_bytes)
                    out.write(chunk)
            if target.stat().st_size != member.size:
                raise UserError(f"{archive} is damaged: {member.name!r} is shorter than it should be; fetch it again.")


@dataclass(frozen=True)
class _Member:
    name: str
    size: int
    is_folder: bool
    unsafe: str | None  # why it is neither a regular file nor a folder


def _plan(archive: Path, members: Callable[[str], str | None], max_bytes: int) -> dict[str, str]:
    """Check all members, and return the target path of each member that is extracted."""
    names: set[str] = set()
    targets: dict[str, str] = {}
    total = 0
    for member, _ in _read(archive, max_bytes):
        if member.unsafe or _is_outside(member.name, member.is_folder):
            raise UserError(
                f"{archive} contains {member.name!r}, {member.unsafe or 'a name that leaves the folder'}; expected "
                "only regular files, so nothing was extracted."
            )
        if member.is_folder:
            continue
        total += member.size
        if total > max_bytes:
            raise _too_large(archive, max_bytes)
        name = str(PurePosixPath(member.name))
        if name in names:
            raise UserError(f"{archive} contains {member.name!r} twice; nothing was extracted.")
        names.add(name)
        if (target := members(name)) is not None:
            targets[member.name] = target
    if not targets:
        raise UserError(f"{archive} contains none of the expected files.")
    paths = set(targets.values())
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    if len(paths) < len(targets) or paths & parents:
        raise UserError(f"{archive} contains several members for one path; nothing was extracted.")
    return targets


def _is_outside(name: str, is_folder: bool) -> bool:
    """Return True for absolute paths, ``..``, names with a special meaning on Windows and unprintable names."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or not (path.parts or is_folder):
        return True
    return "\\" in name or ":" in name or not name.isprintable()


def _too_large(archive: Path, max_bytes: int) -> UserError:
    return UserError(f"{archive} extracts to more than the {max_bytes:,} bytes expected, so it was stopped.")


def _read(archive: Path, max_bytes: int) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    """Yield each member and the stream of its contents, which is valid until the next member is requested."""
    with archive.open("rb") as file:
        start = file.read(4)
        file.seek(0)
        if start[:2] == b"PK":
            yield from _read_zip(file)
        elif start[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=file) as decompressed:
                yield from _read_tar(decompressed, max_bytes, archive)
        else:
            yield from _read_tar(file, max_bytes, archive)


def _read_tar(
    file: IO[bytes] | gzip.GzipFile, max_bytes: int, archive: Path
) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    limited = _Limited(file, max_bytes + _HEADERS, _too_large(archive, max_bytes))
    with tarfile.open(fileobj=limited, mode="r|") as tar:  # type: ignore[call-overload]  # tarfile only calls read()
        for info in tar:
            unsafe = None
            if info.issym() or info.islnk():
                unsafe = "a link"
            elif info.issparse() or info.size < 0 or not (info.isreg() or info.isdir()):
                unsafe = "a device or another special file"
            contents = tar.extractfile(info) if unsafe is None and info.isreg() else None
            yield _Member(info.name, info.size, info.isdir(), unsafe), contents


def _read_zip(file: IO[bytes]) -> Iterator[tuple[_Member, IO[bytes] | None]]:
    with zipfile.ZipFile(file) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive was created without Unix modes
            unsafe = None
            if stat.S_ISLNK(kind):
                unsafe = "a link"
            elif kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                unsafe = "a device or another special file"
            elif info.flag_bits & 1:
                unsafe = "an encrypted file"
            member = _Member(info.orig_filename, info.file_size, info.is_dir(), unsafe)
            if unsafe or member.is_folder:
                yield member, None
            else:
                with opened.open(info) as contents:
                    yield member, contents


class _Limited:
    """A stream that raises an error after ``limit`` bytes, because the headers of a tar file can be huge as well."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, limit: int, error: UserError) -> None:
        self.file, self.remaining, self.error = file, limit, error

    def read(self, size: int) -> bytes:
        chunk = self.file.read(size)
        self.remaining -= len(chunk)
        if self.remaining < 0:
            raise self.error
        return chunk


@contextmanager
def _archive_errors(archive: Path) -> Iterator[None]:
    """Raise a `UserError` that names ``archive`` in place of the exceptions of the libraries."""
    try:
        yield
    except _DAMAGED as error:
        raise UserError(f"{archive} is not a valid archive ({error}); delete it and fetch it again.") from error
    except RuntimeError as error:  # zipfile raises it for members that it cannot decrypt
        raise UserError(f"{archive} cannot be extracted ({error}).") from error
    except OSError as error:
        path = error.filename or archive
        raise UserError(f"Cannot extract {archive}: {path}: {error.strerror or error}; check the disk.") from error
