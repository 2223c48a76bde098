"""A verdict for every image and eps: reads images batch by batch, keeps records, continues what was begun."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from advibp import checkpoint
from advibp.data import Lazy, Split
from advibp.errors import UserError
from advibp.modes import modes_kept
from advibp.progress import Counting
from advibp.verify.attack import Attack
from advibp.verify.cascade import Cascade, check_labels
from advibp.verify.precision import full_precision
from advibp.verify.provers import SEARCHES, in_order
from advibp.verify.records import Certificate, Record, RecordFile
from advibp.verify.workers import in_workers

#: Per image, where a verifier may search for hours and nobody said how long.
SEARCH_SECONDS = 60.0


class Progress(Protocol):
    """Told of eps, the images done, those in all, and how many have each verdict."""

    def __call__(self, eps: float, done: int, total: int, counts: Counter[str] | None = None, /) -> None: ...


class Images(Protocol):
    """Images that need not be in memory: batch(rows) gives x (B, C, H, W) in [0, 1] and y (B,)."""

    def __len__(self) -> int: ...
    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True)
class _Job:
    """Some images at one eps: what is known of them, and the numbers of those that are left to decide."""

    eps: float
    kept: list[Record]
    indices: list[int]
    prints: list[str]


def certify(
    net: nn.Module,
    images: Images | tuple[Tensor, Tensor] | Dataset[Any] | Tensor,
    *given: Any,
    eps: float | Sequence[float] | None = None,
    by: Sequence[str] = ("ibp",),
    attack: Attack | None = None,
    budget: float | None = None,
    sample: int | None = None,
    workers: int = 1,
    out: str | Path | None = None,
    batch_size: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Certificate:
    """certify(net, images, eps) or certify(net, x, y, eps): a verdict for every image and eps.

    `images` are a `Split`, a pair of tensors, or a torch Dataset, which is read batch by batch. `by` names provers
    (ibp, crown-ibp, crown, deepz, alpha-crown) and searches (refinezono, bab, milp), which are asked cheapest first;
    `complete` names those that leave nothing open but for time. `budget` are seconds per image, after which no
    further verifier is asked (the attack is always made): none for provers, 60 with a search. `sample` takes so many
    images by chance; `workers` are processes. With `out` the records are kept there, and a second call continues them:
    for the same function and the same image, of which a record carries fingerprints.
    """
    images, radii = _understood(images, list(given), eps)
    provers = in_order(by)
    searching = any(name in SEARCHES for name in provers)
    seconds = _seconds(SEARCH_SECONDS if budget is None and searching else budget)
    if not (isinstance(batch_size, int) and batch_size > 0 and isinstance(workers, int) and workers > 0):
        raise UserError(f"batch_size is {batch_size} and workers is {workers}; both must be whole numbers above 0.")
    if attack is not None and not isinstance(attack, Attack):
        raise UserError(f"attack is {attack!r}, but must be an Attack, such as advibp.Attack(kind='apgd').")
    folder = Path(out) if out is not None else None
    chosen = _chosen(len(images), sample, seed)
    with torch.inference_mode(False), full_precision(), modes_kept(net), ExitStack() as held:
        counting = held.enter_context(Counting("certifying"))
        net.eval()
        cascade = Cascade(net, provers, attack or Attack(), folder, seed, check(net, images), seconds, weights_of(net))
        if searching:
            cascade.check_exact(images.batch(torch.arange(1))[0])
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
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

        jobs = _jobs(cascade, images, chosen, radii, size, file)
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
        if file:
            file.compact()
    place = {radius: k for k, radius in enumerate(radii)}
    return Certificate(sorted(found, key=lambda r: (place[r.eps], r.index)))


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


def weights_of(net: nn.Module) -> str:
    """Fingerprint of the weights alone: that of the tensors in a run's model.safetensors."""
    return checkpoint.fingerprint(net.state_dict())


def fingerprints(x: Tensor, y: Tensor) -> list[str]:
    """Of each image and its label."""
    return [checkpoint.fingerprint({"x": image, "y": label}) for image, label in zip(x, y, strict=True)]


def _understood(images: Any, given: list[Any], eps: Any) -> tuple[Images, list[float]]:
    """Images and radii, from (images, eps) or (x, y, eps)."""
    if isinstance(images, Tensor):
        if not given or not isinstance(given[0], Tensor):
            raise UserError("These are images without labels; call certify(net, x, y, eps) or certify(net, data, eps).")
        images = (images, given.pop(0))
    if given:
        eps = given.pop(0) if eps is None else eps
    if given or eps is None:
        raise UserError("certify takes a network, images with labels, and eps; the rest by name, such as by=['ibp'].")
    several = isinstance(eps, Iterable) and not (isinstance(eps, Tensor) and eps.dim() == 0)
    radii = dict.fromkeys(check_eps(e) for e in (eps if several else [eps]))
    return _readable(images), list(radii)


def _readable(images: Images | tuple[Tensor, Tensor] | Dataset[Any]) -> Images:
    if isinstance(images, tuple):
        x, y = images
        if len(x) == 0 or y.shape != x.shape[:1]:
            raise UserError(
                f"There are {len(x)} images and labels of shape {tuple(y.shape)}; expected one label an image."
            )
        return Split(x, y)
    return Lazy(images) if isinstance(images, Dataset) else images


def _chosen(count: int, sample: int | None, seed: int) -> list[int]:
    """All images, or so many by chance, in order."""
    if sample is None or sample >= count:
        return list(range(count))
    if sample < 1:
        raise UserError(f"sample is {sample}, but must be a number of images, at least 1.")
    return sorted(torch.randperm(count, generator=torch.Generator().manual_seed(seed % 2**63))[:sample].tolist())


def _seconds(budget: float | None) -> float:
    if budget is not None and not budget > 0:
        raise UserError(f"budget is {budget}, but must be seconds per image, above 0.")
    return math.inf if budget is None else float(budget)


def check_eps(eps: float) -> float:
    radius = float(eps)
    if not 0 < radius <= 1:
        raise UserError(f"eps is {radius}, but must be a number in (0, 1]: a radius in pixels, such as 0.3 or 8/255.")
    return radius


def check(net: nn.Module, images: Images) -> str:
    """Refuse what can't be certified; otherwise the fingerprint of the network."""
    if len(images) == 0:
        raise UserError("There are no images; give at least one.")
    # All that is in memory; what is read later is checked when it is read.
    x, y = (images.x, images.y) if isinstance(images, Split) else images.batch(torch.arange(1))
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise UserError("The images leave [0, 1] or hold NaN; scale them to [0, 1] and let the network normalise.")
    first = next(net.parameters(), None)
    if first is None:
        raise UserError("The network has no parameters; there is nothing to certify.")
    if x.dtype != first.dtype:
        raise UserError(f"The images are {x.dtype}, the network is {first.dtype}; convert one of them.")
    logits, model = _behaviour(net, x)
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < 2:
        raise UserError("The network does not return logits of shape (images, classes), with at least two classes.")
    check_labels(y, logits.shape[1])
    return model


@torch.no_grad()
def _behaviour(net: nn.Module, x: Tensor) -> tuple[Any, str]:
    """Logits of a fixed image, and a fingerprint of the function: weights alone do not tell what `forward` does.

    The logits enter coarsely, in thousandths of the largest: another number of threads must not make another network.
    """
    probe = torch.rand(1, *x.shape[1:], generator=torch.Generator().manual_seed(0), dtype=x.dtype)
    try:
        logits = net(probe.to(next(net.parameters()).device))
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
    state = net.state_dict()
    if isinstance(logits, Tensor):
        state = {**state, "logits": (1000 * logits / logits.abs().max()).round()}
    return logits, checkpoint.fingerprint(state)
