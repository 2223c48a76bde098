"""Run the property tests repeatedly with new random numbers, until a time limit.

    python checks/fuzz.py --minutes 30 [--seed 12345] [--tests tests/bounds tests/verify tests/vnncomp]

Each round runs the property tests (those that use hypothesis) of bounds, verifiers and ONNX files with a new base
seed, from which hypothesis and all generators are seeded (profile "fuzz" in tests/conftest.py), and then parts of
soundness.py, exactness.py and mutations.py with the same seed. A failure is printed with the command that repeats it.
The exit code is 1 if anything failed. Add each failure to the tests as an @example.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
TESTS = ("tests/bounds", "tests/verify", "tests/vnncomp")
#: Scripts with a seed; {minutes} is their time limit in one round.
SCRIPTS = (
    "checks/soundness.py --nets 100000 --minutes {minutes} --seed {seed}",
    "checks/exactness.py --nets 100000 --minutes {minutes} --seed {seed}",
    "checks/mutations.py --files 200 --workers 1 --seed {seed}",
)


@dataclass
class Fuzz:
    """Runs rounds until a deadline and collects the commands that failed."""

    deadline: float
    tests: list[str]
    verbose: bool = False
    failed: list[str] = field(default_factory=list)
    passed: int = 0

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def round(self, seed: int) -> None:
        print(f"seed {seed}, {self.left / 60:.1f} minutes left, {len(self.failed)} failures so far", flush=True)
        command = f"pytest -n 2 -p no:cacheprovider --hypothesis-seed={seed} -m hypothesis {shlex.join(self.tests)}"
        self._run(command, {"ADVIBP_FUZZ_SEED": str(seed)})
        for script in SCRIPTS:
            minutes = min(2.0, self.left / 60 - 0.5)  # scripts check the time between two networks
            if minutes > 0:
                self._run(f"python {script.format(minutes=f'{minutes:.2f}', seed=seed % 2**31)}", {})

    def _run(self, command: str, variables: dict[str, str]) -> None:
        """Run a command until the deadline; a command that was stopped counts as neither passed nor failed."""
        if self.left <= 0:
            return
        words = [sys.executable, *([] if command.startswith("python ") else ["-m"])]
        words += shlex.split(command.removeprefix("python "))
        child = subprocess.Popen(
            words, cwd=ROOT, env=os.environ | variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        done, stopped = _finished(child, self.left + 5)
        if stopped and not re.search(r"^FAILED ", done.stdout, re.MULTILINE):
            return print(f"stopped at the time limit: {command}", flush=True)
        if self.verbose:
            print(done.stdout[-2000:], flush=True)
        self.passed += sum(int(count) for count in re.findall(r"(\d+) passed", done.stdout))
        if done.returncode == 0:
            return
        assigned = " ".join(f"{name}={value}" for name, value in variables.items())
        names = re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)
        repeats = [re.sub(r" -n 2 .*? --hyp", " --hyp", command).partition(" -m ")[0] + f" {name!r}" for name in names]
        for repeat in repeats or [command]:
            self.failed.append(f"{assigned} {repeat}".strip())
        print(done.stdout[-20_000:], done.stderr[-4000:], sep="\n", flush=True)
        print(f"failed; repeat with: {self.failed[-1]}", flush=True)


def _finished(child: subprocess.Popen[str], seconds: float) -> tuple[subprocess.CompletedProcess[str], bool]:
    """Return the output of a process, and whether it was stopped: by Ctrl-C, so that pytest reports its failures."""
    stopped = False
    for number, patience in ((signal.SIGINT, seconds), (signal.SIGKILL, 60.0)):
        try:
            out, err = child.communicate(timeout=patience)
            break
        except subprocess.TimeoutExpired:
            stopped = True
            child.send_signal(number)
    else:
        out, err = child.communicate()
    return subprocess.CompletedProcess(child.args, child.returncode, out, err), stopped


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="stop after this time (default 30)")
    parser.add_argument("--seed", type=int, help="base seed of the first round (default: a new one)")
    parser.add_argument("--rounds", type=int, default=10**9, help="stop after this many rounds (default: no limit)")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="paths for pytest")
    parser.add_argument("--verbose", action="store_true", help="also print the output of successful rounds")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    fuzz = Fuzz(time.monotonic() + 60 * args.minutes, args.tests, args.verbose)
    first = random.SystemRandom().randrange(2**31) if args.seed is None else args.seed
    rounds = 0
    while fuzz.left > 0 and rounds < args.rounds:
        fuzz.round(first + rounds)
        rounds += 1
    print(f"{rounds} rounds from seed {first}, {fuzz.passed} tests passed, {len(fuzz.failed)} failures")
    for repeat in fuzz.failed:
        print(f"  {repeat}")
    if args.json:
        result = {"command": shlex.join(sys.argv), "seed": first, "rounds": rounds, "passed": fuzz.passed}
        args.json.write_text(json.dumps(result | {"failed": fuzz.failed}, indent=2) + "\n")
    return 1 if fuzz.failed else 0


if __name__ == "__main__":
    sys.exit(main())
