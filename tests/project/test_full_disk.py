"""A disk that gets full, for real: one sentence, exit code 2, nothing lost, and with room again all goes on."""

from __future__ import annotations

import json
import resource
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c

from advibp.storage.events import Events

SMALL_DISK = Path(__file__).parents[2] / "checks" / "endurance" / "small_disk.py"
NO_DISK = 77  # what it exits with where nothing may be mounted
REASONS = {"disk": "No space left on device", "limit": "File too large"}

Stories = dict[str, list[dict[str, Any]]]


def play(kind: str, work: Path) -> Stories:
    """Return the results on a disk of half a megabyte, or with a limit on file sizes."""
    command = [sys.executable, str(SMALL_DISK), kind, str(work)]
    if kind == "disk":
        if not shutil.which("unshare"):
            pytest.skip("no file system can be mounted here without unshare")
        command = ["unshare", "--map-root-user", "--mount", *command]  # the mount ends with the process
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    if kind == "disk" and (done.returncode == NO_DISK or done.stderr.startswith("unshare:")):
        pytest.skip("no file system can be mounted here")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def is_one_sentence(said: str, reason: str) -> bool:
    return said.startswith("error: ") and said.count("\n") == 1 and said.endswith("\n") and reason in said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["disk", "limit"])
def test_full_disk_has_a_message_of_one_line_and_loses_nothing(kind: str, tmp_path: Path) -> None:
    """There is no traceback, and the final run equals an undisturbed one bit by bit."""
    stories = play(kind, tmp_path)
    for story in (*stories["train"], *stories["certify"]):
        for said in (story["full"], story["still_full"]):
            stopped = said["code"] == 2 and is_one_sentence(said["stderr"], REASONS[kind])
            assert stopped or said == {"code": 0, "stderr": ""}, story
        assert story["problems"] == []  # files that are not whole, records that went, what differs in the end
        assert story["freed"] == {"code": 0, "stderr": ""}
        assert story["steps"] == sorted(story["steps"])
        assert story["records"] == sorted(story["records"])
    if kind == "disk":
        got_full_at_different_moments(stories)


def got_full_at_different_moments(stories: Stories) -> None:
    """The disk is full before and after the first checkpoint, and before, within and after a batch of 80 records."""
    assert len({story["steps"][0] for story in stories["train"]}) >= 3
    counts = {story["records"][0] for story in stories["certify"]}
    assert 0 in counts
    assert any(n % 80 for n in counts)
    assert any(n > 80 for n in counts)


# TensorBoard's events


@contextmanager
def files_of(size: int) -> Iterator[None]:
    """Limit the size of files."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def logged(folder: Path) -> list[tuple[int, str]]:
    """Return step and tag of each scalar, after comparing checksums."""
    raw, at, found = b"".join(p.read_bytes() for p in folder.iterdir()), 0, []
    while at < len(raw):
        (length,) = struct.unpack_from("<Q", raw, at)
        content = raw[at + 12 : at + 12 + length]
        ends = [struct.unpack_from("<I", raw, at + n)[0] for n in (8, 12 + length)]
        assert ends == [masked_crc32c(raw[at : at + 8]), masked_crc32c(content)]
        event = Event.FromString(content)
        found += [(event.step, value.tag) for value in event.summary.value]
        at += 16 + length
    return found


def metrics(epoch: int) -> dict[str, Any]:
    return {"epoch": epoch, "phase": "full", "loss": 0.5, "angle": 20}


@pytest.mark.parametrize("room", [0, 10, 30, 100, 130, 250])
def test_events_wait_until_there_is_room(room: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with files_of(room):
        events = Events(tmp_path / "events", 0)
        for epoch in range(1, 30):  # many more than a queue would hold
            events.log(metrics(epoch))
    events.log(metrics(30))
    events.close()
    assert logged(tmp_path / "events") == [(n, tag) for n in range(1, 31) for tag in ("loss", "angle")]
    assert caplog.messages == []


def test_message_about_events_that_could_not_be_written(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "events").write_text("in the way")
    events = Events(tmp_path / "events", 3)
    events.log(metrics(4))
    assert caplog.messages == []
    events.close()
    (said,) = caplog.messages
    assert "\n" not in said
    assert "metrics.jsonl" in said
