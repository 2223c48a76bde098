"""Compare two ways to spend a time limit on alpha-CROWN: on the margins alone, or on intermediate bounds first.

    python benchmarks/alpha_crown.py --images 100 --eps 0.03 --seconds 1

The network is dm-small after standard training (two epochs on 10,000 images). Every image has the same time limit in
both ways, CROWN's bounds included, and one thread. Images that CROWN proves are left out. Bounds ignore rounding.
Printed are, for the smallest margin of each image: the mean of its lower bound, and how many images are proved.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from crown import trained_network
from torch import Tensor

import advibp
from advibp.bounds import Box, crown
from advibp.bounds.labels import smallest_margin
from advibp.bounds.linear.alpha_crown import alpha_margins
from advibp.bounds.linear.alpha_intermediate import optimize_intermediate
from advibp.bounds.linear.crown import LinearBounds

#: Share of the time that is left for the margins.
MARGINS = 0.2


def margins_alone(bounds: LinearBounds, y: Tensor, began: float, seconds: float) -> Tensor:
    """Optimize the slopes of the last backward pass until the time is over."""
    return alpha_margins(bounds, y, steps=10_000, deadline=began + seconds)


def intermediate_first(bounds: LinearBounds, y: Tensor, began: float, seconds: float) -> Tensor:
    """Optimize the intermediate bounds first."""
    optimize_intermediate(bounds, deadline=began + (1 - MARGINS) * seconds)
    return alpha_margins(bounds, y, steps=10_000, deadline=began + seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--eps", type=float, default=0.03)
    parser.add_argument("--seconds", type=float, default=1.0, help="time limit per image")
    parser.add_argument("--trained", type=Path, default=Path("runs/benchmark-crown"), help="folder of trained networks")
    args = parser.parse_args()
    torch.set_num_threads(1)
    advibp.keep_freed_memory()
    test = advibp.data.load("mnist").test
    net = advibp.nets.build("dm-small", (1, 28, 28), 10).eval().requires_grad_(False)
    advibp.load_weights(net, str(trained_network("dm-small", "standard", args.trained) / "model.safetensors"))
    open_images = list(range(args.images))
    for name, improve in {"CROWN": None, "margins": margins_alone, "intermediate": intermediate_first}.items():
        least, seconds = {}, []
        for k in open_images:
            x, y, began = test.x[k : k + 1], test.y[k : k + 1], time.monotonic()
            with torch.no_grad():
                bounds = crown(net, Box.ball(x, args.eps))
                margins = improve(bounds, y, began, args.seconds) if improve else bounds.margins(y)
            least[k] = float(smallest_margin(margins, y))
            seconds.append(time.monotonic() - began)
        if improve is None:
            open_images = [k for k in open_images if least[k] <= 0]
        row = {"eps": args.eps, "limit": args.seconds, "optimized": name, "images": len(open_images)}
        row |= {"mean bound": round(statistics.mean(least[k] for k in open_images), 3)}
        row |= {"proved": sum(least[k] > 0 for k in open_images), "mean seconds": round(statistics.mean(seconds), 2)}
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
