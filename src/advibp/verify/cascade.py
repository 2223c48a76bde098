"""Clean pass, proofs, attack, more proofs: cheapest first, and each image leaves at its first decision.

An image that is proved can't be broken, so it is not attacked: the PGD error is the same, for a fraction of the work.
Nor is one that is broken proved.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from advibp import checkpoint
from advibp.bounds import Box
from advibp.errors import UserError
from advibp.verify.attack import Attack
from advibp.verify.provers import Proof
from advibp.verify.records import Record, Verdict

#: Provers that cost less than an attack come before it.
_BEFORE_ATTACK = ("ibp", "crown-ibp")


@dataclass(frozen=True)
class Cascade:
    """The stages for one network, and where counterexamples are kept."""

    net: nn.Module
    by: Sequence[str]  # cheapest first
    attack: Attack
    folder: Path | None
    seed: int
    model: str
    budget: float = math.inf  # seconds per image

    def stands(self, record: Record, image: str) -> bool:
        """Whether an earlier record still answers the question: a decision does, whichever attack was asked for."""
        if (record.model, record.image) != (self.model, image):
            return False
        if record.verdict in ("robust", "falsified", "misclassified"):
            return True
        if record.verdict == "timeout" and record.seconds < self.budget:
            return False  # there is more time now
        more = set(record.provers.split()) >= set(self.by)  # an answer of more provers is no worse
        return more and record.attack == self._attack

    @property
    def _attack(self) -> str:
        return f"{self.attack} seed={self.seed}"

    @property
    def stages(self) -> list[str]:
        cheap = [name for name in self.by if name in _BEFORE_ATTACK]
        return [*cheap, "attack", *(name for name in self.by if name not in _BEFORE_ATTACK)]

    def decide(self, x: Tensor, y: Tensor, indices: list[int], prints: list[str], eps: float) -> list[Record]:
        """Records for a batch, stage by stage. `left` are the rows that nobody has decided yet."""
        device = next(self.net.parameters()).device
        x, y = x.to(device), y.to(device)
        batch = _Batch(len(x))
        left = torch.arange(len(x), device=device)

        with batch.timed(left), torch.no_grad():
            logits = self.net(x)
            finite, right = logits.isfinite().all(1), logits.argmax(1) == y
            check_labels(y, logits.shape[1])
            batch.decide(left[~finite], "error", "clean")
            batch.decide(left[finite & ~right], "misclassified", "clean")
        left = left[finite & right]

        proof: Proof | None = None
        for stage in self.stages:
            if len(left) == 0:
                break
            with batch.timed(left):
                if stage == "attack":
                    chances = [chance(self.seed, indices[i], eps) for i in left.tolist()]
                    attacked = self.attack(self.net, x[left], y[left], eps, generators=chances)
                    over = attacked.broken
                    batch.decide(left[over], "falsified", self.attack.kind)
                    if self.folder and bool(over.any()):
                        broken = left[over].tolist()
                        batch.counterexamples |= _keep(self.folder, attacked.x_adv[over], broken, indices, eps)
                else:
                    with torch.no_grad():
                        proof = proof or Proof(self.net, Box.ball(x[left], eps), y[left])
                        margins = proof.ask(stage)
                    over = margins > 0  # a NaN margin proves nothing
                    batch.margin(left, margins)
                    batch.decide(left[over], "robust", stage)
            stay = ~over
            if stage not in (*_BEFORE_ATTACK, self.stages[-1]):  # an image is attacked whatever its budget
                late = stay & (batch.seconds[left.cpu()] > self.budget).to(device)
                batch.decide(left[late], "timeout", None)
                stay = stay & ~late
            if proof is not None and not bool(stay.all()):
                with torch.no_grad():
                    proof = proof.take(torch.nonzero(stay).flatten())
            left = left[stay]
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
        self.seconds = torch.zeros(size, dtype=torch.float64)
        self.margins: dict[int, float] = {}
        self.counterexamples: dict[int, str] = {}

    def decide(self, rows: Tensor, verdict: Verdict, decider: str | None) -> None:
        for i in rows.tolist():
            self.verdicts[i], self.deciders[i] = verdict, decider

    def margin(self, rows: Tensor, margins: Tensor) -> None:
        known = zip(rows.tolist(), margins.tolist(), strict=True)
        self.margins |= {i: margin for i, margin in known if math.isfinite(margin)}

    @contextmanager
    def timed(self, rows: Tensor) -> Iterator[None]:
        """Share the time of a stage among the rows that went through it."""
        began = time.perf_counter()
        yield
        self.seconds[rows.cpu()] += (time.perf_counter() - began) / len(rows)


def _keep(folder: Path, x_adv: Tensor, rows: list[int], todo: list[int], eps: float) -> dict[int, str]:
    """Counterexamples go to the disk before the records that name them."""
    (folder / "counterexamples").mkdir(parents=True, exist_ok=True)
    names = (f"counterexamples/eps-{eps!r}-{todo[0]:06d}-{k}.safetensors" for k in itertools.count())
    name = next(n for n in names if not (folder / n).exists())  # earlier records keep the files they name
    checkpoint.save(folder / name, {"x_adv": x_adv, "index": torch.tensor([todo[i] for i in rows])}, {"eps": eps})
    return {row: f"{name}#{k}" for k, row in enumerate(rows)}


def check_labels(y: Tensor, classes: int) -> None:
    if y.is_floating_point() or bool(((y < 0) | (y >= classes)).any()):
        raise UserError(f"The labels must be whole numbers from 0 to {classes - 1}, one class a logit.")
