"""Seeds derived from a run's seed, the purpose of the random numbers, and a counter.

All derived seeds are computed here. They are pure functions of their arguments, so a resumed run has no generator state
to restore. Streams in use: 1 to 4 by training (steps, order, augmentation, loaders), 5 by the attacks of `certify`.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def mix(seed: int, stream: int, count: int) -> int:
    """Derive a 63-bit seed from three integers by splitmix64.

    Args:
        seed: The seed of the run. Any integer.
        stream: The purpose of the random numbers, see above.
        count: Number of the step, epoch or image. Neighboring counts give unrelated seeds.
    """
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + count * 0x8CB92BA72F3D8DD7) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & (2**63 - 1)


def mix_number(seed: int, stream: int, value: float) -> int:
    """The same as `mix` for a float64 in place of the counter: all its 64 bits count."""
    return mix(seed, stream, int.from_bytes(struct.pack("<d", value), "little"))


def mix_to_32_bits(*numbers: int) -> int:
    """Derive a 32-bit seed from any number of integers by BLAKE2. NumPy does not accept longer seeds."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=4).digest()
    return int.from_bytes(digest, "little")


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on this device may draw from.

    On a CPU this avoids torch.manual_seed, which also looks for other devices and takes longer than a small layer.
    """
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def preserve_global_state() -> Iterator[None]:
    """Restore torch's global random state and thread count on exit."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
