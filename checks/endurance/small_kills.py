"""Certify a tiny run with a few kill -9, and print the number of kills and all problems as JSON.

    python small_kills.py WORK

Each command is a fork of this process, so that modules are imported once. kill_nine.py does more, with real processes.
"""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import shlex
import signal
import sys
from pathlib import Path

import small_disk
import torch
import wholeness

from advibp.cli import main

KILLS = 6
CERTIFY = "--eps 0.1 0.12 0.15 0.2 0.25 0.3 --attack-steps 150 --threads 1"


def start(line: str, seconds: float = 0.0) -> int:
    """Start a child that the kernel kills, like kill -9, after so many seconds of CPU time; 0 means never."""
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(shlex.split(line)))
    return child


def used() -> float:
    """Return the CPU seconds of all children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def endure(work: Path) -> dict[str, object]:
    source = small_disk.data(work / "data.npz")
    runs = reference, broken = work / "undisturbed", work / "disturbed"
    for run in runs:
        assert small_disk.command(f"train {source} {small_disk.TRAIN} --out {run}", None, work).code == 0
    before = used()
    assert os.waitpid(start(f"certify {reference} {CERTIFY}"), 0)[1] == 0
    lasts, chance = used() - before, random.Random(0)
    hits, kept, problems = 0, wholeness.Lines(), list[str]()
    for kill in range(KILLS + 1):
        child = start(f"certify {broken} {CERTIFY}", chance.uniform(0.01, lasts / 2) if kill < KILLS else 0.0)
        hits += os.WIFSIGNALED(os.waitpid(child, 0)[1])
        there = wholeness.records(broken)
        problems += wholeness.broken_files(broken)
        problems += [f"record {key} is lost or changed" for key in kept if there.get(key) != kept[key]]
        kept = there
    problems += wholeness.other_records(broken, reference)[0] + wholeness.false_counterexamples(broken)
    return {"hits": hits, "seconds": lasts, "problems": problems}


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()
    print(json.dumps(endure(Path(sys.argv[1]))))
