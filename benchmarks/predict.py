"""Latency of a prediction with a certificate, one image at a time, on one thread.

    python benchmarks/predict.py [RUN]

The median of many calls, in milliseconds and relative to a forward pass of the network. Run it on an idle machine.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import advibp

RUN = "results/runs/mnist-dm-small-advibp-0.4-60e-s0"
CALLS = 300
EPS = 0.1
CASES: list[tuple[str, dict[str, Any]]] = [
    ("class and proof at eps", {"eps": EPS}),
    ("class and radius, to 0.1 %", {}),
    ("class and radius, to 1 %", {"tolerance": 0.01}),
]


def median_ms(call: Callable[[Tensor], object], images: Tensor) -> float:
    """Return the median time of a call per image, in milliseconds, after ten calls."""
    for x in images[:10]:
        call(x)
    seconds = []
    for x in images:
        start = time.perf_counter()
        call(x)
        seconds.append(time.perf_counter() - start)
    return 1000 * statistics.median(seconds)


def main() -> None:
    torch.set_num_threads(1)
    run = advibp.open_run(sys.argv[1] if len(sys.argv) > 1 else RUN)
    net, shape = run.net, run.facts["input_shape"]
    images = advibp.data.load(run.recipe.data).test.x[:CALLS]
    with torch.no_grad():
        forward = median_ms(lambda x: net(x[None]), images)
    print(f"{'call':52s} {'ms':>8s} {'forward passes':>15s}")
    print(f"{'forward pass':52s} {forward:8.2f} {1:15.1f}")
    for fast in (False, True):
        for name, options in CASES:
            start = time.perf_counter()
            predictor = advibp.Predictor(net, input_shape=shape, fast=fast, **options)
            prepared = time.perf_counter() - start
            ms = median_ms(predictor, images)
            label = f"{name}{', fast' * fast} (prepared in {prepared:.1f} s)"
            print(f"{label:52s} {ms:8.2f} {ms / forward:15.1f}")
    batch = advibp.Predictor(net, eps=EPS, input_shape=shape)
    start = time.perf_counter()
    batch(images)
    ms = 1000 * (time.perf_counter() - start) / len(images)
    print(f"{f'class and proof at eps, batch of {CALLS}':52s} {ms:8.2f} {ms / forward:15.1f}")


if __name__ == "__main__":
    main()
