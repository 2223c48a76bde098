"""A training of a second or less, for tests of callbacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import advibp


def tiny_data() -> advibp.data.Data:
    x, y = torch.rand(60, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    return advibp.data.from_tensors(x, y, x, y, validation=10)


def tiny_net() -> torch.nn.Module:
    return advibp.nets.build("FC 4, FC 4", input_shape=(1, 2, 2), classes=2, seed=0)


def tiny_train(out: Path | None = None, callbacks: Any = None, **options: Any) -> advibp.Run:
    fixed = {"eps": 0.05, "epochs": 4, "batch_size": 10, "warmup_natural": 1, "warmup_adversarial": 0, "ramp": 1}
    options = {"out": out, "show": advibp.Silent(), **fixed, **options}
    return advibp.train(tiny_net(), tiny_data(), callbacks=callbacks, **options)
