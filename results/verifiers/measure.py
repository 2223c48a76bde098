"""Measure verifiers on a trained run, for README.md in this folder: `python results/verifiers/measure.py RUN PART`.

looser      how often CROWN-IBP and CROWN alone are looser than interval bounds; the cascade never is
throughput  seconds for all test images, without early exits; run it on an idle machine
attack      attack the images that `advibp certify` has certified
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advibp import data, open_run
from advibp.attacks import linf_pgd
from advibp.bounds import Box, crown, crown_ibp
from advibp.execution.hardware import hardware
from advibp.verify.ibp_margins import worst
from advibp.verify.verifiers import Proof


@torch.no_grad()
def looser(net: nn.Module, x: Tensor, y: Tensor, eps: float = 0.3, images: int = 1000) -> dict[str, Any]:
    counts = {"crown-ibp": 0, "crown": 0, "cascade": 0}
    for xs, ys in zip(x[:images].split(100), y[:images].split(100), strict=True):
        box = Box.ball(xs, eps)
        intervals = worst(net(box).lower_margins(ys), ys)
        raw = {"crown-ibp": crown_ibp(net, box).margins(ys), "crown": crown(net, box).margins(ys)}
        for name, margins in raw.items():
            counts[name] += int((worst(margins, ys) < intervals).sum())
        counts["cascade"] += int((Proof(net, box, ys).tighten("crown") < intervals).sum())
    return {
        "eps": eps,
        "images": images,
        "looser than ibp (share of images)": {k: v / images for k, v in counts.items()},
    }


@torch.no_grad()
def throughput(net: nn.Module, x: Tensor, y: Tensor, eps: float = 0.3) -> dict[str, Any]:
    found: dict[str, Any] = {"eps": eps}
    for name, images, size in (
        ("ibp", 10_000, 1000),
        ("crown-ibp", 10_000, 500),
        ("crown", 10_000, 100),
        ("deepz", 100, 100),
    ):
        began = time.perf_counter()
        robust = 0
        for xs, ys in zip(x[:images].split(size), y[:images].split(size), strict=True):
            robust += int((Proof(net, Box.ball(xs, eps), ys).tighten(name) > 0).sum())
        seconds = time.perf_counter() - began
        found[name] = {"images": images, "seconds": round(seconds, 1), "robust": robust}
        print(name, found[name], flush=True)
    return found


def attack(net: nn.Module, x: Tensor, y: Tensor, run: Path) -> dict[str, Any]:
    """PGD-200 with one restart on each certified image, and with ten on the 1,000 smallest margins, for each eps."""
    lines = (run / "certify" / "records.jsonl").read_text().splitlines()
    records = [r for r in map(json.loads, lines) if r["verdict"] == "robust"]
    found: dict[str, Any] = {}
    for eps in sorted({r["eps"] for r in records}):
        of = sorted((r for r in records if r["eps"] == eps), key=lambda r: r["lower_margin"])
        rows = torch.tensor([r["index"] for r in of])
        torch.manual_seed(0)
        broken = {"one restart": 0, "ten restarts": 0}
        for name, some, restarts in (("one restart", rows, 1), ("ten restarts", rows[:1000], 10)):
            for part in some.split(500):
                hit = linf_pgd(net, x[part], y[part], eps, steps=200, restarts=restarts, stop_on_success=True)
                broken[name] += int(hit.broken.sum())
        found[f"{eps:g}"] = {"certified": len(rows), "smallest margin": of[0]["lower_margin"], "broken": broken}
        print(eps, found[f"{eps:g}"], flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("part", choices=["looser", "throughput", "attack"])
    args = parser.parse_args()
    net = open_run(args.run).net
    test = data.load("mnist").test
    parts = {
        "looser": lambda: looser(net, test.x, test.y),
        "throughput": lambda: throughput(net, test.x, test.y),
        "attack": lambda: attack(net, test.x, test.y, args.run),
    }
    result = {**parts[args.part](), "hardware": hardware()}
    Path(__file__).with_name(f"{args.part}.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
