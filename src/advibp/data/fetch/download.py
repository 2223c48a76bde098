"""Download of one file over HTTP: resumable, limited to the expected size, verified by checksum.

The received bytes are stored next to the target in a file that ends in ``.part``. It is kept when the connection
breaks, the disk is full or the process is killed, and the next call continues from there. pooch 1.9 is not used: it
deletes incomplete files, has no size limit and no lock, and extracts tar files unfiltered before Python 3.12.
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
"""Called as ``progress(task, done, total)``, in bytes; ``total`` is None if it is not known."""

MAX_FAILURES = 4  # consecutive attempts that receive no new bytes
_CHUNK = 1 << 18
_TRANSIENT = {408, 429, 500, 502, 503, 504}
# URLError, timeouts and TLS errors are OSErrors; a malformed address raises ValueError.
_NETWORK_ERRORS = (OSError, http.client.HTTPException, ValueError)


class Unreachable(UserError):
    """The server could not be reached or did not send the file; another source may have it."""


class _Interrupted(Exception):
    """An attempt ended before the file was complete; another attempt may receive the rest."""


def silent(task: str, done: int, total: int | None) -> None:
    """A `Progress` that shows nothing."""


def download(
    url: str,
    target: Path,
    *,
    size: int,
    checksum: str,
    progress: Progress = silent,
    timeout: float = 10.0,
    wait: float = 1.0,
) -> None:
    """Download ``url`` to ``target`` unless the target already has this checksum.

    Only one process at a time may download to the same target; the caller holds a lock.

    Args:
        url: An address that begins with ``http://`` or ``https://``.
        target: The file to create. Its folder is created if needed.
        size: The size of the file in bytes. No more bytes are stored.
        checksum: ``"sha256:..."``, ``"sha1:..."`` or ``"md5:..."``.
        progress: Called after each chunk.
        timeout: Seconds that the server may take to answer or to send the next bytes.
        wait: Seconds before the second attempt. Each further wait is twice as long.

    Raises:
        Unreachable: If the server cannot be reached, refuses the request, or stops sending.
        UserError: If the file has another size or checksum, or cannot be written.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise UserError(f"Cannot fetch {url}: expected an address that begins with http:// or https://.")
    part = target.with_name(f"{target.name}.part")
    with disk_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.is_file() and matches(target, checksum):
            return
        with part.open("ab") as file:
            _fill(file, url, size, timeout, wait, lambda done: progress(target.name, done, size))
        if not matches(part, checksum):
            part.unlink()
            raise UserError(
                f"{url} sent other bytes than expected (wrong {checksum.partition(':')[0]} checksum), so they were "
                "deleted; try again later, or from another network."
            )
        os.replace(part, target)


def matches(path: Path, checksum: str) -> bool:
    """Return True if the file has this checksum, given as ``"algorithm:hexdigest"``."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        # Systems in FIPS mode refuse MD5 unless it is declared as not used for security.
        digest = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return digest.hexdigest() == expected


@contextmanager
def disk_errors(target: Path) -> Iterator[None]:
    """Raise a `UserError` that names ``target`` in place of an `OSError`."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(
                f"The disk of {target.parent} is full; make room and try again: the bytes received so far are kept."
            ) from error
        raise UserError(
            f"Cannot write {target} ({error.strerror or error}); check the folder and its permissions, or choose "
            "another folder."
        ) from error


def _fill(file: IO[bytes], url: str, size: int, timeout: float, wait: float, progress: Callable[[int], None]) -> None:
    """Append to ``file`` until it is complete. Give up after MAX_FAILURES attempts in a row without new bytes."""
    largest, failures = file.seek(0, os.SEEK_END), 0
    while True:
        try:
            return _receive(file, url, size, timeout, progress)
        except _Interrupted as interruption:
            received = file.seek(0, os.SEEK_END)
            failures = 1 if received > largest else failures + 1
            largest = max(largest, received)
            if failures >= MAX_FAILURES:
                raise Unreachable(
                    f"The download of {url} stopped after {received:,} bytes ({interruption}); try again: it continues "
                    "from there."
                ) from interruption
            time.sleep(wait * 2 ** (failures - 1))


def _receive(file: IO[bytes], url: str, size: int, timeout: float, progress: Callable[[int], None]) -> None:
    """Request the missing bytes once and append them."""
    done = file.seek(0, os.SEEK_END)
    if done > size:
        done = _clear(file)
    if done == size:
        return
    with _request(url, done, timeout) as response:
        start = _first_byte(response)
        if start not in (0, done):
            _clear(file)
            raise _Interrupted("the server did not send the requested range")
        if start != done:
            done = _clear(file)
        if response.length is not None and done + response.length != size:
            raise UserError(
                f"{url} is {done + response.length:,} bytes long where {size:,} were expected; the file has changed."
            )
        while chunk := _read(response, min(_CHUNK, size - done + 1)):
            if done + len(chunk) > size:
                _clear(file)
                raise UserError(f"{url} sent more than the {size:,} bytes expected, so the download was stopped.")
            file.write(chunk)
            file.flush()  # so that a killed process loses nothing
            done += len(chunk)
            progress(done)
        if done < size:
            raise _Interrupted("the connection was closed")


def _clear(file: IO[bytes]) -> int:
    file.truncate(0)
    return file.seek(0)


def _first_byte(response: http.client.HTTPResponse) -> int | None:
    """Return the position of the first byte that the response contains; None if the requested range is refused."""
    if response.status not in (206, 416):
        return 0
    unit, _, numbers = response.headers.get("Content-Range", "").partition(" ")  # "bytes 5-9/10"
    first = numbers.partition("-")[0]
    return int(first) if unit == "bytes" and first.isdecimal() else None


def _request(url: str, start: int, timeout: float) -> http.client.HTTPResponse:
    headers = {"User-Agent": "advibp", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
    try:
        request = urllib.request.Request(url, headers=headers)
        response: http.client.HTTPResponse = _opener().open(request, timeout=timeout)
        return response
    except urllib.error.HTTPError as error:
        if error.code == 416:
            return error  # type: ignore[return-value]  # an HTTPError is a response too
        with error:
            answer = f"the server answered {error.code} {error.reason}"
        if error.code in _TRANSIENT:
            raise _Interrupted(answer) from error
        raise Unreachable(f"Cannot fetch {url}: {answer}; try again later, or set a mirror.") from error
    except _NETWORK_ERRORS as error:
        raise Unreachable(f"Cannot reach {url} ({_reason(error)}); check the network, or set a mirror.") from error


def _read(response: http.client.HTTPResponse, count: int) -> bytes:
    try:
        return response.read(count)
    except _NETWORK_ERRORS as error:
        raise _Interrupted(_reason(error)) from error


def _reason(error: BaseException) -> str:
    cause = getattr(error, "reason", None) or error  # a URLError wraps the error that caused it
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__


def _opener() -> urllib.request.OpenerDirector:
    """Return an opener for http and https only. The default opener also follows redirects to ftp."""
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
