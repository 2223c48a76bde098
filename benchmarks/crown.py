"""Measure the time and the peak memory of CROWN's margins, and compare them with another version of advibp.

    python benchmarks/crown.py                          # time as a ratio to a forward pass of the same images
    python benchmarks/crown.py --growth                 # also the growth with depth, width and image size
    python benchmarks/crown.py --against ../old/src     # also the ratio to another version, and the largest difference

Networks are trained first, for two epochs on 10,000 images: by standard training, or by AdvIBP at eps 0.1. Random
networks have torch's initial weights. Every measurement is a separate process with one thread, whose first call is not
timed. Both versions run alternately. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import linear_regression
from typing import Any

HERE = Path(__file__).parents[1]
ADVIBP = HERE / "results/runs/mnist-dm-small-advibp-0.4-60e-s0"
#: name: network, weights (a run, "standard", "advibp" or "random"), images, eps.
CASES = {
    "dm-small, AdvIBP": ("dm-small", str(ADVIBP), 32, 0.1),
    "dm-small, standard": ("dm-small", "standard", 16, 0.02),
    "dm-small, random": ("dm-small", "random", 16, 0.02),
    "dm-medium, AdvIBP": ("dm-medium", "advibp", 16, 0.1),
    "dm-medium, standard": ("dm-medium", "standard", 2, 0.01),
    "dm-medium, random": ("dm-medium", "random", 2, 0.01),
    "resnet-small, AdvIBP": ("resnet-small", "advibp", 16, 0.1),
    "resnet-small, standard": ("resnet-small", "standard", 2, 0.02),
    "resnet-small, random": ("resnet-small", "random", 2, 0.02),
    "cnn7-narrow, AdvIBP": ("cnn7-narrow", "advibp", 4, 0.1),
    "cnn7-narrow, standard": ("cnn7-narrow", "standard", 1, 0.005),
    "cnn7-narrow, random": ("cnn7-narrow", "random", 1, 0.005),
    "dm-medium, standard, 32 images": ("dm-medium", "standard", 32, 0.01),
    "resnet-small, standard, 32 images": ("resnet-small", "standard", 32, 0.02),
}
#: Options of `advibp train` by weights.
TRAINING = {
    "standard": "--method standard --init default",
    "advibp": "--method advibp --eps 0.1 --warmup-natural 0.25 --warmup-adversarial 0.25",
}
#: By the quantity that grows: (size, network, side of an image). Random networks and images, 4 images, eps 0.05.
SERIES = {
    "depth": [(n, ", ".join(["Conv 16 3x3+1p1"] * n) + ", FC 50", 16) for n in (2, 3, 4, 6)],
    "width": [(w, ", ".join([f"Conv {w} 3x3+1p1"] * 3) + ", FC 50", 16) for w in (8, 16, 32, 64)],
    "image size": [(side, ", ".join(["Conv 16 3x3+1p1"] * 3) + ", FC 50", side) for side in (12, 16, 24, 32)],
}
CODE = """
import json, sys, time, torch, advibp
from advibp.bounds import crown
net, weights, count, eps, side = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5])
torch.set_num_threads(1)
torch.set_grad_enabled(False)
advibp.keep_freed_memory()
if side:
    torch.manual_seed(0)
    x, y = torch.rand(count, 1, side, side), torch.arange(count) % 10
else:
    data = advibp.data.load("mnist")
    x, y = data.test.x[:count], data.test.y[:count]
net = advibp.nets.build(net, tuple(x.shape[1:]), 10, seed=0, init="default").eval()
if weights != "random":
    advibp.load_weights(net, weights)
def resident(what):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))
def timed(f, least):
    f()
    best, began = float("inf"), time.perf_counter()
    while best == float("inf") or time.perf_counter() - began < least:
        start = time.perf_counter()
        result = f()
        best = min(best, time.perf_counter() - start)
    return best, result
forward, _ = timed(lambda: net(x), 0.5)
before = resident("VmRSS")
seconds, margins = timed(lambda: crown(net, advibp.Box.ball(x, eps)).margins(y), 2.0)
peak = resident("VmHWM") - before
print(json.dumps({"forward": forward, "seconds": seconds, "MB": peak, "margins": margins.tolist()}))
"""


def measure(source: Path, case: tuple[str, str, int, float], trained: Path, side: int = 0) -> dict[str, Any]:
    """Run one case with one version. `side` is the side of random images; 0 for MNIST."""
    net, weights, *numbers = case
    if weights in TRAINING:
        weights = str(trained_network(net, weights, trained) / "model.safetensors")
    elif weights != "random":
        weights = str(Path(weights) / "model.safetensors")
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, net, weights, *map(str, numbers), str(side)]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(output))


def trained_network(net: str, weights: str, folder: Path) -> Path:
    """Return the folder of a trained network, which is trained on the first call."""
    out = folder / (net if weights == "standard" else f"{net}-{weights}")
    options = f"{TRAINING[weights]} --epochs 2 --limit 10000 --threads 1 --resume --out {out}"
    if not (out / "model.safetensors").exists():
        environment = os.environ | {"PYTHONPATH": str(HERE / "src")}
        command = [sys.executable, "-m", "advibp.cli", "train", "mnist", net, *options.split()]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    return out


def growth(trained: Path) -> list[dict[str, Any]]:
    """Return the times of each series, and the exponents e of cost ~ size^e."""
    rows = []
    for name, series in SERIES.items():
        times = [measure(HERE / "src", (net, "random", 4, 0.05), trained, side)["seconds"] for _, net, side in series]
        sizes = [size for size, _, _ in series]
        exponent = linear_regression([math.log(s) for s in sizes], [math.log(t) for t in times]).slope
        row = {
            "growth with": name,
            "sizes": sizes,
            "ms": [round(1e3 * t, 1) for t in times],
            "exponent": round(exponent, 2),
        }
        print(json.dumps(row), flush=True)
        rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="src folder of another version")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES, metavar="CASE")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--trained", type=Path, default=Path("runs/benchmark-crown"), help="folder of trained networks")
    parser.add_argument("--growth", action="store_true", help="also measure the growth of the time")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in args.cases:
        for _ in range(args.repeats):
            ours = measure(HERE / "src", CASES[name], args.trained)
            row = {"case": name, "ms": 1e3 * ours["seconds"], "MB": ours["MB"]}
            row["forward passes"] = ours["seconds"] / ours["forward"]
            if args.against:
                other = measure(args.against.resolve(), CASES[name], args.trained)
                row["times faster"] = other["seconds"] / ours["seconds"]
                row["MB before"] = other["MB"]
                images = zip(ours["margins"], other["margins"], strict=True)
                losses = [old - new for image in images for new, old in zip(*image, strict=True)]
                row["largest loss of a margin"] = max(losses)
            print(json.dumps({k: round(v, 7) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
            rows.append(row)
    if args.growth:
        rows += growth(args.trained)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
