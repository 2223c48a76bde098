"""Limits for the sizes that files state, checked by the readers before they allocate memory.

A compressed file can expand by a factor of a thousand, and a header can state any size. The decompressed size must be
plausible, and the values must fit into memory as float32.
"""

from __future__ import annotations

import os

from advibp.errors import UserError

DEFLATE_RATIO = 1032  # the maximum compression ratio of deflate
LARGE = 2**30  # smaller sizes may have any compression ratio
DENSEST = 500  # images are compressed by a factor of 100 at most, a file of zeros by 1000


def memory() -> int:
    """Return the memory of this machine in bytes, or a terabyte if it is not known."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


def check(values: int, where: object, *, unpacked: int = 0, packed: int = 0) -> None:
    """Raise an error if values do not fit into memory, or if a compression ratio is implausible.

    Args:
        values: Number of values, which need 4 bytes each.
        where: What contains the values, as the subject of the error message.
        unpacked: Decompressed size in bytes. Up to 1 GiB it is always accepted.
        packed: Compressed size in bytes, at least ``unpacked`` / 500.

    Raises:
        UserError: If one of the limits is exceeded.
    """
    if unpacked > LARGE and unpacked > DENSEST * packed:
        raise UserError(
            f"{where} would expand from {packed:,} bytes to {unpacked:,}, more than {DENSEST} to 1, which is "
            "implausible for images; it was not read, so download it again or save it without compression."
        )
    if 4 * values > memory():
        raise UserError(
            f"{where} has {values:,} values, which need {4 * values / 2**30:,.0f} GiB as float32, and this machine has "
            f"{memory() / 2**30:,.0f}; give fewer or smaller images."
        )
