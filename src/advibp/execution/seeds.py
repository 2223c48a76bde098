"""Randomness as a pure function of the seed and of what it is for, so that a resumed run has none to restore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def mix(seed: int, stream: int, count: int) -> int:
    """One 63-bit seed from three numbers (splitmix64), so that neighbouring steps share nothing."""
    z = (seed * 0x9E3779B97F4A7C15 + stream * 0xD1B54A32D192ED03 + count * 0x8CB92BA72F3D8DD7) & (2**64 - 1)
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return (z ^ (z >> 31)) & (2**63 - 1)


def seed_everything(seed: int, device: torch.device) -> None:
    """Seed the generators that a step on this device may draw from. torch.manual_seed also looks for devices that are
    not there, which takes longer than a small layer."""
    if device.type == "cpu":
        torch.default_generator.manual_seed(seed)
    else:
        torch.manual_seed(seed)


@contextmanager
def untouched_global_state() -> Iterator[None]:
    """Training seeds torch's global generator and sets the thread count; the caller gets both back."""
    threads = torch.get_num_threads()
    with torch.random.fork_rng():
        try:
            yield
        finally:
            torch.set_num_threads(threads)
