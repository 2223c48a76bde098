"""Compare the time of `certify` with another version of advibp.

    python benchmarks/throughput.py --against ../old/src --images 2000 --crown 200

Both versions certify the same images of a run, alternately, each in a separate process with one thread. The attack has
one step, so that mainly the verifiers are timed. The ratio is that of the fastest repetitions. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parents[1]
CODE = """
import sys, time, torch, advibp
run, eps, by, count = sys.argv[1], float(sys.argv[2]), sys.argv[3], int(sys.argv[4])
torch.set_num_threads(1)
opened = advibp.open_run(run)  # older versions return a tuple
net = opened.net if hasattr(opened, "net") else opened[0]
test = advibp.data.load("mnist").test.take(count)
attack = advibp.Attack(steps=1)
silent = lambda *_: None
advibp.certify(net, test.take(20), eps, by=[by], attack=attack, progress=silent)
began = time.perf_counter()
found = advibp.certify(net, test, eps, by=[by], attack=attack, progress=silent)
print(time.perf_counter() - began, found.counts(eps)["robust"])
"""


def timed(source: Path, *args: object) -> tuple[float, int]:
    """Return the seconds and the number of certified images."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CODE, *map(str, args)]
    seconds, robust = subprocess.run(
        command, env=environment, check=True, capture_output=True, text=True
    ).stdout.split()
    return float(seconds), int(robust)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, required=True, help="src folder of the other version")
    parser.add_argument("--run", type=Path, default=HERE / "results/runs/mnist-dm-small-advibp-0.4-60e-s0")
    parser.add_argument("--eps", type=float, default=0.1)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--crown", type=int, default=500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = []
    for by, count in (("ibp", args.images), ("crown", args.crown)):
        other, ours = [], []
        for _ in range(args.repeats):
            other.append(timed(args.against.resolve(), args.run, args.eps, by, count))
            ours.append(timed(HERE / "src", args.run, args.eps, by, count))
        before, after = min(other), min(ours)
        row = {"by": by, "images": count, "seconds before": before[0], "seconds": after[0]}
        row |= {"ratio": round(after[0] / before[0], 2), "robust before": before[1], "robust": after[1]}
        print(json.dumps(row), flush=True)
        rows.append(row)
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
