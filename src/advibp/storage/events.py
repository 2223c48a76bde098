"""Write TensorBoard events of a run: one scalar per metric and epoch.

Events are written synchronously. The writer thread of tensorboardX ends if the disk is full, and then blocks the
training forever; only its message format and checksums are used here.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)


class Events:
    """An event file. A write that fails does not stop the training and is tried again later.

    metrics.jsonl has the same numbers.

    Args:
        folder: where the file is created.
        epoch: epochs that are finished before this start.
    """

    def __init__(self, folder: Path, epoch: int) -> None:
        # The process id makes the names of two starts within one second differ. TensorBoard sorts files by name.
        self.file = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self.size = 0  # bytes of complete events in the file
        self.pending = _event(file_version="brain.Event:2")
        if epoch:
            # Epochs that are trained again after a resume replace the logged ones.
            self.pending += _event(step=epoch + 1, session_log={"status": 1})  # 1 is START
        self._write()

    def log(self, metrics: dict[str, Any]) -> None:
        """Write the metrics of one epoch."""
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "epoch":
                scalar = {"tag": name, "simple_value": value}
                self.pending += _event(step=metrics["epoch"], summary={"value": [scalar]})
        self._write()

    def close(self) -> None:
        """Write pending events; log a warning if that fails."""
        if self.pending and (problem := self._write()):
            _log.warning("%s is incomplete (%s); metrics.jsonl has the same numbers", self.file, problem.strerror)

    def _write(self) -> OSError | None:
        """Append the pending events, and return the error if that fails."""
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("ab") as out:
                out.truncate(self.size)  # remove the incomplete event of a failed write
                out.write(self.pending)
        except OSError as error:
            return error
        self.size, self.pending = self.size + len(self.pending), b""
        return None


def _event(**fields: Any) -> bytes:
    """Return one event in the file format: length, checksum of the length, content, checksum of the content."""
    from tensorboardX.proto.event_pb2 import Event  # slow to import; only training needs it
    from tensorboardX.record_writer import masked_crc32c

    content = Event(wall_time=time.time(), **fields).SerializeToString()
    length = struct.pack("<Q", len(content))
    return b"".join([length, _checksum(masked_crc32c(length)), content, _checksum(masked_crc32c(content))])


def _checksum(value: int) -> bytes:
    return struct.pack("<I", value)
