"""A verdict for every image and eps: reads images batch by batch, keeps records, continues what was begun."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from advibp.data import Split
from advibp.display.progress import Counting
from advibp.errors import UserError
from advibp.execution.modes import modes_kept
from advibp.storage import checkpoint
from advibp.verify.argument_checks import (
    check_callable,
    check_folder,
    check_net,
    check_seconds,
    check_whole,
    make_folder,
)
from advibp.verify.arguments import USAGE, Images, images_and_radii
from advibp.verify.attack_options import Attack, check_attack
from advibp.verify.cascade import Cascade, check_labels
from advibp.verify.precision import Arithmetic, check_types, full_precision
from advibp.verify.records import Certificate, Record, RecordFile
from advibp.verify.selftest import FEW, check_function
from advibp.verify.summary import summarize
from advibp.verify.verifiers import check_arithmetic, in_order, searches
from advibp.verify.workers import in_workers

#: Per image, where a verifier may search for hours and nobody said how long.
SEARCH_SECONDS = 60.0


class Progress(Protocol):
    """Told of eps, the images done, those in all, and how many have each verdict."""

    def __call__(self, eps: float, done: int, total: int, counts: Counter[str] | None = None, /) -> None: ...


@dataclass(frozen=True)
class _Job:
    """Some images at one eps: what is known of them, and the numbers of those that are left to decide."""

    eps: float
    kept: list[Record]
    indices: list[int]
    prints: list[str]


def certify(
    net: nn.Module,
    images: Images | Sequence[Tensor] | Dataset[Any] | DataLoader[Any] | Tensor | None = None,
    *given: Any,
    eps: float | str | Sequence[float | str] | None = None,
    by: Sequence[str] = ("ibp",),
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
) -> Certificate:
    """certify(net, images, eps) or certify(net, x, y, eps): a verdict for every image and eps.

    `images` are a `Split`, a pair of tensors, or a torch Dataset or DataLoader, which is read batch by batch; a
    DataLoader that shuffles or augments is read once, in its order. `eps` may be written as "8/255". `by` names provers
    (ibp, crown-ibp, crown, deepz, alpha-crown) and searches (refinezono, bab, milp), which are asked cheapest first;
    by=['complete'] stands for those that leave nothing open but for time. `arithmetic` is what a proof covers: by
    default every evaluation of the network in its own type, float32 or float64, in whatever order its sums are taken;
    `real` gives the bounds that papers report, which ignore rounding. `budget` are seconds per image, after which no
    further verifier is asked (the attack is always made): none for provers, 60 with a search. `sample` takes so many
    images by chance; `workers` are processes. With `out` the records are kept there, and a second call continues them:
    for the same function and the same image, of which a record carries fingerprints. `command` is noted in the
    summary beside them.
    """
    check_net(net, images, USAGE)
    images, radii = images_and_radii(images, list(given), eps)
    provers = in_order(by)
    searching = any(name in searches() for name in provers)
    default = SEARCH_SECONDS if searching else math.inf
    seconds = default if budget is None else check_seconds("budget", budget, "seconds per image")
    batch_size, workers = check_whole("batch_size", batch_size, 1), check_whole("workers", workers, 1)
    sample, seed = None if sample is None else check_whole("sample", sample, 1), check_whole("seed", seed)
    check_callable("progress", progress, "progress(eps, done, total, counts)")
    check_attack(attack)
    folder = check_folder("out", out)
    if command and folder is None:
        raise UserError("command is written to the summary, which needs a folder; give out, or leave command out.")
    chosen = _chosen(len(images), sample, seed)
    with torch.inference_mode(False), full_precision(), modes_kept(net), ExitStack() as held:
        counting = held.enter_context(Counting("certifying"))
        net.eval()
        kind, weights = arithmetic_of(net, arithmetic), weights_of(net)
        check_arithmetic(provers, kind)
        model = check(net, images)
        cascade = Cascade(net, provers, attack or Attack(), folder, seed, model, seconds, kind, weights)
        if searching:
            cascade.check_exact(images.batch(torch.arange(1))[0])
        if folder:
            make_folder(folder)
            held.enter_context(checkpoint.held(folder, "certifying", (folder, folder / "counterexamples")))
        file = RecordFile.open(folder / "records.jsonl") if folder else None
        if workers > 1 and next(net.parameters()).device.type != "cpu":
            raise UserError("workers need the network on a CPU; certify with workers=1.")
        # Small enough that every worker has some, and that a kill loses little.
        size = min(batch_size, math.ceil(len(chosen) * len(radii) / (4 * workers))) if workers > 1 else batch_size
        size = min(size, 25) if searching else size

        def decide(job: _Job) -> list[Record]:
            x, y = images.batch(torch.tensor(job.indices)) if job.indices else (None, None)
            return [] if x is None or y is None else cascade.decide(x, y, job.indices, job.prints, job.eps)

        jobs = _tested(net, images, _jobs(cascade, images, chosen, radii, size, file))
        workers = min(workers, len(radii) * math.ceil(len(chosen) / size))
        found: list[Record] = []
        done: dict[float, Counter[str]] = {}
        for job, new in in_workers(decide, jobs, workers):
            if file:
                file.add(new)
            found += [*job.kept, *new]
            counts = done.setdefault(job.eps, Counter())
            counts.update(r.verdict for r in (*job.kept, *new))
            (progress or counting.progress)(job.eps, counts.total(), len(chosen), counts)
        place = {radius: k for k, radius in enumerate(radii)}
        certificate = Certificate(sorted(found, key=lambda r: (place[r.eps], r.index)))
        if file and folder:
            file.compact()
            summary = summarize(
                certificate,
                attack=cascade.attack,
                by=provers,
                arithmetic=kind,
                sample=sample,
                seed=seed,
                budget=None if budget is None else seconds,
                command=command,
            )
            checkpoint.write_atomically(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    return certificate


def _jobs(
    cascade: Cascade, images: Images, chosen: list[int], radii: list[float], size: int, file: RecordFile | None
) -> Iterator[_Job]:
    prints: dict[int, str] = {}
    for radius, start in itertools.product(radii, range(0, len(chosen), size)):
        rows = chosen[start : start + size]
        if rows[0] not in prints:
            prints |= zip(rows, fingerprints(*images.batch(torch.tensor(rows))), strict=True)
        known = [(file.records.get((i, radius)), prints[i]) for i in rows] if file else []
        kept = [record for record, image in known if record and cascade.stands(record, image)]
        over = {r.index for r in kept}
        indices = [i for i in rows if i not in over]
        yield _Job(radius, kept, indices, [prints[i] for i in indices])


def _tested(net: nn.Module, images: Images, jobs: Iterator[_Job]) -> Iterator[_Job]:
    """The same jobs; before the first with something to decide, the network is tested on some of its images."""
    tested = False
    for job in jobs:
        if job.indices and not tested:
            check_function(net, images.batch(torch.tensor(job.indices[:FEW]))[0])
            tested = True
        yield job


def weights_of(net: nn.Module) -> str:
    """Fingerprint of the weights alone: that of the tensors in a run's model.safetensors."""
    return checkpoint.fingerprint(net.state_dict())


def fingerprints(x: Tensor, y: Tensor) -> list[str]:
    """Of each image and its label."""
    return [checkpoint.fingerprint({"x": image, "y": label}) for image, label in zip(x, y, strict=True)]


def _chosen(count: int, sample: int | None, seed: int) -> list[int]:
    """All images, or so many by chance, in order."""
    if sample is None or sample >= count:
        return list(range(count))
    return sorted(torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**63))[:sample].tolist())


def arithmetic_of(net: nn.Module, wanted: str | None = None) -> Arithmetic:
    """The arithmetic that a proof covers: the network's own type, or real numbers if they are asked for."""
    check_types(net)
    types = {t.dtype for t in itertools.chain(net.parameters(), net.buffers()) if t.is_floating_point()}
    own: Arithmetic = "float32" if torch.float32 in types or not types else "float64"
    if wanted is not None and wanted not in ("real", own):
        raise UserError(f"arithmetic is {wanted!r}, but must be '{own}', in which the network runs, or 'real'.")
    return "real" if wanted == "real" else own


def check(net: nn.Module, images: Images) -> str:
    """Refuse what can't be certified; otherwise the fingerprint of the network."""
    if len(images) == 0:
        raise UserError("There are no images; give at least one.")
    # All that is in memory; what is read later is checked when it is read.
    x, y = (images.x, images.y) if isinstance(images, Split) else images.batch(torch.arange(1))
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise UserError("The images leave [0, 1] or hold NaN; scale them to [0, 1] and let the network normalize.")
    first = next(net.parameters(), None)
    if first is None:
        raise UserError("The network has no parameters; there is nothing to certify.")
    if x.dtype != first.dtype:
        raise UserError(f"The images are {x.dtype}, the network is {first.dtype}; convert one of them.")
    logits, model = _behaviour(net, x)
    if not isinstance(logits, Tensor) or not logits.is_floating_point() or logits.dim() != 2 or logits.shape[1] < 2:
        raise UserError("The network does not return logits of shape (images, classes), with at least two classes.")
    if logits.dtype != x.dtype:
        raise UserError(f"The network takes {x.dtype} and returns logits in {logits.dtype}; convert them back.")
    check_labels(y, logits.shape[1])
    return model


@torch.no_grad()
def _behaviour(net: nn.Module, x: Tensor) -> tuple[Any, str]:
    """Logits of fixed images, and a fingerprint of the function: weights alone do not tell what `forward` does.

    The logits enter coarsely, in thousandths of the largest: another number of threads must not make another network.
    """
    probe = torch.rand(8, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    try:
        logits = net(probe.to(next(net.parameters()).device))
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
    state = net.state_dict()
    if isinstance(logits, Tensor) and logits.is_floating_point():
        state = {**state, "logits": (1000 * logits / logits.abs().max()).round()}
    return logits, checkpoint.fingerprint(state)
