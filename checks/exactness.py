"""Compare all verifiers on random networks: complete ones must agree, and no bound may exceed the exact margin.

    python checks/exactness.py --nets 500 --minutes 30 --seed 0 --json counts.json

Networks of up to 60 ReLUs (fully connected, convolutional, residual; some leaky, some with max pooling) and 2 to 4
classes, each at several eps. The exact margin is the solution of a mixed integer program; for up to 12 ReLUs it is also
computed by a linear program per activation pattern. If it is further than 1e-4 from 0, `milp` and `bab` must return its
sign. Margins of incomplete verifiers must be below it. Counterexamples must be in the ball and be misclassified. The
exit code is 1 if any check fails.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))

from exact import exact_margins

from advibp.bounds.box import Box
from advibp.bounds.labels import smallest_margin
from advibp.bounds.linear.kinks import Kinks
from advibp.verify.exact.integer_program import Program
from advibp.verify.exact.question import Question
from advibp.verify.verifiers import Proof, bounding_verifiers, complete_verifiers, searches

CLEAR = 1e-4  # margins closer to 0 are not compared
RELAXED = 1e-4  # by how much the relaxed rows of a program may lower its solution
MOST_RELUS = 60


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any) -> Any:
        return x + self.body(x)


@dataclass(frozen=True)
class Sample:
    kind: str
    net: nn.Module
    x: Tensor  # (1, ...)
    label: int
    classes: int
    relus: int


def sample(seed: int) -> Sample:
    """Return a float32 network, and an image labeled with the class it predicts."""
    dice = random.Random(seed)
    torch.manual_seed(seed)
    classes = dice.randint(2, 4)
    while True:
        kind = dice.choice(["fc", "fc", "conv", "residual", "leaky", "pooling"])
        net, shape = _layers(kind, dice, classes)
        relus = _count(net, shape)
        if relus <= MOST_RELUS:
            break
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(dice.choice([1.0, 1.5, 2.0]))
        x = torch.rand(1, *shape)
        return Sample(kind, net.eval(), x, int(net(x).argmax()), classes, relus)


def _layers(kind: str, dice: random.Random, classes: int) -> tuple[nn.Module, tuple[int, ...]]:
    if kind in ("fc", "leaky"):
        sizes = [dice.randint(2, 8), *(dice.randint(2, 20) for _ in range(dice.randint(1, 4)))]
        act = nn.ReLU if kind == "fc" else lambda: nn.LeakyReLU(dice.choice([0.01, 0.3]))
        layers = [layer for i, j in itertools.pairwise(sizes) for layer in (nn.Linear(i, j), act())]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], classes)), (sizes[0],)
    if kind == "residual":
        width = dice.randint(2, 8)
        blocks: list[nn.Module] = [nn.Linear(4, width), nn.ReLU()]
        for _ in range(dice.randint(1, 2)):
            body = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
            blocks += [Residual(body), nn.ReLU()]
        return nn.Sequential(*blocks, nn.Linear(width, classes)), (4,)
    channels = dice.randint(1, 3)
    layers = [nn.Conv2d(1, channels, 2, padding=dice.randint(0, 1)), nn.ReLU()]
    if kind == "pooling":
        layers += [nn.MaxPool2d(2, dice.randint(1, 2))]
    if dice.random() < 0.5:
        layers += [nn.Conv2d(channels, 2, 2, padding=1), nn.ReLU()]
    layers += [nn.Flatten()]
    features = nn.Sequential(*layers)(torch.zeros(1, 1, 3, 3)).shape[1]
    return nn.Sequential(*layers, nn.Linear(features, classes)), (1, 3, 3)


def _count(net: nn.Module, shape: tuple[int, ...]) -> int:
    found = []
    hooks = [
        module.register_forward_hook(lambda _, __, output: found.append(output.numel()))
        for module in net.modules()
        if isinstance(module, (nn.ReLU, nn.LeakyReLU))
    ]
    net(torch.zeros(1, *shape))
    for hook in hooks:
        hook.remove()
    return sum(found)


def exact_margin(question: Question) -> float:
    """Return the smallest margin: the solution of one program per class."""
    with torch.no_grad():
        bounds = question.bounds.refine()
    kinks, output = Kinks(bounds), bounds.tape.output
    program = Program(kinks, output, integer=True)
    rows = question.unsafe
    return min(program.minimize(kinks.linear(output, *row)).claimed for row in rows)


def check(case: Sample, eps: float, seconds: float = 1200.0) -> list[str]:
    """Return a message for each failed check."""
    wrong = []
    asked = Question.robustness(case.net, case.x, case.label, eps, case.classes)
    real = Question.robustness(case.net, case.x, case.label, eps, case.classes, real=True)
    exact, double = exact_margin(real), copy.deepcopy(case.net).double()
    if case.relus <= 12 and case.kind in ("fc", "conv", "residual"):
        patterns = exact_margins(double, asked.bounds.box, case.label)
        patterns[case.label] = torch.inf
        if abs(float(patterns.min()) - exact) > RELAXED:
            wrong.append(f"the exact margin is {exact} by MILP, {float(patterns.min())} by enumeration")
    for name, search in searches().items():
        answer = search(Question.robustness(case.net, case.x, case.label, eps, case.classes), seconds=seconds)
        if answer.margin > exact + RELAXED:
            wrong.append(f"{name}: margin {answer.margin} above the exact {exact}")
        if answer.counterexample is not None:
            point = answer.counterexample
            inside = bool((point >= asked.lower).all() and (point <= asked.upper).all())
            with torch.no_grad():
                broken = int(case.net(point).argmax()) != case.label
            if not inside or not broken:
                wrong.append(f"{name}: a counterexample that is none")
        if abs(exact) > CLEAR and name in complete_verifiers():
            verdict = "falsified" if answer.counterexample is not None else "robust" if answer.robust else "open"
            if verdict != ("robust" if exact > 0 else "falsified"):
                wrong.append(f"{name}: {verdict}, but the exact margin is {exact}")
    with torch.no_grad():
        proof = Proof(double, Box.from_bounds(asked.lower.double(), asked.upper.double()), torch.tensor([case.label]))
        for name in bounding_verifiers():
            proof.tighten(name)
            margin = float(smallest_margin(proof.margins, proof.y))
            if margin > exact + RELAXED:
                wrong.append(f"{name}: margin {margin} above the exact {exact}")
    return [f"{case.kind}, eps {eps:g}: {each}" for each in wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", type=int, default=500)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    began, wrong, counts = time.monotonic(), list[str](), Counter[str]()
    for seed in range(args.seed, args.seed + args.nets):
        if time.monotonic() - began > 60 * args.minutes:
            break
        case = sample(seed)
        counts["networks"] += 1
        counts[case.kind] += 1
        for eps in (0.02, 0.1, 0.3):
            found = check(case, eps)
            counts["questions"] += 1
            wrong += [f"seed {seed}, {each}" for each in found]
        if counts["networks"] % 25 == 0:
            print(f"{counts['networks']} networks, {len(wrong)} wrong, {time.monotonic() - began:.0f} s", flush=True)
    result = {**counts, "wrong": wrong, "seconds": round(time.monotonic() - began)}
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
