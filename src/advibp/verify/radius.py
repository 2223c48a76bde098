"""Finds the largest eps that is proved for an image, and the smallest eps at which an attack breaks it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from advibp.bounds import Box, Perturbation
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounded import Rounded
from advibp.data import Split
from advibp.data.user_data import Images, as_images
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords
from advibp.execution.modes import preserve_modes
from advibp.execution.own_copy import run_on_copy
from advibp.storage import checkpoint
from advibp.storage.json_lines import read_lines
from advibp.verify.argument_checks import (
    check_callable,
    check_folder,
    check_net,
    check_whole,
    is_finite,
    make_folder,
    named,
    shortened,
)
from advibp.verify.arguments import parse_perturbation
from advibp.verify.attack_options import Attack, check_attack, start_generator
from advibp.verify.certification import (
    Progress,
    arithmetic_of,
    check_inputs,
    check_range,
    fingerprints,
    prepare_set,
    weights_fingerprint,
)
from advibp.verify.precision import full_precision
from advibp.verify.radius_records import Radius, curve, radius_line
from advibp.verify.selftest import check_function
from advibp.verify.verifiers import Proof, bounding_verifiers, check_arithmetic, in_order

__all__ = ["Radius", "curve", "largest_proved_eps", "per_image", "proved_images", "radii", "smallest_broken_eps"]


@known_keywords
@torch.no_grad()
def largest_proved_eps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    *,
    by: Sequence[str] = ("ibp",),
    tolerance: float = 1e-4,
    most: float | Tensor | None = None,
    arithmetic: str | None = None,
    perturbation: Perturbation = PIXELS,
) -> Tensor:
    """Find the largest proved eps of each image by bisection.

    Examples:
        >>> import torch, advibp
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
        >>> x = torch.full((2, 1, 2, 2), 0.5)
        >>> bool((largest_proved_eps(net, x, net(x).argmax(1)) > 0).all())
        True

    Args:
        net: The network. It is used in evaluation mode and gets its mode back.
        x: Inputs (B, ...), within the range of the perturbation.
        y: Labels (B,).
        by: Names of verifiers that are not searches. Default: IBP.
        tolerance: Bisection stops when the interval is this short. 0 goes on to neighboring floating-point numbers.
            Default: 1e-4.
        most: Upper end of the bisection, a number or a tensor (B,). Default: 1 for images, otherwise the eps at which
            the set is the whole range. It is required if a feature has no limit.
        arithmetic: What the proofs cover, as in `certify`.
        perturbation: Range of the inputs, and scale of each feature's radius. Default: those of images.

    Returns:
        Radii (B,), each of which was itself proved; 0 if none was.
    """
    check_net(net, x, "largest_proved_eps(net, x, y)")
    if not is_finite(tolerance) or not tolerance >= 0:
        raise UserError(f"tolerance is {shortened(tolerance)}, but must be a number of at least 0, such as 1e-4.")
    if not isinstance(perturbation, Perturbation):
        raise UserError(f"perturbation is {shortened(perturbation)}, but must be an advibp.Perturbation.")
    x, y, most = _check_tensors(net, x, y, most)
    perturbation.check_shape(x.shape[1:])
    check_range(x, perturbation.on(x))
    provers = in_order(by, list(bounding_verifiers()))
    with full_precision(), preserve_modes(net):
        net.eval()
        kind = arithmetic_of(net, arithmetic)
        check_arithmetic(provers, kind)
        if len(x):
            check_function(net, x, perturbation.on(x).within)
        most = x.new_full((len(x),), _most(perturbation)) if most is None else most
        return _bisect(net, x, y, provers, most, kind == "real", tolerance, perturbation)


def _check_tensors(net: nn.Module, x: Any, y: Any, most: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """Check the inputs, the labels and the largest radii of `largest_proved_eps`. Labels become int64."""
    usage = "call largest_proved_eps(net, x, y)"
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        raise UserError(f"The inputs are {named(x)} and the labels {named(y)}, but both must be tensors: {usage}.")
    first = next(net.parameters(), x)
    if x.dim() < 2 or not x.is_floating_point() or x.dtype != first.dtype:
        raise UserError(f"The inputs are {x.dtype} of shape {tuple(x.shape)}; give {first.dtype} of shape (B, ...).")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool or y.shape != x.shape[:1]:
        raise UserError(f"The labels are {y.dtype} of shape {tuple(y.shape)}; give integers of shape ({len(x)},).")
    if most is None:
        return x, y.long(), None
    if isinstance(most, Tensor) and most.shape == x.shape[:1] and most.is_floating_point():
        most = most.to(x)
    elif is_finite(most):
        most = x.new_full((len(x),), float(most))
    else:
        raise UserError(f"most is {shortened(most)}, but must be a number above 0, or a tensor of shape ({len(x)},).")
    if not bool(((most > 0) & most.isfinite()).all()):
        raise UserError("most holds numbers that are not above 0, or not finite; give the largest eps to try.")
    return x, y.long(), most


def _most(perturbation: Perturbation) -> float:
    """The eps at which the set is the whole range."""
    most = perturbation.widest()
    if not most < math.inf:
        raise UserError("A feature has no limit, so there is no largest eps; give `most`, the largest eps to try.")
    return most


def _bisect(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    by: Sequence[str],
    failed: Tensor,
    real: bool,
    tolerance: float = 1e-4,
    perturbation: Perturbation = PIXELS,
) -> Tensor:
    """The same for a network that was checked. Only radii below `failed` (B,) are tried."""
    proved = torch.zeros_like(failed)
    while len(x) and float((failed - proved).max()) > tolerance:
        middle = (proved + failed) / 2
        if bool(((middle == proved) | (middle == failed)).all()):  # neighboring numbers
            break
        eps = per_image(middle, x)
        holds = proved_images(net, perturbation.box(x, eps) if real else perturbation.rounded(x, eps), y, by)
        proved, failed = torch.where(holds, middle, proved), torch.where(holds, failed, middle)
    return proved


def per_image(eps: Tensor, x: Tensor) -> Tensor:
    """Reshape radii (B,) so that they broadcast to images x (B, ...)."""
    return eps.view(-1, *[1] * (x.dim() - 1))


def proved_images(net: nn.Module, inputs: Box | Rounded, y: Tensor, by: Sequence[str]) -> Tensor:
    """Which images are proved (B,). Each verifier runs only on the images that the earlier ones could not prove."""
    proof, left = Proof(net, inputs, y), torch.arange(len(y), device=y.device)
    holds = torch.zeros(len(y), dtype=torch.bool, device=y.device)
    for verifier in by:
        done = proof.tighten(verifier) > 0
        holds[left[done]] = True
        if bool(done.all()):
            break
        unproved = torch.nonzero(~done).flatten()
        proof, left = proof.take(unproved), left[unproved]
    return holds


@known_keywords
@torch.no_grad()
def smallest_broken_eps(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    attack: Attack,
    *,
    generators: Sequence[torch.Generator] | None = None,
    tolerance: float = 1e-3,
    most: float = 1.0,
    perturbation: Perturbation = PIXELS,
) -> Tensor:
    """Find the nearest counterexample of each image by bisection on eps.

    Args:
        net: The network, in evaluation mode.
        x: Inputs (B, ...), within the range of the perturbation.
        y: Labels (B,).
        attack: The attack.
        generators: A generator for the random starts of each image. Default: torch's global generator.
        tolerance: Bisection stops when the interval is this short. Default: 1e-3.
        most: Largest eps to try. Default: 1.
        perturbation: Range of the inputs, and scale of each feature's radius. Default: those of images.

    Returns:
        Distances (B,) of the counterexamples, which may be less than the eps of the attack; inf if the attack finds no
        counterexample up to eps `most`.
    """
    below = torch.zeros(len(x), dtype=x.dtype, device=x.device)
    nearest, tried = torch.full_like(below, torch.inf), torch.full_like(below, most)
    while True:
        left = torch.nonzero((nearest.clamp(max=most) - below > tolerance) & (tried > 0)).flatten()
        if len(left) == 0:
            return nearest
        eps = per_image(tried[left], x).clamp(max=most)
        selected = None if generators is None else [generators[i] for i in left.tolist()]
        attacked = attack(net, x[left], y[left], eps, selected, perturbation=perturbation)
        distance = perturbation.distance(x[left], attacked.x_adv)
        nearest[left] = torch.where(attacked.broken, torch.minimum(nearest[left], distance), nearest[left])
        below[left] = torch.where(attacked.broken, below[left], torch.maximum(below[left], tried[left]))
        # An image that is not broken at the largest eps is finished. For the others the middle is next.
        tried[left] = torch.where(nearest[left].isfinite(), (below[left] + nearest[left]) / 2, 0.0)


@known_keywords
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
    perturbation: Perturbation | None = None,
    most: float | None = None,
) -> list[Radius]:
    """Find the largest proved eps and the nearest counterexample of every image.

    Args:
        net: The network.
        images: Images with labels, as in `certify`.
        by: Names of verifiers that are not searches. Default: IBP.
        arithmetic: What the proofs cover, as in `certify`.
        attack: Default: `Attack()`, PGD with 200 steps.
        out: Folder for radii.jsonl, which is written after each batch. A second call skips images that were measured
            with the same network and options. Default: nothing is written.
        batch_size: Images per batch. Default: 500.
        seed: Seed of the attack's random starts. Default: 0.
        progress: Called after each batch. Default: a progress bar on a terminal.
        perturbation: Range of the inputs, and scale of each feature's radius, as in `certify`.
        most: Largest eps to try. Default: the eps at which the set is the whole range, which is 1 for images. If a
            feature has no limit: the smallest eps at which a feature may change by the spread of its values.

    Returns:
        A `Radius` for each image.
    """
    check_net(net, images, "radii(net, images)")
    check_attack(attack)
    check_callable("progress", progress, "progress(eps, done, total)")
    images, folder = as_images(images), check_folder("out", out)
    verifiers, attack = in_order(by, list(bounding_verifiers())), attack or Attack()
    batch_size, seed = check_whole("batch_size", batch_size, 1), check_whole("seed", seed)
    results: list[Radius] = []
    with (
        full_precision(),
        preserve_modes(net),
        ExitStack() as stack,
        Counting("bisecting") as counting,
        torch.no_grad(),
    ):
        net.eval()
        kind, weights = arithmetic_of(net, arithmetic), weights_fingerprint(net)
        check_arithmetic(verifiers, kind)
        options: dict[str, Any] = {
            "provers": " ".join(verifiers),
            "attack": f"{attack} seed={seed}",
            "arithmetic": kind,
        }
        around = parse_perturbation(images, perturbation)
        options["model"] = check_inputs(net, images, around)
        around, options["perturbation"] = prepare_set(around, net, images)
        largest = _largest(most, around, images)
        if folder:
            make_folder(folder)
            stack.enter_context(checkpoint.lock(folder, "certifying", (folder,)))
        tested = False
        known = {r.index: r for r in read_lines(folder / "radii.jsonl", Radius.of)} if folder else {}
        for start in range(0, len(images), batch_size):
            rows = list(range(start, min(start + batch_size, len(images))))
            x, y = images.batch(torch.tensor(rows))
            check_range(x, around)
            expected = [{**options, "image": image, "most": largest} for image in fingerprints(x, y)]
            new = [
                i
                for i, expectation in zip(rows, expected, strict=True)
                if i not in known or not _fits(known[i], expectation)
            ]
            picked = [i - start for i in new]
            if new and not tested:
                check_function(net, x[picked], around.within)
                tested = True
            for radius in (
                _measure(net, x[picked], y[picked], new, verifiers, attack, seed, kind == "real", around, largest)
                if new
                else []
            ):
                known.pop(radius["index"], None)  # the newest come last, as in the file of records
                known[radius["index"]] = Radius(**radius, **expected[radius["index"] - start], weights=weights)
            results += [known[i] for i in rows]
            if folder and new:
                lines = "".join(radius_line(radius) for radius in known.values())
                checkpoint.write_atomically(folder / "radii.jsonl", lines)
            (progress or counting.progress)(largest, len(results), len(images))
    return results


def _measure(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    indices: list[int],
    verifiers: list[str],
    attack: Attack,
    seed: int,
    real: bool,
    around: Perturbation,
    most: float,
) -> list[dict[str, Any]]:
    """The fields of a `Radius` that are measured, for a batch of images x (B, ...)."""
    device = next(net.parameters()).device
    x, y = x.to(device), y.to(device)
    logits = run_on_copy(net, x)
    predicted = torch.where(logits.isfinite().all(1), logits.argmax(1), -1)
    right = torch.nonzero(predicted == y).flatten()
    proved = torch.zeros(len(x), dtype=x.dtype, device=device)
    broken = torch.zeros_like(proved)
    if len(right):
        generators = [start_generator(seed, indices[i], 1.0) for i in right.tolist()]
        share = 1.0 if around.is_pixels else most  # tolerances are relative to the largest eps
        broken[right] = smallest_broken_eps(
            net,
            x[right],
            y[right],
            attack,
            generators=generators,
            tolerance=1e-3 * share,
            most=most,
            perturbation=around,
        )
        tried = broken[right].clamp(max=most)
        proved[right] = _bisect(net, x[right], y[right], verifiers, tried, real, 1e-4 * share, around)
    names = ("index", "label", "prediction", "proved", "broken")
    nearest = [distance if distance <= most else None for distance in broken.tolist()]
    columns = (indices, y.tolist(), predicted.tolist(), proved.tolist(), nearest)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def _largest(most: float | None, around: Perturbation, images: Images) -> float:
    """The largest eps to try."""
    if most is not None:
        if not is_finite(most) or not most > 0:
            raise UserError(f"most is {shortened(most)}, but must be a number above 0: the largest eps to try.")
        return float(most)
    widest = around.widest()
    if widest < math.inf:
        return widest
    x = images.x if isinstance(images, Split) else images.batch(torch.arange(min(len(images), 1000)))[0]
    width = (x.amax(0) - x.amin(0)).double().cpu()
    scale = torch.ones((), dtype=torch.float64) if around.scale is None else around.scale.cpu()
    spread = float(torch.where((scale > 0) & (width > 0), width / scale, math.inf).min())
    return spread if spread < math.inf else 1.0


def _fits(radius: Radius, options: dict[str, Any]) -> bool:
    """Whether an earlier radius was measured with these options."""
    return all(getattr(radius, name) == value for name, value in options.items())
