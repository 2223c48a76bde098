"""When this process started, as a time of `time.monotonic`.

A time limit of a command includes the seconds in which Python starts and imports modules.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

#: The time at which this module was imported, for systems that do not tell the start of a process.
_IMPORTED = time.monotonic()
#: Index of the field starttime of /proc/PID/stat after the name of the program (see proc(5)), in ticks since boot.
_START_FIELD = 19


def process_start() -> float:
    """Return the start of this process as a time of `time.monotonic`.

    On Linux it is read from /proc, with a resolution of 0.01 s. On other systems it is the time of the first import of
    this module.

    Examples:
        >>> import time
        >>> from advibp.execution.process_clock import process_start
        >>> process_start() < time.monotonic()
        True
    """
    try:
        text = Path("/proc/self/stat").read_text()
        ticks = int(text.rpartition(")")[2].split()[_START_FIELD])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    return min(time.monotonic() - age, _IMPORTED)
