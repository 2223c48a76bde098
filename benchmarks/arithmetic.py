"""Measure what it costs to include rounding errors in proofs: certified images and time.

    python benchmarks/arithmetic.py results/runs/mnist-dm-small-advibp-0.4-60e-s0 --eps 0.1 0.2 0.3

IBP bounds each test image twice: in float32 arithmetic (the default of `certify`) and in real arithmetic. With
--crown N the first N images are also bounded by CROWN. Times are those of the bounds, with one thread. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import advibp
from advibp.bounds import Box
from advibp.bounds.labels import smallest_margin
from advibp.bounds.rounded import Rounded
from advibp.verify.verifiers import Proof

BATCH = {"ibp": 500, "crown": 50}


@torch.no_grad()
def measured(net: nn.Module, x: Tensor, y: Tensor, eps: float, by: str) -> dict[str, Any]:
    """Return certified images and seconds in both arithmetics, which alternate batch by batch."""
    row: dict[str, Any] = {"eps": eps, "by": by, "images": len(x)}
    for kind in ("real", "float32"):
        row |= {f"proved ({kind})": 0, f"seconds ({kind})": 0.0}
    for images, labels in zip(x.split(BATCH[by]), y.split(BATCH[by]), strict=True):
        for kind, inputs in (("real", Box.ball), ("float32", Rounded.ball)):
            began = time.perf_counter()
            margins = Proof(net, inputs(images, eps), labels).tighten(by)  # type: ignore[arg-type]
            row[f"seconds ({kind})"] += time.perf_counter() - began
            row[f"proved ({kind})"] += int((margins > 0).sum())
    row["kept"] = round(100 * row["proved (float32)"] / max(1, row["proved (real)"]), 3)
    row["time ratio"] = round(row["seconds (float32)"] / row["seconds (real)"], 2)
    return row


@torch.no_grad()
def lost(net: nn.Module, x: Tensor, y: Tensor, eps: float) -> float:
    """Return the median of how much the lower margin of an image decreases."""
    margins = [smallest_margin(net(inputs(x, eps)).lower_margins(y), y) for inputs in (Box.ball, Rounded.ball)]
    return float((margins[0] - margins[1]).median())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, help="folders of runs on MNIST, with weights")
    parser.add_argument("--eps", nargs="+", type=float, default=[0.1, 0.2, 0.3])
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--crown", type=int, default=0, metavar="N", help="also bound the first N images by CROWN")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    test = advibp.data.load("mnist").test.take(args.images)
    rows = []
    for run in args.runs:
        net = advibp.open_run(run).net
        for eps in args.eps:
            rows.append({"run": run.name, **measured(net, test.x, test.y, eps, "ibp")})
            rows[-1]["median loss"] = float(f"{lost(net, test.x[:500], test.y[:500], eps):.2g}")
            print(json.dumps(rows[-1]), flush=True)
            if args.crown:
                x, y = test.x[: args.crown], test.y[: args.crown]
                rows.append({"run": run.name, **measured(net, x, y, eps, "crown")})
                print(json.dumps(rows[-1]), flush=True)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
