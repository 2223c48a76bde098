"""Freed memory is kept for the next step instead of going back to the system.

glibc gives every large block (beyond a threshold that is 32 MB at most, and 128 kB at first) back to the system when it
is freed, and each page of the next one costs a fault when it is touched first. A training step frees and takes the same
blocks again and again: on CPUs that took an eighth to a quarter of it.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3)
_MOST = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc so, for this process, for good; False where there is no glibc. The command line does it itself."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    wanted = ((_MMAP_THRESHOLD, _MOST), (_TRIM_THRESHOLD, _MOST), (_TOP_PAD, 2**26))
    return all(bool(mallopt(option, value)) for option, value in wanted)
