"""A lock between processes."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

_UNSUPPORTED = (errno.ENOLCK, errno.ENOTSUP)


@contextmanager
def exclusive(path: Path, on_wait: Callable[[], None]) -> Iterator[None]:
    """Hold the lock file ``path``, and delete it afterwards.

    Some network file systems do not support locks. There the block runs without one.

    Args:
        path: The lock file. Its folder exists.
        on_wait: Called once if another process holds the lock.
    """
    lock = FileLock(path)
    try:
        try:
            lock.acquire(timeout=0)
        except Timeout:
            on_wait()
            lock.acquire()
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    try:
        yield
    finally:
        with suppress(OSError):  # Windows does not delete open files
            path.unlink()
        lock.release()
