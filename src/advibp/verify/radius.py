"""How far an image can be changed: the largest eps that is proved, and the smallest at which an attack breaks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from advibp import checkpoint
from advibp.bounds import Box
from advibp.modes import modes_kept
from advibp.progress import Counting
from advibp.verify.attack import Attack
from advibp.verify.certifying import Images, Progress
from advibp.verify.precision import full_precision
from advibp.verify.provers import Proof, in_order


@dataclass(frozen=True)
class Radius:
    """Of one image: proved up to `proved`, broken from `broken` on (None: the attack never broke it up to eps 1)."""

    index: int
    label: int
    prediction: int
    proved: float
    broken: float | None


@torch.no_grad()
def largest_proved_eps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    by: Sequence[str] = ("ibp",),
    tolerance: float = 1e-4,
    most: Tensor | None = None,
) -> Tensor:
    """Bisection on eps for each image, (B, ...) and labels (B,) -> (B,), up to `most` (B,), or 1.

    What is returned was itself proved, never merely lies below a failure; 0 where no radius was.
    """
    proved = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    failed = torch.ones_like(proved) if most is None else most.clone()
    with full_precision():
        while float((failed - proved).max()) > tolerance:
            middle = (proved + failed) / 2
            holds = _proved(net, Box.ball(x, _per_image(middle, x)), y, by)
            proved, failed = torch.where(holds, middle, proved), torch.where(holds, failed, middle)
    return proved


def _per_image(eps: Tensor, x: Tensor) -> Tensor:
    return eps.view(-1, *[1] * (x.dim() - 1))


def _proved(net: nn.Module, box: Box, y: Tensor, by: Sequence[str]) -> Tensor:
    """Which images are proved (B,), asking the next prover only for those that the last one left."""
    proof, left = Proof(net, box, y), torch.arange(len(y), device=y.device)
    holds = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for prover in in_order(list(by)):
        done = proof.ask(prover) > 0
        holds[left[done]] = True
        if bool(done.all()):
            break
        stay = torch.nonzero(~done).flatten()
        proof, left = proof.take(stay), left[stay]
    return holds


@torch.no_grad()
def smallest_broken_eps(
    net: nn.Module, x: Tensor, y: Tensor, attack: Attack, least: Tensor, *, tolerance: float = 1e-3
) -> Tensor:
    """The distance of the nearest counterexample that bisection on eps finds, (B, ...) -> (B,), above `least` (B,); inf
    where the attack finds none within 1. It is measured on the counterexample, so it may be less than the eps tried."""
    below, nearest = least.clone(), torch.full_like(least, torch.inf)
    tried = torch.ones_like(least)
    while True:
        left = torch.nonzero((nearest.clamp(max=1) - below > tolerance) & (tried > 0)).flatten()
        if len(left) == 0:
            return nearest
        eps = _per_image(tried[left], x).clamp(max=1)
        attacked = attack(net, x[left], y[left], eps)
        distance = (attacked.x_adv - x[left]).abs().flatten(1).amax(1)
        nearest[left] = torch.where(attacked.broken, torch.minimum(nearest[left], distance), nearest[left])
        below[left] = torch.where(attacked.broken, below[left], torch.maximum(below[left], tried[left]))
        # An image that is not broken at 1 is given up; for the others the middle is next.
        tried[left] = torch.where(nearest[left].isfinite(), (below[left] + nearest[left]) / 2, 0.0)


def radii(
    net: nn.Module,
    images: Images,
    *,
    by: Sequence[str] = ("ibp",),
    attack: Attack | None = None,
    out: str | Path | None = None,
    batch_size: int = 500,
    progress: Progress | None = None,
) -> list[Radius]:
    """Both radii of every image; 0 and 0 for a misclassified one. With `out`, also as lines of JSON in that file."""
    found: list[Radius] = []
    device = next(net.parameters()).device
    with full_precision(), modes_kept(net), Counting("bisecting") as counting, torch.no_grad():
        net.eval()
        for start in range(0, len(images), batch_size):
            rows = torch.arange(start, min(start + batch_size, len(images)))
            x, y = (t.to(device) for t in images.batch(rows))
            predicted = net(x).argmax(1)
            right = torch.nonzero(predicted == y).flatten()
            proved, broken = torch.zeros(len(x), device=device), torch.zeros(len(x), device=device)
            if len(right):
                broken[right] = smallest_broken_eps(
                    net, x[right], y[right], attack or Attack(), torch.zeros(len(right), device=device)
                )
                most = broken[right].clamp(max=1)
                proved[right] = largest_proved_eps(net, x[right], y[right], by=by, most=most)
            parts = zip(rows, y, predicted, proved, broken, strict=True)
            found += [Radius(int(i), int(t), int(p), float(a), float(b) if b <= 1 else None) for i, t, p, a, b in parts]
            (progress or counting.progress)(1.0, len(found), len(images))
    if out is not None:
        checkpoint.write_atomically(Path(out), "".join(json.dumps(asdict(radius)) + "\n" for radius in found))
    return found


def curve(found: Sequence[Radius], eps: Sequence[float]) -> list[tuple[float, float, float]]:
    """Certified accuracy over eps: (eps, share of images proved there, share that the attack leaves unbroken there)."""
    count = len(found)
    return [
        (
            e,
            sum(r.proved >= e for r in found if r.prediction == r.label) / count,
            sum(r.broken is None or r.broken > e for r in found if r.prediction == r.label) / count,
        )
        for e in eps
    ]
