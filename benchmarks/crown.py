"""Measure the time and the peak memory of CROWN's margins, and compare them with another version of advibp.

    python benchmarks/crown.py                          # time as a ratio to a forward pass of the same images
    python benchmarks/crown.py --against ../old/src     # also the ratio to another version, and the largest difference

Networks after standard training are trained first, for two epochs on 10,000 images. Every measurement is a separate
process with one thread, whose first call is not timed. Both versions run alternately. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
ADVIBP = HERE / "results/runs/mnist-dm-small-advibp-0.4-60e-s0"
#: name: network, weights (a run, "standard" or "random"), images, eps.
CASES = {
    "dm-small, AdvIBP": ("dm-small", str(ADVIBP), 32, 0.1),
    "dm-small, standard": ("dm-small", "standard", 16, 0.02),
    "dm-small, random": ("dm-small", "random", 16, 0.02),
    "dm-medium, standard": ("dm-medium", "standard", 2, 0.01),
    "resnet-small, standard": ("resnet-small", "standard", 2, 0.02),
    "cnn7-narrow, standard": ("cnn7-narrow", "standard", 1, 0.005),
    "dm-medium, standard, 32 images": ("dm-medium", "standard", 32, 0.01),
    "resnet-small, standard, 32 images": ("resnet-small", "standard", 32, 0.02),
}
CODE = """
import json, sys, time, torch, advibp
from advibp.bounds import crown
net, weights, count, eps = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
torch.set_num_threads(1)
torch.set_grad_enabled(False)
advibp.keep_freed_memory()
data = advibp.data.load("mnist")
net = advibp.nets.build(net, data.input_shape, 10, seed=0, init="default").eval()
if weights != "random":
    advibp.load_weights(net, weights)
x, y = data.test.x[:count], data.test.y[:count]
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


def measure(source: Path, case: tuple[str, str, int, float], trained: Path) -> dict[str, object]:
    """Run one case with one version."""
    net, weights, *numbers = case
    if weights == "standard":
        weights = str(_trained(net, trained) / "model.safetensors")
    elif weights != "random":
        weights = str(Path(weights) / "model.safetensors")
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, net, weights, *map(str, numbers)]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    return dict(json.loads(output))


def _trained(net: str, folder: Path) -> Path:
    """Return the folder of a network after standard training, which is trained on the first call."""
    out = folder / net
    options = f"train mnist {net} --method standard --epochs 2 --limit 10000 --threads 1 --resume --out {out}".split()
    if not (out / "model.safetensors").exists():
        environment = os.environ | {"PYTHONPATH": str(HERE / "src")}
        subprocess.run([sys.executable, "-m", "advibp.cli", *options], env=environment, check=True, capture_output=True)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="src folder of another version")
    parser.add_argument("--cases", nargs="+", default=list(CASES)[:6], choices=CASES, metavar="CASE")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--trained", type=Path, default=Path("runs/benchmark-crown"), help="folder of trained networks")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for name in args.cases:
        for _ in range(args.repeats):
            ours = measure(HERE / "src", CASES[name], args.trained)
            row = {"case": name, "ms": 1e3 * ours["seconds"], "MB": ours["MB"]}  # type: ignore[operator]
            row["forward passes"] = ours["seconds"] / ours["forward"]  # type: ignore[operator]
            if args.against:
                other = measure(args.against.resolve(), CASES[name], args.trained)
                row["times faster"] = other["seconds"] / ours["seconds"]  # type: ignore[operator]
                row["MB before"] = other["MB"]
                images = zip(ours["margins"], other["margins"], strict=True)  # type: ignore[call-overload]
                losses = [old - new for image in images for new, old in zip(*image, strict=True)]
                row["largest loss of a margin"] = max(losses)
            print(json.dumps({k: round(v, 7) if isinstance(v, float) else v for k, v in row.items()}), flush=True)
            rows.append(row)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
