"""How much a file may promise: what it unpacks to must be plausible, and must fit into memory as float32.

A kilobyte can unpack to a megabyte, and a header can promise anything. Readers ask here before they allocate.
"""

from __future__ import annotations

import os

from advibp.errors import UserError

DEFLATE_RATIO = 1032  # deflate cannot pack more bytes than this into one
LARGE = 2**30  # below this nothing is asked about how densely it is packed
DENSEST = 500  # images pack to a hundredth at the very best; a file of zeros to a thousandth


def memory() -> int:
    """Bytes of memory this machine has; a terabyte where it does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 2**40


def check(values: int, where: object, *, unpacked: int = 0, packed: int = 0) -> None:
    """Refuse ``values`` numbers that do not fit into memory, or ``unpacked`` bytes packed into implausibly few.

    Refused is what is over 1 GiB and packed more than 500 to 1, and what needs more than the machine's memory.
    """
    if unpacked > LARGE and unpacked > DENSEST * packed:
        raise UserError(
            f"{where} would unpack {packed:,} bytes to {unpacked:,}, more than {DENSEST} to 1, which no images do; "
            "it was not read, so fetch it again or save it unpacked."
        )
    if 4 * values > memory():
        raise UserError(
            f"{where} promises {values:,} numbers, which need {4 * values / 2**30:,.0f} GiB as float32, and this "
            f"machine has {memory() / 2**30:,.0f}; give fewer or smaller images."
        )
