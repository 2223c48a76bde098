"""Run command lines, and write small data."""

from __future__ import annotations

import shlex

import numpy as np

from advibp import cli


def call(command: str) -> int:
    """Run a command line and return its exit code."""
    try:
        return cli.main(shlex.split(command))
    except SystemExit as stop:
        return int(stop.code or 0)


def halves(count: int, size: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Return images (N, size, size), uint8, with a bright left or right half, and labels."""
    chance = np.random.RandomState(0)
    y = chance.randint(0, 2, count)
    x = chance.randint(0, 80, (count, size, size)).astype(np.uint8)
    for i, label in enumerate(y):
        x[i, :, label * size // 2 : (label + 1) * size // 2] += 150
    return x, y
