"""Measure the time of training steps as ratios between methods: `make bench`.

Each round runs one step of each method and of its minimal cost (floor.py), so that other load on the machine affects
all of them. A ratio is the median over the rounds, with quartiles. The learning rate is almost 0, so that the weights
do not change and all rounds do the same work, on MNIST. AdvIBP measures FOSC in each step, as it does when the losses
conflict.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from epoch import outside
from floor import Floor
from growth import fit, plot
from memory import peaks

from advibp import Method, data, keep_freed_memory, nets, objectives
from advibp.execution.hardware import hardware
from advibp.recipe import Recipe
from advibp.training import Training

NETS = {"dm-small": 60, "cnn-small": 30, "dm-medium": 15}  # number of rounds
METHODS = ["standard", "rs-fgsm", "ibp", "fixed", "advibp"]
#: Methods with linear bounds, halfway through the ramp, where CROWN-IBP is used: with and without loss fusion.
CROWN_IBP = [f"{method}, {fusion}" for method in ("crown-ibp", "advcrown-ibp") for fusion in ("fused", "unfused")]
#: With `compile: true`, if there is a C++ compiler.
COMPILED = ["ibp, compiled", "advibp, compiled"] if shutil.which("g++") else []
#: Only the IBP loss; the method "ibp" also has the regular loss.
IBP = Method(name="ibp", description="IBP loss", upper=objectives.ibp)
#: Numerators and denominators by name.
RATIOS = {
    **{f"{method} / standard": ((method,), ("standard",)) for method in METHODS if method != "standard"},
    **{f"{method} / advibp": ((method,), ("advibp",)) for method in CROWN_IBP},
    "advibp / fixed": (("advibp",), ("fixed",)),
    "advibp / (rs-fgsm + ibp)": (("advibp",), ("rs-fgsm", "ibp")),
    "advibp / floor": (("advibp",), ("floor of advibp",)),
    "ibp / floor": (("ibp",), ("floor of ibp",)),
    "standard / floor": (("standard",), ("floor of standard",)),
    **{f"{job} / floor": ((job,), (f"floor of {job.split(',')[0]}",)) for job in COMPILED},
}


@cache
def mnist() -> data.Data:
    return data.load("mnist", validation=1)


def training(net: str, method: str, batch: int = 256, **more: Any) -> Training:
    """Return a training at full eps, or in the ramp for a method of CROWN_IBP."""
    options: dict[str, Any] = {"epochs": 1000, "warmup_natural": 0, "warmup_adversarial": 0, "ramp": 0, "lr": 1e-12}
    if method in COMPILED:
        method, more = method.split(",")[0], {**more, "compile": True}
    user_method = IBP if method == "ibp" else None
    if method in CROWN_IBP:
        method, fusion = method.split(", ")
        options |= {"ramp": options["epochs"], "loss_fusion": fusion == "fused"}
    name = f"python:{method}" if user_method else method
    recipe = Recipe.of({**options, "method": name, "batch_size": batch, **more})
    run = Training(nets.build(net, seed=0), mnist(), recipe, user_method)
    run.steps = run.course.main // 2
    return run


def measure(net: str, rounds: int, methods: list[str], batch: int = 256) -> dict[str, list[float]]:
    """Return the seconds of each round, by job."""
    trainings = {method: training(net, method, batch) for method in methods}
    # In most steps of a real training the past gradients conflict, so that FOSC is measured: the more expensive case.
    for job in {"advibp", "advibp, compiled"} & trainings.keys():
        trainings[job].weighting.needs_fosc = lambda: True  # type: ignore[method-assign]
    x, y = trainings["advibp"].feed.example(batch)
    floor = Floor(trainings["advibp"].net, x)  # type: ignore[arg-type]
    jobs: dict[str, Callable[[], object]] = {m: (lambda t=t: t.step(x, y)) for m, t in trainings.items()}
    jobs |= {"floor of standard": floor.standard, "floor of ibp": floor.ibp, "floor of advibp": floor.joint}
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(-3, rounds):  # the first three rounds are a warm-up
        for name, job in jobs.items():
            began = time.perf_counter()
            job()
            if number >= 0:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def ratios(seconds: dict[str, list[float]]) -> dict[str, list[float]]:
    """Return the quartiles of each ratio over the rounds."""
    result = {}
    for name, pair in RATIOS.items():
        sums = [[sum(times) for times in zip(*(seconds[job] for job in jobs), strict=True)] for jobs in pair]
        result[name] = [round(q, 3) for q in quantiles([a / b for a, b in zip(*sums, strict=True)], n=4)]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("net", nargs="*", default=list(NETS), help="networks")
    parser.add_argument("--quick", action="store_true", help="measure only steps, not memory and growth")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("latest.json"))
    args = parser.parse_args()
    torch.manual_seed(0)
    result: dict[str, Any] = {"hardware": hardware(), "freed memory is kept": keep_freed_memory(), "nets": {}}
    for net in args.net:
        seconds = measure(net, NETS.get(net, 10), METHODS + COMPILED + CROWN_IBP)
        found = ratios(seconds)
        milliseconds = {name: round(1e3 * median(times), 2) for name, times in seconds.items()}
        result["nets"][net] = {"ratios (quartiles)": found, "milliseconds (medians)": milliseconds}
        print(f"\n{net}: standard step {milliseconds['standard']} ms, advibp step {milliseconds['advibp']} ms")
        for name, (low, middle, high) in found.items():
            print(f"  {name:34s} {middle:6.2f}   ({low:.2f} to {high:.2f})")
        if not args.quick:
            memory = peaks(net)
            result["nets"][net]["peak memory (MB)"] = memory
            print(f"  peak memory, advibp / standard {memory['advibp'] / memory['standard']:6.2f}   ({memory})")
    if not args.quick:
        result["outside of the steps (share of an epoch)"] = share = outside()
        print(f"\nan epoch of dm-small spends {share:.1%} of its time outside of the steps")
        result["growth"] = fit(measure)
        plot(result["growth"], args.out.with_name("growth.svg"))
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
