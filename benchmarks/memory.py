"""Measure the peak memory of a training without libraries and data, each method in a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

STEPS = 4


def peaks(net: str, methods: tuple[str, ...] = ("standard", "fixed", "advibp"), **options: object) -> dict[str, float]:
    """Return megabytes by method."""
    return {method: _measure(net, method, options) for method in methods}


def _measure(net: str, method: str, options: dict[str, object]) -> float:
    command = [sys.executable, __file__, net, method, json.dumps(options)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _resident(what: str) -> float:
    """Return VmRSS or VmHWM in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def main() -> None:
    from steps import training

    net, method, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    warm = training("FC 2", "advibp", 2)  # loads all libraries before memory is measured
    warm.step(*warm.feed.example(2))
    before = _resident("VmRSS")
    run = training(net, method, **options)
    x, y = run.feed.example(run.batch_size)
    for _ in range(STEPS):
        run.step(x, y)
    print(round(_resident("VmHWM") - before, 1))


if __name__ == "__main__":
    main()
