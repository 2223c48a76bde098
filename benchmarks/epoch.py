"""Measure the share of an epoch outside of the steps: data, logging, validation, checkpoints and display."""

from __future__ import annotations

import io
import tempfile
import time
from typing import Any

from rich.console import Console
from torch import Tensor

from advibp import data, nets, train
from advibp.runs.training_display import Live
from advibp.training import Training
from advibp.training.metrics import Step


def outside(net: str = "dm-small", epochs: int = 3) -> float:
    """Return the share for a training like that of the command line; the first epoch is a warm-up."""
    inside: list[float] = []
    original = Training.step

    def timed(self: Training, x: Tensor, y: Tensor) -> Step:
        began = time.perf_counter()
        step = original(self, x, y)
        inside.append(time.perf_counter() - began)
        return step

    marks: list[tuple[float, int]] = []

    class Marking(Live):
        def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
            super().epoch(training, metrics)
            marks.append((time.perf_counter(), len(inside)))

    Training.step = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as folder:
            console = Console(file=io.StringIO(), force_terminal=True)
            options: dict[str, Any] = {"warmup_natural": 0, "warmup_adversarial": 0, "ramp": 1, "epochs": epochs}
            train(nets.build(net), data.load("mnist"), out=f"{folder}/run", show=Marking(console), **options)
    finally:
        Training.step = original  # type: ignore[method-assign]
    (begin, first), (end, last) = marks[0], marks[-1]
    return 1 - sum(inside[first:last]) / (end - begin)
