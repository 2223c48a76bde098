"""Latency of a prediction with a certificate, one image at a time, on one thread.

    python benchmarks/predict.py

The median of many calls, in milliseconds and relative to a forward pass of the network. Run it on an idle machine.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor

import advibp

CALLS = 300
EPS = 0.1


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
    warnings.simplefilter("ignore", advibp.CollapseWarning)
    data = advibp.data.load("mnist", limit=5000)
    net = advibp.nets.build("dm-small", data.input_shape, data.classes, seed=0)
    # A short training, because the search for the radius depends on how the margins change with eps.
    advibp.train(net, data, eps=EPS, method="ibp", epochs=3, show=advibp.Silent())
    net.eval()
    images = data.test.x[:CALLS]
    with torch.no_grad():
        forward = median_ms(lambda x: net(x[None]), images)
    print(f"{'call':42s} {'ms':>8s} {'forward passes':>15s}")
    print(f"{'forward pass':42s} {forward:8.2f} {1:15.1f}")
    for fast in (False, True):
        for name, options in (("class and proof at eps", {"eps": EPS}), ("class and radius", {})):
            start = time.perf_counter()
            predictor = advibp.Predictor(net, input_shape=data.input_shape, fast=fast, **options)
            prepared = time.perf_counter() - start
            ms = median_ms(predictor, images)
            label = f"{name}{', fast' * fast} (prepared in {prepared:.1f} s)"
            print(f"{label:42s} {ms:8.2f} {ms / forward:15.1f}")
    batch = advibp.Predictor(net, eps=EPS, input_shape=data.input_shape)
    start = time.perf_counter()
    batch(images)
    ms = 1000 * (time.perf_counter() - start) / len(images)
    print(f"{f'class and proof at eps, batch of {CALLS}':42s} {ms:8.2f} {ms / forward:15.1f}")


if __name__ == "__main__":
    main()
