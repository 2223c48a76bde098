"""The lock admits one holder at a time, and leaves no file."""

from __future__ import annotations

import errno
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from filelock import FileLock

from advibp.data.fetch.fetch_lock import exclusive


def test_one_holder_at_a_time(tmp_path: Path) -> None:
    holders, waited = [], threading.Event()

    def hold() -> int:
        with exclusive(tmp_path / "lock", waited.set):
            holders.append(1)
            most = len(holders)
            time.sleep(0.02)
            holders.pop()
        return most

    with ThreadPoolExecutor(8) as pool:
        assert {job.result() for job in [pool.submit(hold) for _ in range(8)]} == {1}
    assert waited.is_set()
    assert list(tmp_path.iterdir()) == []


def test_without_contention_nobody_waits(tmp_path: Path) -> None:
    with exclusive(tmp_path / "lock", lambda: pytest.fail("waited")):
        assert [path.name for path in tmp_path.iterdir()] == ["lock"]
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(FileLock, "acquire", fail)
    with exclusive(tmp_path / "lock", lambda: None):
        pass
