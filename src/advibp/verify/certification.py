"""`certify`: gives every image a verdict at every eps, and keeps records of them in a folder."""

from __future__ import annotations

import itertools
import json
import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from advibp.bounds import Perturbation
from advibp.callbacks import CallbackGroup
from advibp.data import Data, Split
from advibp.data.user_data import Images
from advibp.display.eps import format_eps
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords
from advibp.execution.modes import preserve_modes
from advibp.storage import checkpoint
from advibp.verify.argument_checks import (
    check_callable,
    check_folder,
    check_net,
    check_seconds,
    check_whole,
    make_folder,
    named,
)
from advibp.verify.arguments import USAGE, parse_images_and_radii, parse_perturbation
from advibp.verify.attack_options import Attack, check_attack
from advibp.verify.cascade import Cascade, check_labels
from advibp.verify.collapse import CollapseWarning
from advibp.verify.precision import Arithmetic, check_types, full_precision
from advibp.verify.records import Certificate, Record, RecordFile
from advibp.verify.selftest import FEW, check_function, spread_over
from advibp.verify.summary import summarize
from advibp.verify.verifiers import VERIFIERS, check_arithmetic, in_order, searches
from advibp.verify.workers import in_workers

#: Default budget in seconds per image if a search is among the verifiers.
SEARCH_SECONDS = 60.0

Radii = float | str | Sequence[float | str] | Tensor


class Progress(Protocol):
    """Called with eps, the number of decided images, the number of all images, and the counts of verdicts."""

    def __call__(self, eps: float, done: int, total: int, counts: Counter[str] | None = None, /) -> None: ...


@dataclass(frozen=True)
class _Job:
    """A batch of images at one eps: earlier records that are still valid, and the images that are left to decide."""

    eps: float
    known: list[Record]
    indices: list[int]
    fingerprints: list[str]


@known_keywords
def certify(
    net: nn.Module,
    images: Images | Data | Sequence[Tensor] | Dataset[Any] | DataLoader[Any] | Tensor | None = None,
    y: Tensor | Radii | Mapping[str, float | str] | None = None,
    eps: Radii | Mapping[str, float | str] | None = None,
    *,
    by: str | Sequence[str] = ("ibp",),
    arithmetic: str | None = None,
    attack: Attack | None = None,
    budget: float | None = None,
    sample: int | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    command: str = "",
    batch_size: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
    callbacks: Sequence[object] | None = None,
    perturbation: Perturbation | None = None,
) -> Certificate:
    """Give every image a verdict at every eps: certify(net, images, eps) or certify(net, x, y, eps).

    The checks run cheapest first: the clean pass, cheap verifiers, the attack, the other verifiers. An image leaves at
    its first verdict. The network is used in evaluation mode and gets its mode back.

    Examples:
        >>> import advibp
        >>> net = advibp.nets.build("FC 20", input_shape=(1, 28, 28), seed=0)
        >>> test = advibp.data.load("mnist").test.take(8)
        >>> certificate = advibp.certify(net, test, [0.001, 0.01], by=["ibp", "crown"])
        >>> certificate.counts(0.001).total()
        8

    Args:
        net: Any module of supported operations that maps images to logits (B, K).
        images: Images (N, ...) in [0, 1] as a tensor, with labels `y`; or images with labels: a `Split`, a pair (x, y)
            of tensors, a Dataset or a DataLoader. A Dataset is read in batches. A DataLoader that shuffles or augments
            is read once. Of a `Data` set, or (x_train, y_train, x_test, y_test), the test images are used.
        y: Labels (N,) if `images` is a tensor. Otherwise the third positional argument is `eps`.
        eps: One radius or several, in (0, 1] for images. A text such as "8/255" is allowed. Or a radius for each
            feature by name: the largest one is then the eps of the records.
        by: Names of verifiers (see `advibp.verify.verifiers.VERIFIERS`), in any order. "complete" stands for those that
            decide every image, given enough time. Default: IBP.
        arithmetic: What the proofs cover. Default: every evaluation of the network in its own type, float32 or float64,
            with its rounding errors. "real" ignores rounding, as papers do.
        attack: Default: `Attack()`, PGD with 200 steps.
        budget: Seconds per image, after which no further verifier runs. The attack always runs. Default: no limit, or
            60 if a search (refinezono, bab, milp) is among the verifiers.
        sample: Number of images to draw at random. Default: all images.
        workers: Number of processes. Default: 1.
        out: Folder for records.jsonl, summary.json and counterexamples. A second call with the same folder skips images
            that were decided for the same network, image and eps. Default: nothing is written.
        command: The command to note in the summary.
        batch_size: Images per batch. Default: 500.
        seed: Seed of the attack's random starts and of `sample`. Default: 0.
        progress: Called after each batch. Default: a progress bar on a terminal or in a notebook.
        callbacks: Objects with `on_certify_start` or `on_certify_end`; see `advibp.callbacks.Callback`.
        perturbation: The range of valid inputs, and the scale of each feature's radius. Default: the range of the data
            set, which is [0, 1] for tensors, and one radius for all features.

    Returns:
        A record for each image and eps, sorted by eps in the order given and by image.

    Raises:
        UserError: If an argument is wrong or would be ignored, or if the network can't be certified.
    """
    check_net(net, images, USAGE)
    images, radii, around = parse_images_and_radii(images, y, eps, perturbation)
    verifiers = in_order(by)
    searching = any(name in searches() for name in verifiers)
    seconds = _check_budget(budget, verifiers)
    batch_size, workers = check_whole("batch_size", batch_size, 1), check_whole("workers", workers, 1)
    sample, seed = None if sample is None else check_whole("sample", sample, 1), check_whole("seed", seed)
    check_callable("progress", progress, "progress(eps, done, total, counts)")
    check_attack(attack)
    group, folder = CallbackGroup(callbacks), check_folder("out", out)
    if command and folder is None:
        raise UserError("command is written to the summary, which needs a folder; give out, or leave command out.")
    chosen = _choose(len(images), sample, seed)
    with torch.inference_mode(False), full_precision(), preserve_modes(net), ExitStack() as stack:
        counting = stack.enter_context(Counting("certifying"))
        kind = arithmetic_of(net, arithmetic)
        check_arithmetic(verifiers, kind)
        facts = {"images": len(chosen), "eps": radii, "by": verifiers, "attack": str(attack or Attack())}
        _notify(group, "on_certify_start", {**facts, "arithmetic": kind, "out": str(folder) if folder else None})
        net.eval()  # after the callbacks, which may change the network
        weights = weights_fingerprint(net)
        model, around, name = check_inputs(net, images, around), *prepare_set(around, net, images)
        cascade = Cascade(net, verifiers, attack or Attack(), folder, seed, model, seconds, kind, weights, around, name)
        if searching:
            cascade = cascade.without_impossible_searches(images.batch(torch.arange(1))[0])
            verifiers = list(cascade.by)
        if folder:
            make_folder(folder)
            stack.enter_context(checkpoint.lock(folder, "certifying", (folder, folder / "counterexamples")))
        file = RecordFile.open(folder / "records.jsonl") if folder else None
        if file:
            _refuse_other_sets(file, radii, model, name)
        if workers > 1 and next(net.parameters()).device.type != "cpu":
            raise UserError("workers need the network on a CPU; certify with workers=1.")
        # Batches are small enough for every worker to get some, and for a killed process to lose little.
        size = min(batch_size, math.ceil(len(chosen) * len(radii) / (4 * workers))) if workers > 1 else batch_size
        size = min(size, 25) if searching else size

        def decide(job: _Job) -> list[Record]:
            x, y = images.batch(torch.tensor(job.indices)) if job.indices else (None, None)
            if x is None or y is None:
                return []
            check_range(x, around)
            return cascade.decide(x, y, job.indices, job.fingerprints, job.eps)

        jobs = _test_first(net, images, around, _jobs(cascade, images, chosen, radii, size, file))
        workers = min(workers, len(radii) * math.ceil(len(chosen) / size))
        records: list[Record] = []
        verdicts: dict[float, Counter[str]] = {}
        for job, new in in_workers(decide, jobs, workers):
            if file:
                file.add(new)
            records += [*job.known, *new]
            counts = verdicts.setdefault(job.eps, Counter())
            counts.update(r.verdict for r in (*job.known, *new))
            (progress or counting.progress)(job.eps, counts.total(), len(chosen), counts)
        position = {radius: k for k, radius in enumerate(radii)}
        certificate = Certificate(sorted(records, key=lambda r: (position[r.eps], r.index)))
        summary = summarize(
            certificate,
            attack=cascade.attack,
            by=verifiers,
            arithmetic=kind,
            sample=sample,
            seed=seed,
            budget=None if budget is None else seconds,
            command=command,
            perturbation=around,
        )
        if file and folder:
            file.compact()
            checkpoint.write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    for message in certificate.warnings():
        warnings.warn(message, CollapseWarning, stacklevel=3)
    _notify(group, "on_certify_end", summary)
    return certificate


def _refuse_other_sets(file: RecordFile, radii: list[float], model: str, set_name: str) -> None:
    """Raise an error if records about another set of the same eps would be replaced: other ranges, or other scales."""
    others = [r for r in file.records.values() if r.eps in radii and r.model == model and r.perturbation != set_name]
    if others:
        raise UserError(
            f"{file.path} has {len(others):,} records of this network at eps {format_eps(others[0].eps)} with another "
            "range or other radii of the features, and they would be replaced; give another folder as out, or move it."
        )


def _notify(group: CallbackGroup, event: str, facts: dict[str, Any]) -> None:
    if request := group.notify(event, facts):
        raise request  # there is no training to stop


def _check_budget(budget: float | None, verifiers: Sequence[str]) -> float:
    """Seconds per image; infinite without a budget and without a search."""
    if budget is None:
        return SEARCH_SECONDS if any(name in searches() for name in verifiers) else math.inf
    seconds = check_seconds("budget", budget, "seconds per image")
    if all(VERIFIERS[name].before_attack for name in verifiers):
        others = ", ".join(name for name, row in VERIFIERS.items() if not row.before_attack)
        raise UserError(
            f"budget limits verifiers that run after the attack, and {' and '.join(verifiers)} run before it; leave "
            f"budget out, or add one of {others} to by."
        )
    return seconds


def _jobs(
    cascade: Cascade, images: Images, chosen: list[int], radii: list[float], size: int, file: RecordFile | None
) -> Iterator[_Job]:
    """Batches of `size` images at each eps, with the earlier records that are still valid."""
    prints: dict[int, str] = {}
    for radius, start in itertools.product(radii, range(0, len(chosen), size)):
        rows = chosen[start : start + size]
        if rows[0] not in prints:
            prints |= zip(rows, fingerprints(*images.batch(torch.tensor(rows))), strict=True)
        earlier = [(file.records.get((i, radius)), prints[i]) for i in rows] if file else []
        known = [record for record, image in earlier if record and cascade.is_valid(record, image)]
        decided = {r.index for r in known}
        indices = [i for i in rows if i not in decided]
        yield _Job(radius, known, indices, [prints[i] for i in indices])


def _test_first(net: nn.Module, images: Images, around: Perturbation, jobs: Iterator[_Job]) -> Iterator[_Job]:
    """Yield the jobs; before the first one with images to decide, run the self-test of the network on some of them."""
    tested = False
    for job in jobs:
        if job.indices and not tested:
            few = images.batch(torch.tensor(job.indices[:FEW]))[0]
            check_range(few, around)
            check_function(net, few, around.within)
            tested = True
        yield job


def weights_fingerprint(net: nn.Module) -> str:
    """Fingerprint of the weights, equal to that of the tensors in a run's model.safetensors."""
    return checkpoint.fingerprint(net.state_dict())


def fingerprints(x: Tensor, y: Tensor) -> list[str]:
    """Fingerprint of each image together with its label."""
    return [checkpoint.fingerprint({"x": image, "y": label}) for image, label in zip(x, y, strict=True)]


def _choose(count: int, sample: int | None, seed: int) -> list[int]:
    """The numbers of all images, or of a random sample, in ascending order."""
    if sample is None or sample >= count:
        return list(range(count))
    return sorted(torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**63))[:sample].tolist())


def arithmetic_of(net: nn.Module, arithmetic: str | None = None) -> Arithmetic:
    """The arithmetic that proofs cover.

    Args:
        net: The network.
        arithmetic: "real", or the type in which the network runs, which is the default.

    Raises:
        UserError: If `arithmetic` is neither of them, or the network runs in low precision.
    """
    check_types(net)
    types = {t.dtype for t in itertools.chain(net.parameters(), net.buffers()) if t.is_floating_point()}
    default: Arithmetic = "float32" if torch.float32 in types or not types else "float64"
    if arithmetic is not None and arithmetic not in ("real", default):
        raise UserError(f"arithmetic is {arithmetic!r}, but must be '{default}', in which the network runs, or 'real'.")
    return "real" if arithmetic == "real" else default


def prepare_set(perturbation: Perturbation, net: nn.Module, images: Images) -> tuple[Perturbation, str]:
    """Return a perturbation on the device of the network and in the type of the images, and its fingerprint.

    Raises:
        UserError: If its range or scale does not fit the shape of an image.
    """
    x = images.batch(torch.arange(1))[0]
    perturbation.check_shape(x.shape[1:])
    around = perturbation.on(x.to(next(net.parameters()).device))
    return around, set_fingerprint(around)


def set_fingerprint(perturbation: Perturbation) -> str:
    """Fingerprint of a range and a scale; "" for images in [0, 1] with one radius."""
    state = perturbation.state()
    return checkpoint.fingerprint(state) if state else ""


def check_range(x: Tensor, around: Perturbation) -> None:
    """Raise a UserError if inputs leave the range of valid inputs.

    The set around such an input would not contain the input itself, so a proof would say nothing about it.

    Args:
        x: Inputs (B, ...).
        around: A perturbation in the type of the inputs.
    """
    low, high = (end.to(x.device) if isinstance(end, Tensor) else end for end in (around.low, around.high))
    if bool(((x >= low) & (x <= high) & x.isfinite()).all()):
        return
    if around.is_pixels:
        raise UserError(
            "The images leave [0, 1] or hold NaN; scale them to [0, 1] and normalize inside the network. If the "
            "inputs are not images, give the range of valid inputs: perturbation=advibp.Perturbation(low, high)."
        )
    raise UserError("Some inputs leave the range of valid inputs or hold NaN; correct the inputs or the range.")


def check_inputs(net: nn.Module, images: Images, perturbation: Perturbation | None = None) -> str:
    """Raise a UserError if the network can't be certified on these images; otherwise return its fingerprint.

    Args:
        net: The network.
        images: The images.
        perturbation: It has the range of the images. Default: that of their data set.
    """
    if len(images) == 0:
        raise UserError("There are no images; give at least one.")
    # Images in memory are checked here, other images when they are read.
    x, y = (images.x, images.y) if isinstance(images, Split) else images.batch(torch.arange(1))
    around = parse_perturbation(images, perturbation)
    around.check_shape(x.shape[1:])
    around = around.on(x)
    check_range(x, around)
    first = next(net.parameters(), None)
    if first is None:
        raise UserError("The network has no parameters; there is nothing to certify.")
    if x.dtype != first.dtype:
        raise UserError(f"The images are {x.dtype}, the network is {first.dtype}; convert one of them.")
    logits, model = _run_on_noise(net, x, around)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2 or logits.shape[1] < 2:
        found = f"{logits.dtype} of shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else named(logits)
        raise UserError(
            f"The network returns {found} for eight images; it must return logits of shape (images, classes), with at "
            "least two classes."
        )
    if logits.dtype != x.dtype:
        raise UserError(f"The network takes {x.dtype} and returns logits in {logits.dtype}; convert them back.")
    check_labels(y, logits.shape[1])
    return model


@torch.no_grad()
def _run_on_noise(net: nn.Module, x: Tensor, around: Perturbation) -> tuple[Any, str]:
    """Logits of eight fixed noise images of the shape of x, and a fingerprint of the network.

    The fingerprint is that of the weights and of the logits, because the weights do not determine `forward`. The logits
    are rounded to thousandths of the largest, so that it does not depend on the number of threads.
    """
    probe = spread_over(torch.rand(8, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype), around)
    try:
        logits = net(probe.to(next(net.parameters()).device))
    except Exception as error:  # a user's network may raise anything
        raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
    state = net.state_dict()
    if isinstance(logits, Tensor) and logits.is_floating_point():
        state = {**state, "logits": (1000 * logits / logits.abs().max()).round()}
    return logits, checkpoint.fingerprint(state)
