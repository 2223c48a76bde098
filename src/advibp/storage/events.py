"""TensorBoard events of a run, one scalar per metric and epoch.

They are written here and now: tensorboardX's own writer is a thread, which dies of a full disk and then blocks the
training for ever. Only its messages and checksums are used.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any


class Events:
    """A view of metrics.jsonl, so nothing ends for the want of them: what can't be written is tried again later."""

    def __init__(self, folder: Path, epoch: int) -> None:
        # Two starts within one second are two files; TensorBoard sorts them by name.
        self.file = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.size = 0  # bytes of whole events in the file
        self.waiting = _event(file_version="brain.Event:2")
        if epoch:
            # Epochs that are trained again after a resume replace the ones that were logged.
            self.waiting += _event(step=epoch + 1, session_log={"status": 1})  # 1 is START
        self._write()

    def log(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "epoch":
                scalar = {"tag": name, "simple_value": value}
                self.waiting += _event(step=metrics["epoch"], summary={"value": [scalar]})
        self._write()

    def close(self) -> None:
        if self.waiting and (problem := self._write()):
            print(f"{self.file} is not complete ({problem.strerror}); metrics.jsonl holds its numbers", file=sys.stderr)

    def _write(self) -> OSError | None:
        """Append what waits; returns what stood in the way."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as out:
                out.truncate(self.size)  # an attempt that failed may have left a part of an event
                out.write(self.waiting)
        except OSError as error:
            return error
        self.size, self.waiting = self.size + len(self.waiting), b""
        return None


def _event(**fields: Any) -> bytes:
    """One event as it stands in the file: length, its checksum, content, its checksum."""
    from tensorboardX.proto.event_pb2 import Event  # slow to import, and only training needs it
    from tensorboardX.record_writer import masked_crc32c

    content = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join([length, _checksum(masked_crc32c(length)), content, _checksum(masked_crc32c(content))])


def _checksum(value: int) -> bytes:
    return struct.pack("<I", value)
