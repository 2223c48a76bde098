"""Decide the instances of VNN-COMP benchmarks, and compare with the published answers. It can be resumed.

    python checks/vnncomp.py FOLDER --benchmark acasxu --seconds 30 --out acasxu.jsonl

FOLDER has a file instances.csv with the columns benchmark, network, property and published_answer, and one folder of
.onnx and .vnnlib files for each benchmark. Every instance is one call of `advibp certify --onnx --vnnlib` with one
thread. Its result is appended to --out as a line of JSON; instances that have a line are skipped. The exit code is 1 if
a verdict contradicts a published answer.

On a machine that also runs other programs, a time limit on the clock says little. With --cpu the limit is in seconds of
CPU time, start of the program included: the process may take ten times as long on the clock.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

VERDICTS = ("unsat", "sat", "unknown", "timeout", "error")
#: Seconds on the clock per second of CPU time with --cpu.
PATIENCE = 10


def run(folder: Path, instance: dict[str, str], seconds: float, cpu: bool) -> dict[str, Any]:
    """Decide one instance in a process of its own."""
    place = folder / instance["benchmark"]
    command = [
        *(sys.executable, "-m", "advibp", "certify", "--threads", "1"),
        *("--onnx", str(place / instance["network"]), "--vnnlib", str(place / instance["property"])),
        *("--timeout", str(PATIENCE * seconds if cpu else seconds)),
    ]

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 1))

    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limit if cpu else None,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = done.stdout.split()
    verdict = lines[-1] if lines and lines[-1] in VERDICTS else "error"
    if cpu and (used > seconds or (verdict == "error" and used > 0.9 * seconds)):  # the limit ended the process
        verdict = "timeout"
    return {
        **{key: instance[key] for key in ("benchmark", "network", "property", "published_answer")},
        "verdict": verdict,
        "seconds": round(time.monotonic() - began, 2),
        "cpu_seconds": round(used, 2),
        "limit": seconds,
        "limit_of": "cpu" if cpu else "clock",
    }


def contradicts(row: dict[str, Any]) -> bool:
    """Whether a verdict contradicts the published answer."""
    return {row["verdict"], row["published_answer"]} == {"sat", "unsat"}


def summary(rows: list[dict[str, Any]]) -> str:
    """Return a table with one line per benchmark and network size."""
    lines = [
        "| benchmark | instances | unsat | sat | unknown | timeout | error | wrong | median CPU seconds | largest |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in sorted({row["benchmark"] for row in rows}):
        some = [row for row in rows if row["benchmark"] == name]
        counts = Counter(row["verdict"] for row in some)
        times = [row["cpu_seconds"] for row in some if row["verdict"] in ("sat", "unsat")] or [0.0]
        lines.append(
            f"| {name} | {len(some)} | {' | '.join(str(counts[v]) for v in VERDICTS)} | {sum(map(contradicts, some))} "
            f"| {statistics.median(times):.1f} | {max(times):.1f} |"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--cpu", action="store_true", help="the limit is in seconds of CPU time")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th instance")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after this time; run again to continue")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    with (args.folder / "instances.csv").open() as file:
        instances = [row for row in csv.DictReader(file) if row["benchmark"] == args.benchmark][:: args.every]
    rows = [json.loads(line) for line in args.out.read_text().splitlines()] if args.out.exists() else []
    known, began = {(row["network"], row["property"]) for row in rows}, time.monotonic()
    for instance in instances:
        if (instance["network"], instance["property"]) in known or time.monotonic() - began > 60 * args.minutes:
            continue
        row = run(args.folder, instance, args.seconds, args.cpu)
        rows.append(row)
        with args.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        mark = "  WRONG" if contradicts(row) else ""
        print(f"{row['network']} {row['property']}: {row['verdict']}, {row['cpu_seconds']} s of CPU{mark}", flush=True)
    print(summary(rows))
    return 1 if any(map(contradicts, rows)) else 0


if __name__ == "__main__":
    sys.exit(main())
