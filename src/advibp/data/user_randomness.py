"""The global random generators of torch, numpy and Python, which user code may use."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from advibp.execution.seeds import mix_to_32_bits


@dataclass(frozen=True)
class Randomness:
    """The states of the three global generators. For torch this is the generator of the CPU."""

    torch_state: Tensor
    numpy_state: Any
    python_state: Any

    @classmethod
    def now(cls) -> Randomness:
        """Return the current states."""
        return cls(torch.get_rng_state(), np.random.get_state(), random.getstate())

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self.torch_state)
        np.random.set_state(self.numpy_state)
        random.setstate(self.python_state)


def seed_all(*numbers: int) -> int:
    """Seed the three generators with a hash of ``numbers``, and return the seed."""
    seed = mix_to_32_bits(*numbers)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed all devices
    np.random.seed(seed)
    random.seed(seed)
    return seed
