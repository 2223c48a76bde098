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

from advibp.bounds import Box
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.rounded import Rounded
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.storage import checkpoint
from advibp.verify.attack_options import Attack, start_generator
from advibp.verify.exact.question import PROVED, Question
from advibp.verify.precision import Arithmetic
from advibp.verify.records import Record, Verdict
from advibp.verify.verifiers import VERIFIERS, Proof, searches


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
    arithmetic: Arithmetic = "float32"  # of the network that is proved
    weights: str = ""  # fingerprint, for the records

    def stands(self, record: Record, image: str) -> bool:
        """Whether an earlier record still answers the question: a decision does, whichever attack was asked for."""
        if (record.model, record.image) != (self.model, image):
            return False
        decided = record.verdict in ("robust", "falsified", "misclassified")
        if record.arithmetic != self.arithmetic and record.verdict != "misclassified":
            # A decision that covers rounding is one without it, too. All else is asked again.
            return decided and self.arithmetic == "real"
        if decided:
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
        before = [name for name in self.by if VERIFIERS[name].before_attack]
        return [*before, "attack", *(name for name in self.by if name not in before)]

    def decide(self, x: Tensor, y: Tensor, indices: list[int], prints: list[str], eps: float) -> list[Record]:
        """Records for a batch, stage by stage; each gets the images that nobody has decided yet."""
        device = next(self.net.parameters()).device
        batch = _Batch(x.to(device), y.to(device), indices, eps)
        predictions = self._look(batch)
        for stage in self.stages:
            if len(batch.left) == 0:
                break
            if stage == "attack":
                self._break(batch)
            else:
                self._prove(batch, stage)
            if stage in searches() and len(batch.left):
                self._search(batch, stage)
            attacked = stage == "attack" or not VERIFIERS[stage].before_attack
            if attacked and stage != self.stages[-1]:  # an image is attacked whatever its budget
                late = batch.seconds[batch.left.cpu()] > self.budget
                batch.decide(late.to(device), "timeout", None)
        self._note_real_proofs(batch)
        labels = batch.y.tolist()
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
                arithmetic=self.arithmetic,
                real_margin=batch.real_margins.get(i),
                weights=self.weights,
            )
            for i, index in enumerate(indices)
        ]

    @torch.no_grad()
    def _look(self, batch: _Batch) -> list[int]:
        """The classes that the network predicts; what is wrong without any change is over."""
        with batch.timed():
            logits = run_on_copy(self.net, batch.x)
            finite, right = logits.isfinite().all(1), logits.argmax(1) == batch.y
        check_labels(batch.y, logits.shape[1])
        batch.decide(~finite, "error", "clean")
        batch.decide(~right[batch.left], "misclassified", "clean")
        return logits.argmax(1).tolist()

    def _break(self, batch: _Batch) -> None:
        left = batch.left
        with batch.timed():
            generators = [start_generator(self.seed, batch.indices[i], batch.eps) for i in left.tolist()]
            x, y = batch.x[left], batch.y[left]
            attacked = self.attack(self.net, x, y, batch.eps, generators=generators, by=self._tie(x, y))
            broken = attacked.broken & self._surely_wrong(attacked.x_adv, y)
        if bool(broken.any()):
            self._keep(batch, left[broken], attacked.x_adv[broken])
        batch.decide(broken, "falsified", self.attack.kind)

    @torch.no_grad()
    def _tie(self, x: Tensor, y: Tensor) -> Tensor | float:
        """By how much rounding alone may move the margins of each image (B,), about: at the images x themselves."""
        if self.arithmetic == "real" or not len(x):
            return 0.0
        outputs = self._at(x)
        spread = outputs.upper_margins(y) - outputs.lower_margins(y)
        return 0.55 * spread.nan_to_num(0.0, 0.0, 0.0).amax(1)

    @torch.no_grad()
    def _surely_wrong(self, x: Tensor, y: Tensor) -> Tensor:
        """Which points (B, ...) another class than y wins in every evaluation of the network."""
        if self.arithmetic == "real" or not len(x):
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        return (self._at(x).upper_margins(y) < 0).any(1)

    def _at(self, x: Tensor) -> Rounded:
        """What the network may compute at points x (B, ...)."""
        found: Rounded = self.net(Rounded.ball(x, 0.0, None))
        return found

    def _inputs(self, x: Tensor, eps: float) -> Box | Rounded:
        return Box.ball(x, eps) if self.arithmetic == "real" else Rounded.ball(x, eps)

    @torch.no_grad()
    def _note_real_proofs(self, batch: _Batch) -> None:
        """Of the images that are open: the margins of those that would be proved if the network did not round."""
        if self.arithmetic == "real" or batch.proof is None or len(batch.left) == 0:
            return
        rows = batch.left
        proof = Proof(self.net, Box.ball(batch.x[rows], batch.eps), batch.y[rows])
        # Linear bounds are asked again only where what they lost to rounding may have decided.
        near = (proof.tighten("ibp") > 0) | (batch.proof.tighten("ibp") + 2 * batch.proof.lost > 0)
        if bool(near.any()):
            rows, proof = rows[near], proof.take(torch.nonzero(near).flatten())
            for stage in (name for name in self.by if VERIFIERS[name].cost == "batch"):
                proof.tighten(stage)
            known = zip(rows.tolist(), proof.tighten("ibp").tolist(), strict=True)
            batch.real_margins |= {i: margin for i, margin in known if margin > 0}

    @torch.no_grad()
    def _prove(self, batch: _Batch, stage: str) -> None:
        with batch.timed():
            if batch.proof is None:
                batch.proof = Proof(self.net, self._inputs(batch.x[batch.left], batch.eps), batch.y[batch.left])
            prover = "ibp" if stage in searches() else stage
            margins = batch.proof.tighten(prover)
        batch.margin(batch.left, margins)
        # A NaN margin proves nothing. In real arithmetic what a search starts from meets the search's own threshold.
        enough = PROVED if stage in searches() and self.arithmetic == "real" else 0.0
        batch.decide(margins > enough, "robust", prover)

    @torch.no_grad()
    def check_exact(self, x: Tensor) -> None:
        """Refuse at once what a search could only refuse at the first image (1, ...) that gets there."""
        point = x.to(next(self.net.parameters()).device)
        Kinks(LinearBounds(self.net, Box(point.double(), 0.0), wide=point.dtype))

    def _search(self, batch: _Batch, stage: str) -> None:
        """One image after the other, each about the classes that are not excluded yet."""
        assert batch.proof is not None
        last, real = stage == self.stages[-1], self.arithmetic == "real"
        enough = PROVED if real else 0.0
        answers = []
        for row, known in zip(batch.left.tolist(), batch.proof.margins.tolist(), strict=True):
            label, one = int(batch.y[row]), batch.left.new_tensor([row])
            margins = known[:label] + known[label + 1 :]
            with batch.timed(one):
                left = max(0.0, self.budget - float(batch.seconds[row]))
                question = Question.robustness(
                    self.net, batch.x[row : row + 1], label, batch.eps, len(known), real
                ).about([k for k, margin in enumerate(margins) if not margin > enough])
                answer = searches()[stage](question, seconds=left if last else left / 2)  # others want time too
            batch.margin(one, torch.tensor([min([answer.margin, *(m for m in margins if m > enough)])]))
            if answer.counterexample is not None:
                self._keep(batch, one, answer.counterexample)
            answers.append(answer)
        found = [(a.counterexample is not None, a.robust, last and not a.in_time) for a in answers]
        falsified, robust, late = torch.tensor(found, device=batch.left.device).T
        verdict: Verdict
        for over, verdict, decider in (
            (falsified, "falsified", stage), (robust, "robust", stage), (late & ~falsified & ~robust, "timeout", None),
        ):  # fmt: skip
            batch.verdict(batch.left[over], verdict, decider)
        batch.leave(falsified | robust | late)

    def _keep(self, batch: _Batch, rows: Tensor, x_adv: Tensor) -> None:
        if self.folder:
            batch.counterexamples |= _kept(self.folder, x_adv, rows.tolist(), batch.indices, batch.eps)


class _Batch:
    """Some images, what is known of each, and which are `left` (their numbers) for the next stage."""

    def __init__(self, x: Tensor, y: Tensor, indices: list[int], eps: float) -> None:
        self.x, self.y, self.indices, self.eps = x, y, indices, eps
        self.left = torch.arange(len(x), device=x.device)
        self.proof: Proof | None = None  # of those that are left
        self.verdicts: list[Verdict] = ["unknown"] * len(x)
        self.deciders: list[str | None] = [None] * len(x)
        self.seconds = torch.zeros(len(x), dtype=torch.float64)
        self.margins: dict[int, float] = {}
        self.counterexamples: dict[int, str] = {}
        self.real_margins: dict[int, float] = {}

    def decide(self, over: Tensor, verdict: Verdict, decider: str | None) -> None:
        """A verdict for those of the images that are left for which `over` is true; they leave."""
        self.verdict(self.left[over], verdict, decider)
        self.leave(over)

    def verdict(self, rows: Tensor, verdict: Verdict, decider: str | None) -> None:
        for i in rows.tolist():
            self.verdicts[i], self.deciders[i] = verdict, decider

    @torch.no_grad()
    def leave(self, over: Tensor) -> None:
        if bool(over.any()):
            self.left = self.left[~over]
            if self.proof is not None:
                self.proof = self.proof.take(torch.nonzero(~over).flatten())

    def margin(self, rows: Tensor, margins: Tensor) -> None:
        known = zip(rows.tolist(), margins.tolist(), strict=True)
        self.margins |= {i: margin for i, margin in known if math.isfinite(margin)}

    @contextmanager
    def timed(self, rows: Tensor | None = None) -> Iterator[None]:
        """Share the time of a stage among the rows that went through it: those that are left, if none are named."""
        rows = self.left if rows is None else rows
        began = time.perf_counter()
        yield
        self.seconds[rows.cpu()] += (time.perf_counter() - began) / len(rows)


def _kept(folder: Path, x_adv: Tensor, rows: list[int], todo: list[int], eps: float) -> dict[int, str]:
    """Counterexamples go to the disk before the records that name them."""
    (folder / "counterexamples").mkdir(parents=True, exist_ok=True)
    names = (f"counterexamples/eps-{eps!r}-{todo[0]:06d}-{k}.safetensors" for k in itertools.count())
    name = next(n for n in names if not (folder / n).exists())  # earlier records keep the files they name
    checkpoint.save(folder / name, {"x_adv": x_adv, "index": torch.tensor([todo[i] for i in rows])}, {"eps": eps})
    return {row: f"{name}#{k}" for k, row in enumerate(rows)}


def check_labels(y: Tensor, classes: int) -> None:
    if y.is_floating_point() or bool(((y < 0) | (y >= classes)).any()):
        raise UserError(f"The labels must be whole numbers from 0 to {classes - 1}, one class a logit.")
