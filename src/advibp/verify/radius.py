"""How far an image can be changed: the largest eps that is proved, and the smallest at which an attack breaks it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds import Box
from advibp.bounds.rounded import Rounded
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.modes import modes_kept
from advibp.execution.own_copy import run_on_copy
from advibp.storage import checkpoint
from advibp.storage.json_lines import Fields, read_lines, to_line
from advibp.verify.argument_checks import (
    check_callable,
    check_folder,
    check_net,
    check_whole,
    is_finite,
    make_folder,
    shortened,
)
from advibp.verify.arguments import Images, parse_images
from advibp.verify.attack_options import Attack, check_attack, start_generator
from advibp.verify.certification import Progress, arithmetic_of, check_inputs, fingerprints, weights_fingerprint
from advibp.verify.precision import ARITHMETICS, full_precision
from advibp.verify.selftest import check_function
from advibp.verify.verifiers import Proof, bounding_verifiers, check_arithmetic, in_order


@dataclass(frozen=True, kw_only=True)
class Radius:
    """Of one image: proved up to `proved`, broken from `broken` on (None: the attack never broke it up to eps 1).

    Both are 0 for a misclassified image, and for one whose logits are not finite, where the prediction is -1.
    """

    index: int
    label: int
    prediction: int
    proved: float
    broken: float | None
    provers: str  # who was asked for a proof
    attack: str  # the attack and all its options
    model: str  # fingerprint of the function this is about: its weights, and what it makes of a fixed image
    image: str  # fingerprint of the image and its label
    weights: str = ""  # fingerprint of the weights alone, which a run's folder can be compared with; "": not known
    arithmetic: str = "real"  # that the proof covers; files of versions that did not say so ignore rounding

    @classmethod
    def of(cls, content: dict[str, Any]) -> Radius:
        """A radius from its fields; a ValueError says which one is wrong."""
        required = [f.name for f in fields(cls) if f.default is MISSING]
        check = Fields(content, [f.name for f in fields(cls)], required)
        check.integer("index", 0)
        check.integer("label", 0)
        check.integer("prediction", -1)
        check.number("proved", 0, 1)
        check.number_or_none("broken", 0, 1)
        check.text("provers", "attack", "model", "image", "weights")
        if "arithmetic" in content:
            check.choice("arithmetic", ARITHMETICS)
        radius = cls(**content)
        if radius.broken is not None and radius.proved > radius.broken:
            raise ValueError(f"proved is {radius.proved}, but must not exceed broken, which is {radius.broken}")
        if radius.prediction != radius.label and radius.proved > 0:
            raise ValueError(f"proved is {radius.proved}, but must be 0 for a misclassified image")
        return radius


@torch.no_grad()
def largest_proved_eps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    by: Sequence[str] = ("ibp",),
    tolerance: float = 1e-4,
    most: Tensor | None = None,
    arithmetic: str | None = None,
) -> Tensor:
    """Bisection on eps for each image, (B, ...) and labels (B,) -> (B,), up to `most` (B,), or 1.

    What is returned was itself proved, never merely lies below a failure; 0 where no radius was. `arithmetic` is what
    the proofs cover, as in `certify`. A tolerance of 0 goes down to the spacing of floating-point numbers.
    """
    check_net(net, x, "largest_proved_eps(net, x, y)")
    if not is_finite(tolerance) or not tolerance >= 0:
        raise UserError(f"tolerance is {shortened(tolerance)}, but must be a number of at least 0, such as 1e-4.")
    provers = in_order(by, list(bounding_verifiers()))
    with full_precision(), modes_kept(net):
        net.eval()
        kind = arithmetic_of(net, arithmetic)
        check_arithmetic(provers, kind)
        if len(x):
            check_function(net, x)
        most = x.new_ones(len(x)) if most is None else most
        return _bisected(net, x, y, provers, most, kind == "real", tolerance)


def _bisected(
    net: nn.Module, x: Tensor, y: Tensor, by: Sequence[str], failed: Tensor, real: bool, tolerance: float = 1e-4
) -> Tensor:
    """The same for a network that was checked; no eps from `failed` (B,) on is tried."""
    proved = torch.zeros_like(failed)
    while len(x) and float((failed - proved).max()) > tolerance:
        middle = (proved + failed) / 2
        if bool(((middle == proved) | (middle == failed)).all()):  # neighbours
            break
        eps = _per_image(middle, x)
        holds = _proved(net, Box.ball(x, eps) if real else Rounded.ball(x, eps), y, by)
        proved, failed = torch.where(holds, middle, proved), torch.where(holds, failed, middle)
    return proved


def _per_image(eps: Tensor, x: Tensor) -> Tensor:
    return eps.view(-1, *[1] * (x.dim() - 1))


def _proved(net: nn.Module, inputs: Box | Rounded, y: Tensor, by: Sequence[str]) -> Tensor:
    """Which images are proved (B,), asking the next prover only for those that the last one left."""
    proof, left = Proof(net, inputs, y), torch.arange(len(y), device=y.device)
    holds = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for prover in by:
        done = proof.tighten(prover) > 0
        holds[left[done]] = True
        if bool(done.all()):
            break
        stay = torch.nonzero(~done).flatten()
        proof, left = proof.take(stay), left[stay]
    return holds


@torch.no_grad()
def smallest_broken_eps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    *,
    generators: Sequence[torch.Generator] | None = None,
    tolerance: float = 1e-3,
) -> Tensor:
    """The distance of the nearest counterexample that bisection on eps finds, (B, ...) -> (B,); inf where the attack
    finds none within 1. It is measured on the counterexample, so it may be less than the eps tried."""
    below = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    nearest, tried = torch.full_like(below, torch.inf), torch.ones_like(below)
    while True:
        left = torch.nonzero((nearest.clamp(max=1) - below > tolerance) & (tried > 0)).flatten()
        if len(left) == 0:
            return nearest
        eps = _per_image(tried[left], x).clamp(max=1)
        chances = None if generators is None else [generators[i] for i in left.tolist()]
        attacked = attack(net, x[left], y[left], eps, chances)
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
    arithmetic: str | None = None,
    attack: Attack | None = None,
    out: str | Path | None = None,
    batch_size: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Radius]:
    """Both radii of every image. With `out` they are kept in radii.jsonl there, batch by batch, and a second call
    continues: for the same network, image and question."""
    check_net(net, images, "radii(net, images)")
    check_attack(attack)
    check_callable("progress", progress, "progress(eps, done, total)")
    images, folder = parse_images(images), check_folder("out", out)
    provers, attack = in_order(by, list(bounding_verifiers())), attack or Attack()
    batch_size, seed = check_whole("batch_size", batch_size, 1), check_whole("seed", seed)
    found: list[Radius] = []
    with full_precision(), modes_kept(net), ExitStack() as held, Counting("bisecting") as counting, torch.no_grad():
        net.eval()
        kind, weights = arithmetic_of(net, arithmetic), weights_fingerprint(net)
        check_arithmetic(provers, kind)
        asked = {"provers": " ".join(provers), "attack": f"{attack} seed={seed}", "arithmetic": kind}
        asked["model"] = check_inputs(net, images)
        if folder:
            make_folder(folder)
            held.enter_context(checkpoint.held(folder, "certifying", (folder,)))
        tested = False
        known = {r.index: r for r in read_lines(folder / "radii.jsonl", Radius.of)} if folder else {}
        for start in range(0, len(images), batch_size):
            rows = list(range(start, min(start + batch_size, len(images))))
            x, y = images.batch(torch.tensor(rows))
            expected = [{**asked, "image": image} for image in fingerprints(x, y)]
            new = [i for i, want in zip(rows, expected, strict=True) if i not in known or not _fits(known[i], want)]
            picked = [i - start for i in new]
            if new and not tested:
                check_function(net, x[picked])
                tested = True
            real = asked["arithmetic"] == "real"
            for radius in _measure(net, x[picked], y[picked], new, provers, attack, seed, real) if new else []:
                known.pop(radius["index"], None)  # the newest come last: they tell which network the file is about
                known[radius["index"]] = Radius(**radius, **expected[radius["index"] - start], weights=weights)
            found += [known[i] for i in rows]
            if folder and new:
                lines = "".join(to_line(asdict(radius)) for radius in known.values())
                checkpoint.write_atomically(folder / "radii.jsonl", lines)
            (progress or counting.progress)(1.0, len(found), len(images))
    return found


def _measure(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    indices: list[int],
    provers: list[str],
    attack: Attack,
    seed: int,
    real: bool,
) -> list[dict[str, Any]]:
    device = next(net.parameters()).device
    x, y = x.to(device), y.to(device)
    logits = run_on_copy(net, x)
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), -1)
    right = torch.nonzero(predicted == y).flatten()
    proved = torch.zeros(len(x), dtype=x.dtype, device=device)
    broken = torch.zeros_like(proved)
    if len(right):
        generators = [start_generator(seed, indices[i], 1.0) for i in right.tolist()]
        broken[right] = smallest_broken_eps(net, x[right], y[right], attack, generators=generators)
        most = broken[right].clamp(max=1)
        proved[right] = _bisected(net, x[right], y[right], provers, most, real)
    names = ("index", "label", "prediction", "proved", "broken")
    nearest = [distance if distance <= 1 else None for distance in broken.tolist()]
    columns = (indices, y.tolist(), predicted.tolist(), proved.tolist(), nearest)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _fits(radius: Radius, wanted: dict[str, str]) -> bool:
    return all(getattr(radius, name) == value for name, value in wanted.items())


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
