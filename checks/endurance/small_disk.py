"""Train and certify on a disk that becomes full at different moments, and print the results as JSON.

    unshare --map-root-user --mount python small_disk.py disk WORK    uses a file system of half a megabyte
    python small_disk.py limit WORK                                   limits the size of files instead; a weaker check

For each amount of free space, the command runs until the disk is full, again on the full disk, and once more after
space was freed. Each command is a fork of this process, so that modules are imported once.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import shlex
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tensorboardX
import torch
import torch._dynamo
import wholeness

from advibp.cli import main

PAGE = 4096
TRAIN = "'FC 30, FC 30' --epochs 5 --warmup-natural 1 --warmup-adversarial 1 --ramp 1 --batch-size 20 --validation 30"
TRAIN += " --eps 0.1 --threads 1 --resume"
CERTIFY = "--eps 0.1 0.15 0.2 0.25 --attack-steps 10 --threads 1"
ROOMS = {  # free pages of the disk, or allowed pages of each file, when a command starts
    ("disk", "train"): (0, 4, 13, 24),
    ("disk", "certify"): (0, 12),
    ("limit", "train"): (3,),
    ("limit", "certify"): (1,),
}
NO_DISK = 77  # exit code if no file system can be mounted

assert tensorboardX  # this and torch._dynamo are imported here because every training does


@dataclass
class Said:
    """Exit code and stderr of a command."""

    code: int
    stderr: str


@dataclass
class Story:
    """Results for one amount of free space."""

    room: int
    full: Said
    still_full: Said
    freed: Said
    problems: list[str]
    steps: list[int]
    records: list[int]


def data(path: Path) -> Path:
    """Write images (N, 4, 4) with a bright left or right half."""
    chance = np.random.RandomState(0)
    y = chance.randint(0, 2, 150)
    x = chance.randint(0, 120, (150, 4, 4)).astype(np.uint8)
    for i, label in enumerate(y):
        x[i, :, 2 * label : 2 * label + 2] += 110
    np.savez(path, x_train=x, y_train=y, x_test=x[:80], y_test=y[:80])
    return path


def command(line: str, limit: int | None, folder: Path) -> Said:
    """Run `advibp LINE` in a fork; with `limit`, files can have at most that many bytes."""
    child = os.fork()
    if child == 0:
        for name, number in (("stdout", 1), ("stderr", 2)):
            os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sys.exit(main(shlex.split(line)))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return Said(code, (folder / "stderr").read_text())


class Disk:
    """A file system of half a megabyte, or the current one with a limit for each file."""

    def __init__(self, kind: str, work: Path) -> None:
        self.kind, self.work, self.path = kind, work, work / "disk"
        self.path.mkdir()
        self.limit: int | None = None
        if kind == "disk":
            mount = ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(self.path)]
            if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
                sys.exit(NO_DISK)

    def fill(self, room: int) -> None:
        if self.kind == "limit":
            self.limit = room * PAGE + 100
            return
        free = os.statvfs(self.path).f_bavail * PAGE - room * PAGE
        (self.path / "filler").write_bytes(bytes(free))

    def free(self) -> None:
        self.limit = None
        (self.path / "filler").unlink(missing_ok=True)

    def run(self, line: str) -> Said:
        return command(line, self.limit, self.work)

    def story(self, what: str, room: int, reference: Path, source: Path) -> Story:
        run = self.path / "run"
        shutil.rmtree(run, ignore_errors=True)
        if what == "certify":
            shutil.copytree(reference, run, ignore=shutil.ignore_patterns("certify", "events", "checkpoints"))
        line = f"train {source} {TRAIN} --out {run}" if what == "train" else f"certify {run} {CERTIFY}"
        said, problems, steps, kept = [], list[str](), [], [wholeness.Lines()]
        self.fill(room)
        for attempt in range(3):
            if attempt == 2:
                self.free()
            said.append(self.run(line))
            problems += wholeness.broken_files(run) + wholeness.unlogged(run)
            steps.append(wholeness.position(run))
            kept.append(wholeness.records(run))
            problems += [f"record {key} is lost" for key in kept[-2] if kept[-2][key] != kept[-1].get(key)]
        problems += [f"temporary file {p} is left" for p in run.rglob(".*")]
        if what == "train":
            problems += wholeness.other_training(run, reference)
        else:
            problems += wholeness.other_records(run, reference)[0] + wholeness.false_counterexamples(run)
        return Story(room, *said, problems=problems, steps=steps, records=[len(k) for k in kept[1:]])


def stories(kind: str, work: Path) -> dict[str, list[dict[str, object]]]:
    source, reference = data(work / "data.npz"), work / "undisturbed"
    for line in (f"train {source} {TRAIN} --out {reference}", f"certify {reference} {CERTIFY}"):
        said = command(line, None, work)
        assert said == Said(0, ""), said
    disk = Disk(kind, work)
    return {
        what: [asdict(disk.story(what, room, reference, source)) for room in ROOMS[kind, what]]
        for what in ("train", "certify")
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.freeze()  # makes the exit of a fork faster
    print(json.dumps(stories(sys.argv[1], Path(sys.argv[2]).resolve())))
