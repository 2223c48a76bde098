"""What a training step costs, as ratios measured side by side in one run: `make bench`.

Every round runs one step of each method and of its floor, in turn, so that a machine that is busy for a while is busy
for all of them. A ratio is the median of the rounds' ratios, with their quartiles.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from floor import Floor

from advibp import data, keep_freed_memory, nets
from advibp.folder import hardware
from advibp.recipe import Recipe
from advibp.training import Training

NETS = {"dm-small": 30, "cnn-small": 20, "dm-medium": 8}  # and rounds
METHODS = ("standard", "fgsm-random", "ibp", "fixed", "advibp")
#: name -> numerators, denominators
RATIOS = {
    "advibp / fixed": (("advibp",), ("fixed",)),
    "fixed / standard": (("fixed",), ("standard",)),
    "advibp / standard": (("advibp",), ("standard",)),
    "advibp / (fgsm-random + ibp)": (("advibp",), ("fgsm-random", "ibp")),
    "ibp / standard": (("ibp",), ("standard",)),
    "advibp / floor": (("advibp",), ("floor of advibp",)),
    "standard / floor": (("standard",), ("floor of standard",)),
    "ibp / floor": (("ibp",), ("floor of ibp",)),
}


def training(net: str, method: str, batch: int) -> Training:
    """At full eps from the first step on, on random images."""
    x, y = torch.rand(batch + 1, 1, 28, 28), torch.arange(batch + 1) % 10
    images = data.from_tensors(x, y, x[:1], y[:1], validation=1, classes=10)
    options: dict[str, Any] = {"epochs": 1000, "warmup_natural": 0, "warmup_adversarial": 0, "ramp": 0, "eps": 0.3}
    return Training(nets.build(net, seed=0), images, Recipe.of({**options, "method": method, "batch_size": batch}))


def measure(net: str, rounds: int, batch: int = 256) -> dict[str, list[float]]:
    """Seconds of every round, by job."""
    trainings = {method: training(net, method, batch) for method in METHODS}
    x, y = trainings["advibp"].feed.example(batch)
    floor = Floor(trainings["advibp"].net, x)  # type: ignore[arg-type]
    jobs: dict[str, Callable[[], object]] = {m: (lambda t=t: t.step(x, y)) for m, t in trainings.items()}
    jobs |= {"floor of standard": floor.standard, "floor of ibp": floor.ibp, "floor of advibp": floor.joint}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(-3, rounds):  # three to warm up
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Quartiles of each ratio over the rounds."""
    found = {}
    for name, (above, below) in RATIOS.items():
        parts = [[sum(of) for of in zip(*(seconds[job] for job in jobs), strict=True)] for jobs in (above, below)]
        found[name] = [round(q, 3) for q in quantiles([a / b for a, b in zip(*parts, strict=True)], n=4)]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="*", default=list(NETS), help="which networks")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("latest.json"))
    args = parser.parse_args()
    kept = keep_freed_memory()
    torch.manual_seed(0)
    result: dict[str, Any] = {"hardware": hardware(), "freed memory is kept": kept, "nets": {}}
    for net in args.net:
        seconds = measure(net, NETS.get(net, 10))
        found = ratios(seconds)
        milliseconds = {name: round(1e3 * median(times), 2) for name, times in seconds.items()}
        result["nets"][net] = {"ratios (quartiles)": found, "milliseconds (medians)": milliseconds}
        print(f"\n{net}: standard step {milliseconds['standard']} ms, advibp step {milliseconds['advibp']} ms")
        for name, (low, middle, high) in found.items():
            print(f"  {name:30s} {middle:6.2f}   ({low:.2f} to {high:.2f})")
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
