"""A person's first hour: an own ResNet on an own folder of 900 color images, in Python and on the command line.

    python checks/first_hour.py --json first-hour.json

The script draws the images, writes the person's files, runs them with three seeds, and runs the commands. It reports
the lines of own code, seconds and errors. The exit code is 1 if a standard error is 5 % or more, a step fails, or the
code that is not the network has more than 12 lines.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

CLASSES = ("cross", "disc", "square")
MOST_LINES, MOST_ERROR = 12, 0.05

NETWORK = """\
from torch import nn

class Block(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))
        self.skip = nn.Conv2d(inputs, outputs, 1, stride=2)

    def forward(self, x):
        return (self.body(x) + self.skip(x)).relu()

def make():
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        Block(16, 32), Block(32, 32), nn.Flatten(), nn.Linear(32 * 6 * 6, 3))
"""

PYTHON = """\
import sys
import torch
import advibp
from advibp.runs.run_files import read_run
from my_net import make

torch.manual_seed(int(sys.argv[1]))
data = advibp.data.load("shapes")
run = advibp.train(make(), data, eps="4/255", seed=int(sys.argv[1]), epochs=20, out=f"runs/python-{sys.argv[1]}")
print(run.certify().table())
advibp.report.write_page(run.path / "report.html", [read_run(run.path)])
"""

COMMANDS = """\
advibp train shapes my_net.py:make --eps 4/255 --epochs 20 --seed {seed} --out runs/commands-{seed}
advibp certify runs/commands-{seed} --net my_net.py:make
advibp report runs/commands-{seed}
"""


def picture(kind: str, random: np.random.Generator, size: int = 24) -> Image.Image:
    """Draw a shape of random color, size and position on a noisy background of another color."""
    rows, columns = np.mgrid[:size, :size].astype(float)
    row, column = random.uniform(8, size - 8, 2)
    half = random.uniform(4, 7)
    across, down = np.abs(columns - column), np.abs(rows - row)
    inside = {
        "disc": np.hypot(across, down) < half,
        "square": np.maximum(across, down) < 0.9 * half,
        "cross": (np.minimum(across, down) < 1.5) & (np.maximum(across, down) < half),
    }[kind]
    back, front = random.uniform(0, 0.45, 3), random.uniform(0.55, 1, 3)
    pixels = np.where(inside[..., None], front, back) + random.normal(0, 0.04, (size, size, 3))
    return Image.fromarray((255 * pixels.clip(0, 1)).astype(np.uint8))


def lines_of(code: str) -> int:
    """Return the number of lines that are not empty."""
    return sum(bool(line.strip()) for line in code.splitlines())


def run(command: list[str], folder: Path) -> float:
    """Run a command in the folder and return its seconds. Its output is added to log.txt."""
    start = time.perf_counter()
    source = str(Path(__file__).resolve().parents[1] / "src")
    environment = {**os.environ, "PYTHONPATH": source}
    with (folder / "log.txt").open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        subprocess.run(command, cwd=folder, stdout=log, stderr=log, env=environment, check=True)
    return time.perf_counter() - start


def errors(path: Path) -> dict[str, float]:
    """Return the errors on the test images from the records of a run."""
    lines = [json.loads(line) for line in (path / "certify" / "records.jsonl").read_text().splitlines()]
    verdicts = [line["verdict"] for line in lines if "verdict" in line]
    if not verdicts or not (path / "report.html").exists():
        raise SystemExit(f"{path} has no records or no report.")
    return {
        "images": len(verdicts),
        "standard_error": verdicts.count("misclassified") / len(verdicts),
        "verified_error": 1 - verdicts.count("robust") / len(verdicts),
    }


def main() -> int:
    """Run all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("first-hour"), help="a new folder to work in")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    for kind in CLASSES:
        (args.folder / "shapes" / kind).mkdir(parents=True)
        for i in range(300):
            picture(kind, random).save(args.folder / "shapes" / kind / f"{i:03}.png")
    (args.folder / "my_net.py").write_text(NETWORK)
    (args.folder / "mine.py").write_text(PYTHON)
    rows: list[dict[str, Any]] = []
    for seed in args.seeds:
        seconds = run([sys.executable, "mine.py", str(seed)], args.folder)
        rows.append({"path": "python", "seed": seed, "seconds": seconds, **errors(args.folder / f"runs/python-{seed}")})
        print(rows[-1], flush=True)
        commands = [line.split() for line in COMMANDS.format(seed=seed).splitlines()]
        seconds = sum(run([sys.executable, "-m", *command], args.folder) for command in commands)
        found = errors(args.folder / f"runs/commands-{seed}")
        rows.append({"path": "commands", "seed": seed, "seconds": seconds, **found})
        print(rows[-1], flush=True)
    counts = {"python": lines_of(PYTHON), "commands": lines_of(COMMANDS), "network": lines_of(NETWORK)}
    print("lines", counts)
    if args.json:
        args.json.write_text(json.dumps({"lines": counts, "runs": rows}, indent=1) + "\n")
    good = all(row["standard_error"] < MOST_ERROR for row in rows)
    return 0 if good and max(counts["python"], counts["commands"]) <= MOST_LINES else 1


if __name__ == "__main__":
    sys.exit(main())
