"""Runs the clean pass, the verifiers and the attack on a batch of images, cheapest first.

An image leaves the cascade at its first verdict. A proved image is not attacked, because no attack can succeed, so the
attack error is the same for less work. A broken image is not passed to further verifiers.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from advibp.bounds import Box, Perturbation
from advibp.bounds.linear.crown import LinearBounds
from advibp.bounds.linear.kinks import Kinks
from advibp.bounds.perturbation import PIXELS
from advibp.bounds.rounded import Rounded
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.storage import checkpoint
from advibp.verify.attack_options import Attack, start_generator
from advibp.verify.exact.portfolio import share_of_search
from advibp.verify.exact.question import PROVED, Question
from advibp.verify.precision import Arithmetic
from advibp.verify.records import Record, Verdict
from advibp.verify.verifiers import VERIFIERS, Proof, searches


@dataclass(frozen=True)
class Cascade:
    """The checks for one network and its options."""

    net: nn.Module
    by: Sequence[str]  # cheapest first
    attack: Attack
    folder: Path | None  # for counterexamples
    seed: int
    model: str  # fingerprint of the network
    budget: float = math.inf  # seconds per image
    arithmetic: Arithmetic = "float32"  # that proofs cover
    weights: str = ""  # fingerprint of the weights, for the records
    perturbation: Perturbation = PIXELS
    set: str = ""  # fingerprint of the perturbation

    def is_valid(self, record: Record, image: str) -> bool:
        """Whether an earlier record is kept. A decided image stays decided, also if the attack is another one now.

        Args:
            record: The earlier record.
            image: Fingerprint of the image.
        """
        if (record.model, record.image, record.perturbation) != (self.model, image, self.set):
            return False
        decided = record.verdict in ("robust", "falsified", "misclassified")
        if record.arithmetic != self.arithmetic and record.verdict != "misclassified":
            # A decision that covers rounding also holds in real arithmetic. Other records are computed again.
            return decided and self.arithmetic == "real"
        if decided:
            return True
        if record.verdict == "timeout" and record.seconds < self.budget:
            return False  # the budget is larger now
        all_ran = set(record.provers.split()) >= set(self.by)
        return all_ran and record.attack == self._attack_and_seed

    @property
    def _attack_and_seed(self) -> str:
        return f"{self.attack} seed={self.seed}"

    @property
    def checks(self) -> list[str]:
        """Names of the checks after the clean pass, in order."""
        before = [name for name in self.by if VERIFIERS[name].before_attack]
        return [*before, "attack", *(name for name in self.by if name not in before)]

    def decide(self, x: Tensor, y: Tensor, indices: list[int], prints: list[str], eps: float) -> list[Record]:
        """Decide a batch of images, check by check.

        Args:
            x: Images (B, ...).
            y: Labels (B,).
            indices: Numbers of the images in the data set.
            prints: Fingerprints of the images.
            eps: Radius.

        Returns:
            A record for each image.
        """
        device = next(self.net.parameters()).device
        batch = _Batch(x.to(device), y.to(device), indices, eps)
        predictions = self._classify(batch)
        for check in self.checks:
            if len(batch.left) == 0:
                break
            if check == "attack":
                self._attack_batch(batch)
            else:
                self._prove(batch, check)
            if check in searches() and len(batch.left):
                self._search(batch, check)
            attacked = check == "attack" or not VERIFIERS[check].before_attack
            if attacked and check != self.checks[-1]:  # the attack runs whatever the budget is
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
                attack=self._attack_and_seed,
                model=self.model,
                image=prints[i],
                counterexample=batch.counterexamples.get(i),
                arithmetic=self.arithmetic,
                real_margin=batch.real_margins.get(i),
                weights=self.weights,
                perturbation=self.set,
            )
            for i, index in enumerate(indices)
        ]

    @torch.no_grad()
    def _classify(self, batch: _Batch) -> list[int]:
        """The clean pass: the predicted classes. Misclassified images are decided."""
        with batch.timed():
            logits = run_on_copy(self.net, batch.x)
            finite, right = logits.isfinite().all(1), logits.argmax(1) == batch.y
        check_labels(batch.y, logits.shape[1])
        batch.decide(~finite, "error", "clean")
        batch.decide(~right[batch.left], "misclassified", "clean")
        return logits.argmax(1).tolist()

    def _attack_batch(self, batch: _Batch) -> None:
        """Attack the undecided images."""
        left = batch.left
        with batch.timed():
            generators = [start_generator(self.seed, batch.indices[i], batch.eps) for i in left.tolist()]
            x, y = batch.x[left], batch.y[left]
            attacked = self.attack(
                self.net,
                x,
                y,
                batch.eps,
                generators=generators,
                required_margin=self._rounding_of_margins(x, y),
                perturbation=self.perturbation,
            )
            broken = attacked.broken & self._always_wrong(attacked.x_adv, y)
        if bool(broken.any()):
            self._save(batch, left[broken], attacked.x_adv[broken])
        batch.decide(broken, "falsified", self.attack.kind)

    @torch.no_grad()
    def _rounding_of_margins(self, x: Tensor, y: Tensor) -> Tensor | float:
        """Estimate how much rounding errors change the margins of each image (B,), from the margins at x itself."""
        if self.arithmetic == "real" or not len(x):
            return 0.0
        outputs = self._at(x)
        spread = outputs.upper_margins(y) - outputs.lower_margins(y)
        return 0.55 * spread.nan_to_num(0.0, 0.0, 0.0).amax(1)

    @torch.no_grad()
    def _always_wrong(self, x: Tensor, y: Tensor) -> Tensor:
        """Which points (B, ...) every evaluation of the network misclassifies, whatever its rounding errors."""
        if self.arithmetic == "real" or not len(x):
            return torch.ones(len(x), dtype=torch.bool, device=x.device)
        return (self._at(x).upper_margins(y) < 0).any(1)

    def _at(self, x: Tensor) -> Rounded:
        """Bounds of the logits at points x (B, ...) over all rounding errors."""
        logits: Rounded = self.net(Rounded.ball(x, 0.0, None))
        return logits

    def _inputs(self, x: Tensor, eps: float) -> Box | Rounded:
        around = self.perturbation
        return around.box(x, eps) if self.arithmetic == "real" else around.rounded(x, eps)

    @torch.no_grad()
    def _note_real_proofs(self, batch: _Batch) -> None:
        """Note the margins of undecided images that would be proved in real arithmetic."""
        if self.arithmetic == "real" or batch.proof is None or len(batch.left) == 0:
            return
        rows = batch.left
        proof = Proof(self.net, self.perturbation.box(batch.x[rows], batch.eps), batch.y[rows])
        # Linear bounds are computed again only if rounding may have cost them the proof.
        near = (proof.tighten("ibp") > 0) | (batch.proof.tighten("ibp") + 2 * batch.proof.lost > 0)
        if bool(near.any()):
            rows, proof = rows[near], proof.take(torch.nonzero(near).flatten())
            for check in (name for name in self.by if VERIFIERS[name].cost == "batch"):
                proof.tighten(check)
            margins = zip(rows.tolist(), proof.tighten("ibp").tolist(), strict=True)
            batch.real_margins |= {i: margin for i, margin in margins if margin > 0}

    @torch.no_grad()
    def _prove(self, batch: _Batch, check: str) -> None:
        """Bound the margins of the undecided images by a verifier; for a search, by IBP."""
        with batch.timed():
            if batch.proof is None:
                batch.proof = Proof(self.net, self._inputs(batch.x[batch.left], batch.eps), batch.y[batch.left])
            verifier = "ibp" if check in searches() else check
            margins = batch.proof.tighten(verifier)
        batch.set_margins(batch.left, margins)
        # In real arithmetic, margins that a search starts from must reach its threshold. A NaN margin is no proof.
        threshold = PROVED if check in searches() and self.arithmetic == "real" else 0.0
        batch.decide(margins > threshold, "robust", verifier)

    @torch.no_grad()
    def without_impossible_searches(self, x: Tensor) -> Cascade:
        """Leave out the searches that can't take the network: those besides bab if it has sigmoids or tanhs.

        Args:
            x: Any image (1, ...).

        Raises:
            UserError: If no search can take the network.
        """
        point = x.to(next(self.net.parameters()).device)
        bounds = LinearBounds(self.net, Box(center=point.double(), radius=0.0), wide=point.dtype)
        if not Kinks(bounds, curves="bab" in self.by).has_curves:
            return self
        return replace(self, by=[check for check in self.by if check == "bab" or check not in searches()])

    def _search(self, batch: _Batch, check: str) -> None:
        """Search the undecided images one by one, each against the classes that are not excluded yet."""
        assert batch.proof is not None
        last, real = check == self.checks[-1], self.arithmetic == "real"
        threshold = PROVED if real else 0.0
        answers = []
        for row, known in zip(batch.left.tolist(), batch.proof.margins.tolist(), strict=True):
            label, one = int(batch.y[row]), batch.left.new_tensor([row])
            margins = known[:label] + known[label + 1 :]
            with batch.timed(one):
                left = max(0.0, self.budget - float(batch.seconds[row]))
                question = Question.robustness(
                    self.net, batch.x[row : row + 1], label, batch.eps, len(known), real, self.perturbation
                ).about([k for k, margin in enumerate(margins) if not margin > threshold])
                share = 1.0 if last else 0.5  # the rest is for later checks
                if check == "bab" and not last:
                    share = share_of_search(question)
                answer = searches()[check](question, seconds=share * left)
            batch.set_margins(one, torch.tensor([min([answer.margin, *(m for m in margins if m > threshold)])]))
            if answer.counterexample is not None:
                self._save(batch, one, answer.counterexample)
            answers.append(answer)
        flags = [(a.counterexample is not None, a.robust, last and not a.in_time) for a in answers]
        falsified, robust, late = torch.tensor(flags, device=batch.left.device).T
        verdict: Verdict
        for decided, verdict, decider in (
            (falsified, "falsified", check), (robust, "robust", check), (late & ~falsified & ~robust, "timeout", None),
        ):  # fmt: skip
            batch.set_verdict(batch.left[decided], verdict, decider)
        batch.remove(falsified | robust | late)

    def _save(self, batch: _Batch, rows: Tensor, x_adv: Tensor) -> None:
        """Save counterexamples (D, ...) of some rows of the batch (D,)."""
        if self.folder:
            batch.counterexamples |= _save_counterexamples(self.folder, x_adv, rows.tolist(), batch.indices, batch.eps)


class _Batch:
    """A batch of images and the results so far. `left` are the rows of the undecided images."""

    def __init__(self, x: Tensor, y: Tensor, indices: list[int], eps: float) -> None:
        self.x, self.y, self.indices, self.eps = x, y, indices, eps
        self.left = torch.arange(len(x), device=x.device)
        self.proof: Proof | None = None  # about the undecided images
        self.verdicts: list[Verdict] = ["unknown"] * len(x)
        self.deciders: list[str | None] = [None] * len(x)
        self.seconds = torch.zeros(len(x), dtype=torch.float64)
        self.margins: dict[int, float] = {}
        self.counterexamples: dict[int, str] = {}
        self.real_margins: dict[int, float] = {}

    def decide(self, mask: Tensor, verdict: Verdict, decider: str | None) -> None:
        """Give a verdict to the undecided images in a mask over `left`, and remove them from `left`."""
        self.set_verdict(self.left[mask], verdict, decider)
        self.remove(mask)

    def set_verdict(self, rows: Tensor, verdict: Verdict, decider: str | None) -> None:
        for i in rows.tolist():
            self.verdicts[i], self.deciders[i] = verdict, decider

    @torch.no_grad()
    def remove(self, mask: Tensor) -> None:
        """Remove the images in a mask over `left` from `left`."""
        if bool(mask.any()):
            self.left = self.left[~mask]
            if self.proof is not None:
                self.proof = self.proof.take(torch.nonzero(~mask).flatten())

    def set_margins(self, rows: Tensor, margins: Tensor) -> None:
        """Store the finite lower margins of some rows."""
        pairs = zip(rows.tolist(), margins.tolist(), strict=True)
        self.margins |= {i: margin for i, margin in pairs if math.isfinite(margin)}

    @contextmanager
    def timed(self, rows: Tensor | None = None) -> Iterator[None]:
        """Add the time of a block to some rows in equal shares. Default: the undecided images."""
        rows = self.left if rows is None else rows
        began = time.perf_counter()
        yield
        self.seconds[rows.cpu()] += (time.perf_counter() - began) / len(rows)


def _save_counterexamples(
    folder: Path, x_adv: Tensor, rows: list[int], indices: list[int], eps: float
) -> dict[int, str]:
    """Write counterexamples to a new file, before the records that refer to them.

    Returns:
        "file#row" for each row of the batch.
    """
    (folder / "counterexamples").mkdir(parents=True, exist_ok=True)
    names = (f"counterexamples/eps-{eps!r}-{indices[0]:06d}-{k}.safetensors" for k in itertools.count())
    name = next(n for n in names if not (folder / n).exists())  # earlier records refer to the others
    checkpoint.save(folder / name, {"x_adv": x_adv, "index": torch.tensor([indices[i] for i in rows])}, {"eps": eps})
    return {row: f"{name}#{k}" for k, row in enumerate(rows)}


def check_labels(y: Tensor, classes: int) -> None:
    """Raise a UserError unless the labels are classes of the network."""
    if y.is_floating_point() or bool(((y < 0) | (y >= classes)).any()):
        raise UserError(f"The labels must be whole numbers from 0 to {classes - 1}, one class per logit.")
