"""The random numbers that others draw: those of torch, numpy and Python, which a user's own code may use."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Randomness:
    """Where the three global generators stand (the CPU's; no others are touched)."""

    of_torch: Tensor
    of_numpy: Any
    of_python: Any

    @classmethod
    def now(cls) -> Randomness:
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())

    def restore(self) -> None:
        torch.set_rng_state(self.of_torch)
        np.random.set_state(self.of_numpy)
        random.setstate(self.of_python)


def seed_all(*numbers: int) -> int:
    """Seed the three generators with a mixture of ``numbers``, and return it."""
    digest = hashlib.blake2b(" ".join(map(str, numbers)).encode(), digest_size=4).digest()
    seed = int.from_bytes(digest, "little")
    torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which seeds all devices too
    np.random.seed(seed)
    random.seed(seed)
    return seed
