"""TensorBoard events of a run, one scalar per metric and epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class Events:
    def __init__(self, folder: Path, epoch: int) -> None:
        from tensorboardX import SummaryWriter  # slow to import, and only training needs it

        # Epochs that are trained again after a resume replace the ones that were logged.
        self.writer = SummaryWriter(logdir=str(folder), purge_step=epoch + 1 if epoch else None)

    def log(self, metrics: dict[str, Any]) -> None:
        for name, value in metrics.items():
            if isinstance(value, int | float) and name != "epoch":
                self.writer.add_scalar(name, value, metrics["epoch"])
        self.writer.flush()

    def close(self) -> None:
        self.writer.close()
