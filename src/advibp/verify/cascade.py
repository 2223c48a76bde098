"""Clean pass, proof, attack: cheapest first, and each image leaves at its first decision.

An image that is proved can't be broken, so it is not attacked: the PGD error is the same, for a fraction of the work.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from advibp import attacks, checkpoint
from advibp.data import Lazy, Split
from advibp.errors import UserError
from advibp.modes import modes_kept
from advibp.progress import Counting
from advibp.verify import ibp
from advibp.verify.precision import full_precision
from advibp.verify.records import Certificate, Record, RecordFile, Verdict

PROVERS = ("ibp",)
Progress = Callable[[float, int, int], None]  # eps, images done, images in all


class Images(Protocol):
    """Images that need not be in memory: batch(rows) gives x (B, C, H, W) in [0, 1] and y (B,)."""

    def __len__(self) -> int: ...
    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]: ...


@dataclass(frozen=True, kw_only=True)
class Attack:
    """PGD and its options; the defaults are the paper's PGD-200 as we read it."""

    steps: int = 200
    step: float = 0.1
    restarts: int = 1
    loss: attacks.LossName = "ce"

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1 or not 0 < self.step < math.inf or self.loss not in ("ce", "margin"):
            raise UserError(f"'{self}' is no attack; steps, step and restarts must be above 0, loss ce or margin.")

    def __str__(self) -> str:
        return f"pgd steps={self.steps} step={self.step:g}eps restarts={self.restarts} loss={self.loss} random start"

    def __call__(
        self,
        net: nn.Module,
        x: Tensor,
        y: Tensor,
        eps: float,
        generators: Sequence[torch.Generator] | None = None,
    ) -> attacks.Attacked:
        return attacks.pgd(
            net,
            x,
            y,
            eps,
            steps=self.steps,
            step=self.step,
            restarts=self.restarts,
            loss=self.loss,
            generators=generators,
        )


def certify(
    net: nn.Module,
    images: Images | tuple[Tensor, Tensor] | Dataset[Any],
    eps: float | Sequence[float],
    *,
    by: Sequence[str] = PROVERS,
    attack: Attack | None = None,
    out: str | Path | None = None,
    batch_size: int = 500,
    seed: int = 0,
    progress: Progress | None = None,
) -> Certificate:
    """A verdict for every image and eps. With `out` the records are kept there, and a second call continues them.

    `images` are a `Split`, a pair of tensors, or a torch Dataset, which is read batch by batch. A record is only
    continued for the same function and the same image; it carries fingerprints of both.
    """
    images = _readable(images)
    radii = list(dict.fromkeys(check_eps(e) for e in (eps if isinstance(eps, Iterable) else [eps])))
    folder = Path(out) if out is not None else None
    found: list[Record] = []
    prints: dict[int, str] = {}
    with full_precision(), modes_kept(net), ExitStack() as held, Counting("certifying") as counting:
        net.eval()
        cascade = Cascade(net, by, attack or Attack(), folder, seed, _check(net, images, by))
        if folder:
            folder.mkdir(parents=True, exist_ok=True)
            held.enter_context(checkpoint.held(folder, "certifying", (folder, folder / "counterexamples")))
        file = RecordFile.open(folder / "records.jsonl") if folder else None
        for radius, start in itertools.product(radii, range(0, len(images), batch_size)):
            rows = range(start, min(start + batch_size, len(images)))
            x, y = images.batch(torch.arange(rows.start, rows.stop))
            if start not in prints:
                one_by_one = zip(rows, x, y, strict=True)
                prints |= {i: checkpoint.fingerprint({"x": image, "y": label}) for i, image, label in one_by_one}
            known = [(file.records.get((i, radius)), prints[i]) for i in rows] if file else []
            kept = [record for record, image in known if record and cascade.stands(record, image)]
            todo = sorted(set(rows) - {r.index for r in kept})
            picked = [i - start for i in todo]
            new = cascade.decide(x[picked], y[picked], todo, [prints[i] for i in todo], radius) if todo else []
            if file:
                file.add(new)
            found += sorted([*kept, *new], key=lambda r: r.index)
            (progress or counting.progress)(radius, rows.stop, len(images))
    return Certificate(found)


def _readable(images: Images | tuple[Tensor, Tensor] | Dataset[Any]) -> Images:
    if isinstance(images, tuple):
        x, y = images
        if len(x) == 0 or y.shape != x.shape[:1]:
            raise UserError(
                f"There are {len(x)} images and labels of shape {tuple(y.shape)}; expected one label an image."
            )
        return Split(x, y)
    return Lazy(images) if isinstance(images, Dataset) else images


@dataclass(frozen=True)
class Cascade:
    """The stages for one network, and where counterexamples are kept."""

    net: nn.Module
    by: Sequence[str]
    attack: Attack
    folder: Path | None
    seed: int
    model: str

    def stands(self, record: Record, image: str) -> bool:
        """Whether an earlier record still answers the question: a decision does, whichever attack was asked for."""
        if (record.model, record.image) != (self.model, image):
            return False
        asked = (record.provers, record.attack) == (" ".join(self.by), self._attack)
        return asked or record.verdict in ("robust", "falsified", "misclassified")

    @property
    def _attack(self) -> str:
        return f"{self.attack} seed={self.seed}"

    def decide(self, x: Tensor, y: Tensor, indices: list[int], prints: list[str], eps: float) -> list[Record]:
        """Records for a batch, stage by stage. `left` are the rows that nobody has decided yet."""
        device = next(self.net.parameters()).device
        x, y = x.to(device), y.to(device)
        batch = _Batch(len(x))
        left = torch.arange(len(x), device=device)

        with batch.timed(left), torch.no_grad():
            logits = self.net(x)
            finite, right = logits.isfinite().all(1), logits.argmax(1) == y
            _check_labels(y, logits.shape[1])
            batch.decide(left[~finite], "error", "clean")
            batch.decide(left[finite & ~right], "misclassified", "clean")
        left = left[finite & right]

        if "ibp" in self.by and len(left):
            with batch.timed(left):
                margins = ibp.lower_margin(self.net, x[left], y[left], eps)
                known = zip(left.tolist(), margins.tolist(), strict=True)
                batch.margins = {i: margin for i, margin in known if math.isfinite(margin)}
                batch.decide(left[margins > 0], "robust", "ibp")
            left = left[~(margins > 0)]  # a NaN margin proves nothing

        if len(left):
            with batch.timed(left):
                chances = [chance(self.seed, indices[i], eps) for i in left.tolist()]
                attacked = self.attack(self.net, x[left], y[left], eps, generators=chances)
                broken = left[attacked.broken]
                batch.decide(broken, "falsified", "pgd")
                if self.folder and len(broken):
                    x_adv = attacked.x_adv[attacked.broken]
                    batch.counterexamples = _keep(self.folder, x_adv, broken.tolist(), indices, eps)
        labels, predictions = y.tolist(), logits.argmax(1).tolist()
        return [
            Record(
                index=index,
                eps=eps,
                label=labels[i],
                prediction=predictions[i],
                verdict=batch.verdicts[i],
                by=batch.deciders[i],
                lower_margin=batch.margins.get(i),
                seconds=round(float(batch.seconds[i]), 6),
                provers=" ".join(self.by),
                attack=self._attack,
                model=self.model,
                image=prints[i],
                counterexample=batch.counterexamples.get(i),
            )
            for i, index in enumerate(indices)
        ]


def chance(seed: int, index: int, eps: float) -> torch.Generator:
    """An image's own random starts: they depend on nothing that was decided or left out before it."""
    return torch.Generator().manual_seed(hash((seed, index, eps)) & (2**63 - 1))


class _Batch:
    """What is known of each row of a batch so far."""

    def __init__(self, size: int) -> None:
        self.verdicts: list[Verdict] = ["unknown"] * size
        self.deciders: list[str | None] = [None] * size
        self.seconds = torch.zeros(size)
        self.margins: dict[int, float] = {}
        self.counterexamples: dict[int, str] = {}

    def decide(self, rows: Tensor, verdict: Verdict, decider: str) -> None:
        for i in rows.tolist():
            self.verdicts[i], self.deciders[i] = verdict, decider

    @contextmanager
    def timed(self, rows: Tensor) -> Iterator[None]:
        """Share the time of a stage among the rows that went through it."""
        began = time.perf_counter()
        yield
        self.seconds[rows.cpu()] += (time.perf_counter() - began) / len(rows)


def _keep(folder: Path, x_adv: Tensor, rows: list[int], todo: list[int], eps: float) -> dict[int, str]:
    """Counterexamples go to the disk before the records that name them."""
    (folder / "counterexamples").mkdir(parents=True, exist_ok=True)
    names = (f"counterexamples/eps-{eps:g}-{todo[0]:06d}-{k}.safetensors" for k in itertools.count())
    name = next(n for n in names if not (folder / n).exists())  # earlier records keep the files they name
    checkpoint.save(folder / name, {"x_adv": x_adv, "index": torch.tensor([todo[i] for i in rows])}, {"eps": eps})
    return {row: f"{name}#{k}" for k, row in enumerate(rows)}


def check_eps(eps: float) -> float:
    radius = float(eps)
    if not 0 < radius <= 1:
        raise UserError(f"eps is {radius}, but must be a number in (0, 1]: a radius in pixels, such as 0.3 or 8/255.")
    return radius


def _check(net: nn.Module, images: Images, by: Sequence[str]) -> str:
    """Refuse what can't be certified; otherwise the fingerprint of the network."""
    for name in by:
        if name not in PROVERS:
            raise UserError(f"There is no verifier '{name}'; choose from {', '.join(PROVERS)}.")
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
    _check_labels(y, logits.shape[1])
    return model


def _check_labels(y: Tensor, classes: int) -> None:
    if y.is_floating_point() or bool(((y < 0) | (y >= classes)).any()):
        raise UserError(f"The labels must be whole numbers from 0 to {classes - 1}, one class a logit.")


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
