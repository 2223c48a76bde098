"""Keep freed memory in the process instead of returning it to the operating system.

glibc returns every large block to the system when it is freed. (The threshold is 128 kB at first and 32 MB at most.)
Each page of the next block then costs a page fault. A training step frees and allocates the same blocks again and
again: on CPUs these faults took 12 % to 25 % of its time.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # options of mallopt(3)
_MAX_BYTES = 2**31 - 1


def keep_freed_memory() -> bool:
    """Tell glibc to keep freed memory, for this process and until it ends.

    The command line does this by itself. Call it at the start of a training script of your own.

    Returns:
        Whether it worked; False on systems without glibc.

    Examples:
        >>> import advibp
        >>> worked = advibp.keep_freed_memory()
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    options = ((_MMAP_THRESHOLD, _MAX_BYTES), (_TRIM_THRESHOLD, _MAX_BYTES), (_TOP_PAD, 2**26))
    return all(bool(mallopt(option, value)) for option, value in options)
