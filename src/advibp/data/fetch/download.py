"""Files from the web, whole or absent: resumed where a try broke off, checked, then renamed into place.

The half of a file that has come so far lies beside the target and ends in ``.part``. It is kept when the connection
breaks, the disk is full, or the process is interrupted or killed, and the next try goes on from there.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from advibp.errors import UserError

Progress = Callable[[str, int, int | None], None]
"""Called as ``progress(what, done, total)`` now and then, in bytes; ``total`` is None where nobody knows it."""

TRIES = 4  # in a row without a new byte
_CHUNK = 1 << 18
_TRY_AGAIN = {408, 429, 500, 502, 503, 504}
# URLError, timeouts and TLS errors are OSErrors; an address that cannot be is a ValueError.
_NETWORK = (OSError, http.client.HTTPException, ValueError)


class Unreachable(UserError):
    """The server was not reached or did not give the file; another source may have it."""


class _Dropped(Exception):
    """This try brought less than the whole file; the next may bring the rest."""


def download(
    url: str,
    target: Path,
    *,
    size: int | None,
    checksum: str,
    progress: Progress | None = None,
    timeout: float = 10.0,
    wait: float = 1.0,
) -> None:
    """Fetch ``url`` into ``target``, unless it is there already.

    ``checksum`` is ``"sha256:..."``, ``"sha1:..."`` or ``"md5:..."``. Never more than ``size`` bytes are taken. The
    server has ``timeout`` seconds to answer and to send anything at all; after a break we wait ``wait`` seconds, then
    twice as long, and so on.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise UserError(f"Cannot fetch {url}: expected an address that begins with http:// or https://.")
    part = target.with_name(f"{target.name}.part")
    tell = progress or (lambda what, done, total: None)
    with on_disk(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = f"waiting for another process that fetches {target.name}"
        with locked(part, lambda: tell(waiting, 0, None)) as file:
            if target.is_file() and matches(target, checksum):
                part.unlink()
                return
            _fill(file, url, size, timeout, wait, lambda done, total: tell(target.name, done, total))
            if not matches(part, checksum):
                part.unlink()
                raise UserError(
                    f"{url} sent other bytes than expected (wrong {checksum.partition(':')[0]} checksum), so they were "
                    "thrown away; try again later, or from another network."
                )
            os.fsync(file.fileno())
            os.replace(part, target)


def matches(path: Path, checksum: str) -> bool:
    """Whether the file has this checksum."""
    algorithm, _, wanted = checksum.partition(":")
    with path.open("rb") as file:
        # No secret is kept here: without saying so, some systems refuse MD5.
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return found.hexdigest() == wanted


@contextmanager
def locked(path: Path, waiting: Callable[[], None]) -> Iterator[IO[bytes]]:
    """The file ``path``, made if it is absent and held for this process alone; unbuffered.

    Who holds it may rename or remove it: those who wait for it then open the new one. ``waiting`` is called once if
    another process holds it.
    """
    while True:
        with open(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0) as file:
            _lock(file, waiting)
            try:
                still_there = os.path.samestat(os.fstat(file.fileno()), os.stat(path))
            except FileNotFoundError:
                still_there = False
            if still_there:
                yield file
                return


def _lock(file: IO[bytes], waiting: Callable[[], None]) -> None:
    try:
        import fcntl
    except ImportError:  # no such thing on Windows: there, fetch from one process at a time
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        waiting()
        fcntl.flock(file, fcntl.LOCK_EX)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):  # some network disks have no locks
            raise


@contextmanager
def on_disk(target: Path) -> Iterator[None]:
    """What goes wrong on this machine while ``target`` is written, in a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk of {target.parent} is full; make room and try again: what has come so far is kept."
            ) from error
        raise UserError(
            f"Cannot write {target} ({error.strerror or error}); check the folder and its rights, or give another."
        ) from error


def _fill(
    file: IO[bytes], url: str, size: int | None, timeout: float, wait: float, tell: Callable[[int, int | None], None]
) -> None:
    """Try until the whole file is there, and give up after some tries in a row that brought nothing new."""
    farthest, failures = file.seek(0, os.SEEK_END), 0
    while True:
        try:
            return _receive(file, url, size, timeout, tell)
        except _Dropped as dropped:
            reached = file.seek(0, os.SEEK_END)
            failures = 1 if reached > farthest else failures + 1
            farthest = max(farthest, reached)
            if failures >= TRIES:
                raise Unreachable(
                    f"Fetching {url} broke off after {reached:,} bytes ({dropped}); try again: it goes on from there."
                ) from dropped
            time.sleep(wait * 2 ** (failures - 1))


def _receive(
    file: IO[bytes], url: str, size: int | None, timeout: float, tell: Callable[[int, int | None], None]
) -> None:
    """One try: ask for what is missing and append it."""
    done = file.seek(0, os.SEEK_END)
    if size is not None and done >= size:
        if done == size:
            return
        done = _start_anew(file)
    with _ask(url, done, timeout) as response:
        if response.status == 416:
            # Nothing lies behind what we have: it is the whole file, or not the same file.
            if response.headers.get("Content-Range") == f"bytes */{done}" and size is None:
                return
            _start_anew(file)
            raise _Dropped("the server has fewer bytes")
        if done and not (response.status == 206 and _range_start(response) == done):
            if response.status == 206:
                _start_anew(file)
                raise _Dropped("the server sent another range than asked for")
            done = _start_anew(file)
        total = None if response.length is None else done + response.length
        if size is not None and total is not None and total != size:
            raise UserError(f"{url} is {total:,} bytes long where {size:,} were expected; it is not the file it was.")
        total = size if total is None else total
        while chunk := _read(response, _CHUNK if total is None else min(_CHUNK, total - done + 1)):
            if total is not None and done + len(chunk) > total:
                _start_anew(file)
                raise UserError(f"{url} sent more than the {total:,} bytes expected, so it was stopped.")
            _write(file, chunk)
            done += len(chunk)
            tell(done, total)
        if total is not None and done < total:
            raise _Dropped("the connection was closed")


def _start_anew(file: IO[bytes]) -> int:
    file.truncate(0)
    return file.seek(0)


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """The first byte of "bytes 5-9/10"."""
    unit, _, rest = response.headers.get("Content-Range", "").partition(" ")
    first = rest.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdecimal() else None


def _ask(url: str, start: int, timeout: float) -> http.client.HTTPResponse:
    headers = {"User-Agent": "advibp", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = _opener().open(request, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error  # type: ignore[return-value]  # it is a response too
        with error:
            said = f"{error.code} {error.reason}"
        if error.code in _TRY_AGAIN:
            raise _Dropped(f"the server said {said}") from error
        raise Unreachable(f"Cannot fetch {url}: the server said {said}; try again later, or name a mirror.") from error
    except _NETWORK as error:
        raise Unreachable(f"Cannot reach {url} ({_why(error)}); check the network, or name a mirror.") from error


def _read(response: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return response.read(count)
    except _NETWORK as error:
        raise _Dropped(_why(error)) from error


def _write(file: IO[bytes], chunk: bytes) -> None:
    """All of it: an unbuffered write may take less than it is given."""
    rest = memoryview(chunk)
    while rest:
        rest = rest[file.write(rest) :]


def _why(error: BaseException) -> str:
    reason = getattr(error, "reason", None) or error  # a URLError wraps the error that matters
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def _opener() -> urllib.request.OpenerDirector:
    """http and https alone: the usual opener would also follow a redirection to ftp."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler,
        urllib.request.UnknownHandler,
        urllib.request.HTTPHandler,
        urllib.request.HTTPSHandler,
        urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler,
        urllib.request.HTTPErrorProcessor,
    ):
        opener.add_handler(handler())
    return opener
