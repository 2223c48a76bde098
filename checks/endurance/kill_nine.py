"""Check that kill -9 at any moment loses no finished work.

Trains and certifies once without kills, then repeatedly with kills, and compares weights bit by bit, metrics, records
and counterexamples. Some kills come at random moments, others at critical ones: while a temporary file is written, or
just after a line was appended. Each command runs in its own process.

    python checks/endurance/kill_nine.py --kills 100 --minutes 15 --out kills.json
    python checks/endurance/kill_nine.py --kills 20 --signal TERM    # exits with 143 and prints how to continue
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
import wholeness

from advibp.execution.hardware import hardware

Kind = Literal["train", "certify"]
Aim = Literal["any moment", "temporary file", "appended line"]

PROGRAM = [sys.executable, "-m", "advibp.cli"]
TRAIN = [
    *shlex.split("train mnist 'Conv 4 4x4+2, FC 20' --epochs 40 --warmup-natural 3 --warmup-adversarial 3 --ramp 14"),
    *shlex.split("--limit 2000 --validation 500 --batch-size 50 --eps 0.1 --threads 1"),
]
CERTIFY = shlex.split("--eps 0.1 0.15 --limit 4000 --attack-steps 100 --threads 1")
CODES = {"KILL": -9, "TERM": 143, "INT": 130}
SHARE = {"train": 0.25, "certify": 0.4}  # a kill comes within this fraction of the undisturbed time
POLL = 2e-4  # seconds between two checks of the folder


@dataclass
class Tally:
    """Counts of kills and problems."""

    kills: Counter[str] = field(default_factory=Counter)
    aims: Counter[str] = field(default_factory=Counter)
    runs: Counter[str] = field(default_factory=Counter)
    corrupt: int = 0
    lost: int = 0
    differing: int = 0
    rounded: int = 0
    problems: list[str] = field(default_factory=list)

    def note(self, problems: list[str]) -> int:
        for problem in problems:
            print(f"  WRONG: {problem}", flush=True)
        self.problems += problems
        return len(problems)


class Failed(Exception):
    """A process ended with the wrong exit code; its run can't be continued."""


class Folder:
    """Watches the run's folder for writes in progress."""

    def __init__(self, path: Path) -> None:
        self.places = [path / p for p in ("", "checkpoints", "certify", "certify/counterexamples")]
        self.logs = [path / "metrics.jsonl", path / "certify" / "records.jsonl"]
        self.known = self.temporary()  # files of earlier kills
        self.sizes = self.log_sizes()

    def temporary(self) -> set[str]:
        found = set()
        for place in self.places:
            try:
                found |= {entry.path for entry in os.scandir(place) if entry.name.startswith(".")}
            except FileNotFoundError:
                continue
        return found

    def log_sizes(self) -> list[int]:
        return [os.path.getsize(p) if p.exists() else 0 for p in self.logs]

    def reached(self, aim: Aim) -> bool:
        if aim == "temporary file":
            return bool(self.temporary() - self.known)
        return aim == "any moment" or any(now > old for now, old in zip(self.log_sizes(), self.sizes, strict=True))


class Endurance:
    def __init__(self, work: Path, args: argparse.Namespace) -> None:
        self.work, self.signal, self.kills = work, args.signal, args.kills
        self.random = random.Random(args.seed)
        self.ends = time.monotonic() + 60 * args.minutes
        self.tally = Tally()
        self.reference = work / "undisturbed"
        self.starts: dict[Kind, float] = {}  # seconds until the work begins
        self.spans: dict[Kind, float] = {}  # seconds of work within which a kill comes

    # Undisturbed

    def undisturbed(self) -> None:
        """Create the reference runs, and measure how long a start takes."""
        signs: dict[Kind, str] = {"train": "recipe.yaml", "certify": "certify/records.jsonl"}
        for kind, sign in list(signs.items())[: 2 if self.signal == "KILL" else 1]:
            began = time.monotonic()
            process = self.start(self.command(kind, self.reference))
            while process.poll() is None and not (self.reference / sign).exists():
                time.sleep(0.01)
            self.starts[kind] = time.monotonic() - began
            if process.wait() != 0:
                raise Failed(f"the undisturbed {kind} failed: {self.said()}")
            took = time.monotonic() - began
            self.spans[kind] = SHARE[kind] * (took - self.starts[kind])
            print(f"undisturbed {kind}: {took:.1f} s, {self.starts[kind]:.1f} of it to start", flush=True)
        problems = wholeness.broken_files(self.reference)
        problems += wholeness.false_counterexamples(self.reference) if self.signal == "KILL" else []
        self.tally.note(problems)

    def command(self, kind: Kind, folder: Path) -> list[str]:
        if kind == "train":
            return [*TRAIN, "--out", str(folder), *(["--resume"] if (folder / "recipe.yaml").exists() else [])]
        return ["certify", str(folder), *CERTIFY]

    def start(self, command: list[str]) -> subprocess.Popen[bytes]:
        with (self.work / "said").open("wb") as said:
            return subprocess.Popen([*PROGRAM, *command], stdout=said, stderr=said, stdin=subprocess.DEVNULL)

    def said(self) -> str:
        return (self.work / "said").read_text(errors="replace")

    # Disturbed

    def disturbed(self) -> None:
        """Start in new folders until there are enough kills or the time is over."""
        folder = self.work / "disturbed-0"
        while self.wanted("train") or self.wanted("certify"):
            share = 2 * self.tally.kills["certify"] < self.tally.kills["train"]
            kind: Kind = "certify" if self.wanted("certify") and (share or not self.wanted("train")) else "train"
            if kind == "train" or self.tally.runs["train"] == 0:
                shutil.rmtree(folder, ignore_errors=True)
                folder = self.work / f"disturbed-{self.tally.runs['train'] + 1}"
                kind = "train"
            else:
                shutil.rmtree(folder / "certify", ignore_errors=True)
            self.one_run(kind, folder)

    def wanted(self, kind: Kind) -> bool:
        quota = self.kills if self.signal != "KILL" else -(-2 * self.kills // 3)
        left = (quota if kind == "train" else self.kills - quota) - self.tally.kills[kind]
        return bool(left > 0) and time.monotonic() < self.ends

    def one_run(self, kind: Kind, folder: Path) -> None:
        command, steps, kept = self.command(kind, folder), 0, wholeness.Lines()
        ended = False
        while not ended:
            ended = self.one_process(kind, command, folder)
            self.tally.corrupt += self.tally.note(wholeness.broken_files(folder))
            steps, kept = self.nothing_lost(folder, steps, kept)
            command = self.next_command(kind, folder, ended)
        self.tally.runs[kind] += 1
        self.same_as_undisturbed(kind, folder)

    def one_process(self, kind: Kind, command: list[str], folder: Path) -> bool:
        """Start a process and kill it, unless there are enough kills; return whether it ended by itself."""
        process = self.start(command)
        if self.wanted(kind):
            aim, wait = self.choose(kind)
            if self.strike(process, folder, aim, wait):
                self.tally.kills[kind] += 1
                self.tally.aims[aim] += 1
                count = self.tally.kills.total()
                where = f"step {wholeness.position(folder)}, {len(wholeness.records(folder))} records"
                print(f"{count:4d}  {kind} hit after {wait:.2f} s, aimed at: {aim}; {where}", flush=True)
                return False
        if process.wait() != 0:
            raise Failed(f"{shlex.join(command)} ended with {process.returncode}: {self.said()}")
        return True

    def choose(self, kind: Kind) -> tuple[Aim, float]:
        """Return the target of a kill, and how long after the start it may come."""
        if self.signal != "KILL":
            return "any moment", self.random.uniform(0, self.spans[kind])  # after the work has begun
        if self.random.random() < 0.1:
            return "any moment", self.random.uniform(0, self.starts[kind])
        aim = self.random.choice(["any moment", "temporary file", "temporary file", "appended line"])
        span = self.spans[kind] if aim == "any moment" else self.spans[kind] / 2
        return aim, self.starts[kind] + self.random.uniform(-0.2, span)  # type: ignore[return-value]

    def strike(self, process: subprocess.Popen[bytes], folder: Path, aim: Aim, wait: float) -> bool:
        """Send the signal at the chosen moment; False if the process ended before."""
        seen = Folder(folder)
        if self.signal != "KILL":
            self.until(process, lambda: "L_upper" in self.said())  # the header is printed when the training starts
        after = time.monotonic() + wait
        self.until(process, lambda: time.monotonic() >= after)
        seen.sizes = seen.log_sizes()
        self.until(process, lambda: seen.reached(aim))
        process.send_signal(getattr(signal, f"SIG{self.signal}"))
        code = process.wait(timeout=120)
        if code == CODES[self.signal]:
            return True
        if code != 0:
            raise Failed(f"ended with {code}, not {CODES[self.signal]}: {self.said()}")
        return False

    def until(self, process: subprocess.Popen[bytes], reached: Callable[[], bool]) -> None:
        while process.poll() is None and not reached():
            time.sleep(POLL)

    # What must hold

    def nothing_lost(self, folder: Path, steps: int, kept: wholeness.Lines) -> tuple[int, wholeness.Lines]:
        now, there = wholeness.position(folder), wholeness.records(folder)
        problems = [f"{folder}: back at step {now}, {steps} were saved"] if now < steps else []
        problems += wholeness.unlogged(folder)
        problems += [f"{folder}: record {key} is lost or changed" for key in kept if there.get(key) != kept[key]]
        self.tally.lost += self.tally.note(problems)
        return now, there

    def next_command(self, kind: Kind, folder: Path, ended: bool) -> list[str]:
        """Return the command that continues; after TERM or INT, the one that the process printed."""
        if self.signal == "KILL" or ended:
            return self.command(kind, folder)
        told = re.search(r"advibp (train [^`\n;]*--resume[^`\n;]*)", self.said())
        if not told:
            raise Failed(f"stopped, and did not say how to go on: {self.said()}")
        return shlex.split(told[1].rstrip(" ."))

    def same_as_undisturbed(self, kind: Kind, folder: Path) -> None:
        if kind == "train":
            found = wholeness.other_training(folder, self.reference)
        else:
            found, rounded = wholeness.other_records(folder, self.reference)
            found += wholeness.false_counterexamples(folder)
            self.tally.rounded += rounded
        self.tally.differing += bool(self.tally.note(found))
        litter = sum(wholeness.is_temporary(p) for p in folder.rglob("*"))
        print(f"{kind} ended, {'as undisturbed' if not found else 'NOT AS UNDISTURBED'}; {litter} dot-files left over")


def figures(endurance: Endurance, args: argparse.Namespace, seconds: float) -> dict[str, object]:
    tally = endurance.tally
    return {
        "signal": args.signal,
        "seed": args.seed,
        "kills": tally.kills.total(),
        "kills_wanted": args.kills,
        "kills_by_command": dict(tally.kills),
        "kills_by_aim": dict(tally.aims),
        "runs": dict(tally.runs),
        "corrupt_files": tally.corrupt,
        "lost_records": tally.lost,
        "bit_identical": bool(tally.runs) and tally.differing == 0,
        "margins_other_in_last_bits": tally.rounded,
        "problems": tally.problems,
        "seconds": round(seconds, 1),
        "commands": [shlex.join(["advibp", *TRAIN]), shlex.join(["advibp", "certify", "RUN", *CERTIFY])],
        "hardware": hardware(),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="kills of a running process (default 100)")
    parser.add_argument("--minutes", type=float, default=15, help="time limit (default 15)")
    parser.add_argument("--signal", choices=CODES, default="KILL", help="TERM and INT work only for training")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6), help="seed of the moments")
    parser.add_argument("--work", type=Path, help="working folder (default: a temporary folder)")
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    work = Path(tempfile.mkdtemp(prefix="kill-nine-", dir=args.work))
    print(f"seed {args.seed}, in {work}", flush=True)
    began = time.monotonic()
    endurance = Endurance(work, args)
    try:
        endurance.undisturbed()
        endurance.disturbed()
    except Failed as failure:
        endurance.tally.note([str(failure)])
    tally = endurance.tally
    if not tally.runs:
        tally.note(["no run came to its end under kills, so nothing is proved; give it more --minutes"])
    told = figures(endurance, args, time.monotonic() - began)
    if args.out:
        args.out.write_text(json.dumps(told, indent=2) + "\n")
    alike = "yes" if told["bit_identical"] else "no"
    print(
        f"{tally.kills.total()} kills of {args.kills}, {tally.corrupt} corrupt files, {tally.lost} lost records, "
        f"{tally.runs.total()} runs, bit-identical {alike}, {told['seconds']} seconds"
    )
    if tally.kills.total() < args.kills and not tally.problems:
        print("the time was over before all kills were done")
    if tally.problems:
        print(f"{len(tally.problems)} problems; see {work}")
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
