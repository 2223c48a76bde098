"""Rows of tables on the page: names and values of features, and the values of adversarial examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from advibp.bounds import Perturbation

#: Values of all rows in a page, at most.
MOST_VALUES = 500_000


def is_picture(x: Tensor) -> bool:
    """Whether an input is shown as an image (C, H, W)."""
    return x.dim() == 3


@dataclass
class Features:
    """The rows of all runs.

    Attributes:
        names: For each run, the names of the features; [] for images.
        scales: For each run, the radius of each feature relative to eps; [] for images.
        rows: Values of each row.
        numbers: Number of the row of each input, by fingerprint.
        changed: Values of the adversarial examples, by place of the record.
    """

    names: list[list[str]] = field(default_factory=list)
    scales: list[list[float]] = field(default_factory=list)
    rows: list[list[float]] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    changed: dict[Any, list[float]] = field(default_factory=dict)

    def add_run(self) -> None:
        """Add a run, whose inputs may be images."""
        self.names.append([])
        self.scales.append([])

    def describe(self, run: int, x: Tensor, names: Sequence[str], perturbation: Perturbation) -> None:
        """Set the names and scales of a run that has an input x."""
        if self.names[run]:
            return
        count = x.numel()
        self.names[run] = [str(n) for n in names] if len(names) == count else [f"x{k}" for k in range(count)]
        scale = perturbation.radius(1.0, x)
        self.scales[run] = torch.as_tensor(scale, dtype=torch.float64).expand(x.shape).flatten().tolist()

    def add(self, image: str, x: Tensor) -> bool:
        """Add an input by its fingerprint. Returns False if there is no room left."""
        if (len(self.rows) + 1) * x.numel() > MOST_VALUES:
            return False
        self.numbers[image] = len(self.rows)
        self.rows.append(x.flatten().tolist())
        return True

    def facts(self) -> dict[str, Any]:
        """The rows as plain data for the page."""
        return {"names": self.names, "scales": self.scales, "rows": self.rows}
