"""Measure how the cost of a step grows with batch, width, depth and parameters: exponents e of cost ~ size^e."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from statistics import linear_regression, median
from typing import Any

from advibp import nets

Measure = Callable[..., dict[str, list[float]]]
METHODS = ["standard", "ibp", "advibp"]


def _deep(layers: int) -> str:
    return ", ".join(["Conv 16 3x3+2p1", *["Conv 16 3x3+1p1"] * (layers - 1), "FC 50"])


#: By the quantity that grows: (size, network, batch).
SERIES: dict[str, list[tuple[int, str, int]]] = {
    "batch": [(b, "dm-small", b) for b in (64, 128, 256, 512)],
    "width": [(w, f"Conv {w} 4x4+2, Conv {2 * w} 4x4+1, FC 100", 256) for w in (8, 16, 32, 64)],
    "depth": [(n, _deep(n), 256) for n in (2, 4, 8, 16)],
    "parameters": [(w, f"Conv 4 4x4+4, FC {w}, FC {w}", 256) for w in (256, 512, 1024, 2048)],
}


def fit(measure: Measure, rounds: int = 5) -> dict[str, Any]:
    """Return the milliseconds of each point and the fitted exponents, by quantity and method."""
    result: dict[str, Any] = {}
    for name, series in SERIES.items():
        seconds = [measure(net, rounds, METHODS, batch) for _, net, batch in series]
        sizes = [_parameters(net) if name == "parameters" else size for size, net, _ in series]
        result[name] = {"sizes": sizes}
        for method in METHODS:
            times = [1e3 * median(s[method]) for s in seconds]
            slope = linear_regression([math.log(s) for s in sizes], [math.log(t) for t in times]).slope
            result[name][method] = {"milliseconds": [round(t, 2) for t in times], "exponent": round(slope, 2)}
        exponents = ", ".join(f"{method} {result[name][method]['exponent']:.2f}" for method in METHODS)
        print(f"  exponent for {name:10s}  {exponents}")
    return result


def _parameters(net: str) -> int:
    return sum(p.numel() for p in nets.build(net).parameters())


def plot(growth: dict[str, Any], path: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "advibp"
    figure, axes = plt.subplots(1, len(growth), figsize=(14, 3.6), constrained_layout=True)
    for axis, (name, of) in zip(axes, growth.items(), strict=True):
        for method in METHODS:
            label = f"{method}: {of[method]['exponent']:.2f}"
            axis.loglog(of["sizes"], of[method]["milliseconds"], "o-", label=label)
        axis.set_xticks(of["sizes"], [f"{size:,}" for size in of["sizes"]])
        axis.minorticks_off()
        axis.set_xlabel(name)
        axis.legend(title="exponent", fontsize=8)
    axes[0].set_ylabel("milliseconds per step")
    figure.savefig(path, metadata={"Date": None})
