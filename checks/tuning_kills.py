"""Check that a tuning survives kill -9, and that two processes on one tuning lose no trial.

    PYTHONPATH=src python checks/tuning_kills.py --out DIR [--trials 6] [--kills 3]

One process tunes without interruption. Another tuning with the same options is killed several times at random moments
and continued. The trials of both must be the same: parameters, accuracies, states and weights, bit by bit. Then two
processes work on a third tuning at the same time.
"""

from __future__ import annotations

import argparse
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from advibp import TuneOptions, data, tune
from advibp.runs.tuning import TrialResult
from advibp.storage import checkpoint

SEARCH = ["method=sabr,mtl-ibp", "lr=1e-3..1e-1:log", "alpha=0.01..1:log", "attack_steps=1..3"]


def images() -> data.Data:
    """Return images (1, 4, 4) with a bright left or right half."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (150,), generator=generator)
    x = 0.6 * torch.rand(150, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 0.4
    x[y == 1, :, :, 2:] += 0.4
    return data.from_tensors(x, y, x[:20], y[:20], validation=50, name="halves")


def run(out: Path, trials: int, seed: int = 0) -> list[TrialResult]:
    """Tune in this process."""
    torch.set_num_threads(1)
    options = TuneOptions(trials=trials, sample=20, startup=3, seed=seed)
    keys = {"net": "Conv 3 2x2+1, FC 8", "eps": 0.1, "epochs": 12, "batch_size": 10}
    return tune(SEARCH, out=out, data=images(), options=options, **keys).trials


def start(out: Path, trials: int, seed: int = 0) -> subprocess.Popen[bytes]:
    """Tune in another process."""
    command = [sys.executable, "-W", "ignore", __file__, "--out", str(out), "--trials", str(trials)]
    return subprocess.Popen([*command, "--worker", "--seed", str(seed)], stderr=subprocess.DEVNULL)


def progress(out: Path) -> int:
    """Return the number of finished epochs of all trials."""
    return sum(len(file.read_text().splitlines()) for file in out.glob("trials/*/metrics.jsonl"))


def kill_and_continue(out: Path, trials: int, kills: int, seed: int = 0) -> int:
    """Tune, kill the process with SIGKILL several times, and continue. Return the number of kills."""
    chance, killed = random.Random(seed), 0
    while True:
        process, before = start(out, trials), progress(out)
        more = chance.randint(2, 12 * trials // (kills + 1))
        while process.poll() is None and (killed == kills or progress(out) < before + more):
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            killed += 1
            continue
        assert process.returncode == 0, process.returncode
        return killed


def facts(trials: list[TrialResult]) -> list[tuple[object, ...]]:
    """Return what must agree; the time differs."""
    return [(t.number, t.state, t.params, t.values, t.failed) for t in trials]


def weights(out: Path) -> dict[str, str]:
    """Return the fingerprint of the weights of each trial."""
    return {
        file.parent.name: checkpoint.fingerprint(checkpoint.load(file)[0])
        for file in sorted(out.glob("trials/*/model.safetensors"))
    }


def check(out: Path, trials: int, kills: int) -> str:
    """Run both checks, and return a summary."""
    undisturbed = run(out / "undisturbed", trials)
    killed = kill_and_continue(out / "killed", trials, kills)
    continued = run(out / "killed", trials)  # nothing is left to do
    assert facts(continued) == facts(undisturbed), (facts(continued), facts(undisturbed))
    assert weights(out / "killed") == weights(out / "undisturbed")
    both = [start(out / "shared", trials, seed=1) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    shared = run(out / "shared", trials, seed=1)
    assert [t.number for t in shared] == list(range(trials)), shared
    assert all(t.state in ("complete", "pruned") for t in shared), shared
    return (
        f"killed {killed} times: {len(continued)} trials, equal to those of an undisturbed study; two processes: "
        f"{len(shared)} of {trials} trials, none lost"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=6)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--worker", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if args.worker:
        run(args.out, args.trials, args.seed)
    else:
        print(check(args.out, args.trials, args.kills))


if __name__ == "__main__":
    main()
