"""Data that a small network learns quickly, displays that stop a run, and comparison of runs."""

from __future__ import annotations

from typing import Any

import torch

from advibp import Run, data
from advibp.data import Data
from advibp.runs.training_display import Silent
from advibp.training import Training


def halves(count: int = 90) -> Data:
    """Return images (1, 4, 4) with a bright left or right half."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = 0.6 * torch.rand(count, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 0.4
    x[y == 1, :, :, 2:] += 0.4
    return data.from_tensors(x, y, x[:20], y[:20], validation=30, name="halves")


class Stop(Exception):
    """Raised by `StopAt`, like a sudden end of the process."""


class StopAt(Silent):
    """Stops a run after a step, or after an epoch whose checkpoint is written."""

    def __init__(self, *, step: int = 0, epoch: int = 0) -> None:
        self.at_step, self.at_epoch = step, epoch

    def step(self, training: Training, step: Any) -> None:
        if training.steps == self.at_step:
            raise Stop

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        if training.epoch == self.at_epoch:
            raise Stop


def ends_alike(one: Run, two: Run) -> bool:
    """Return whether two runs have equal weights, bit by bit, and equal metrics except for seconds."""
    a, b = one.net.state_dict(), two.net.state_dict()
    histories = [[{k: v for k, v in m.items() if k != "seconds"} for m in r.history] for r in (one, two)]
    return all(torch.equal(a[k], b[k]) for k in a) and histories[0] == histories[1]
