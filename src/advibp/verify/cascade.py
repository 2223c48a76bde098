"""Clean pass, proof, attack: cheapest first, and each image leaves at its first decision.

An image that is proved can't be broken, so it is not attacked: the PGD error is the same, for a fraction of the work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from advibp import attacks, checkpoint
from advibp.errors import UserError
from advibp.verify import ibp
from advibp.verify.records import Certificate, Record, RecordFile, Verdict

PROVERS = ("ibp",)
Progress = Callable[[float, int, int], None]  # eps, images done, images in all


class Images(Protocol):
    """x (N, C, H, W) in [0, 1] and y (N,)."""

    @property
    def x(self) -> Tensor: ...
    @property
    def y(self) -> Tensor: ...


@dataclass(frozen=True, kw_only=True)
class Attack:
    """PGD and its options; the defaults are the paper's PGD-200 as we read it."""

    steps: int = 200
    step: float = 0.1
    restarts: int = 1
    loss: attacks.LossName = "ce"

    def __str__(self) -> str:
        return f"pgd steps={self.steps} step={self.step:g}eps restarts={self.restarts} loss={self.loss} random start"

    def __call__(self, net: nn.Module, x: Tensor, y: Tensor, eps: float, *, stop: bool = True) -> attacks.Attacked:
        return attacks.pgd(
            net,
            x,
            y,
            eps,
            steps=self.steps,
            step=self.step,
            restarts=self.restarts,
            loss=self.loss,
            stop_on_success=stop,
        )


def certify(
    net: nn.Module,
    images: Images | tuple[Tensor, Tensor],
    eps: float | Sequence[float],
    *,
    by: Sequence[str] = PROVERS,
    attack: Attack | None = None,
    out: str | Path | None = None,
    batch_size: int = 500,
    seed: int = 0,
    model: str = "",
    progress: Progress | None = None,
) -> Certificate:
    """A verdict for every image and eps. With `out` the records are kept there, and a second call continues them."""
    x, y = images if isinstance(images, tuple) else (images.x, images.y)
    attack = attack or Attack()
    _check(net, x, y, by)
    folder = Path(out) if out is not None else None
    file = RecordFile.open(folder / "records.jsonl") if folder else None
    known = file.records if file else {}
    found: list[Record] = []
    net.eval()
    for radius in [eps] if isinstance(eps, int | float) else eps:
        check_eps(radius)
        for start in range(0, len(x), batch_size):
            rows = range(start, min(start + batch_size, len(x)))
            kept = [known[i, radius] for i in rows if _stands(known.get((i, radius)), model, attack)]
            todo = sorted(set(rows) - {r.index for r in kept})
            new = _decide(net, x, y, todo, radius, by, attack, folder, seed, model) if todo else []
            if file:
                file.add(new)
            found += sorted([*kept, *new], key=lambda r: r.index)
            if progress:
                progress(radius, rows.stop, len(x))
    return Certificate(found)


def _stands(record: Record | None, model: str, attack: Attack) -> bool:
    """Whether an earlier record still answers the question: a decision does, whichever attack was asked for."""
    if record is None or record.model != model:
        return False
    return record.verdict in ("robust", "falsified", "misclassified") or record.attack == str(attack)


def _decide(
    net: nn.Module,
    x: Tensor,
    y: Tensor,
    todo: list[int],
    eps: float,
    by: Sequence[str],
    attack: Attack,
    folder: Path | None,
    seed: int,
    model: str,
) -> list[Record]:
    """Records for the images `todo`, stage by stage; `left` are the rows of the batch that nobody has decided."""
    device = next(net.parameters()).device
    xs, ys = x[todo].to(device), y[todo].to(device)
    verdicts: list[Verdict] = ["unknown"] * len(todo)
    deciders: list[str | None] = [None] * len(todo)
    margins: list[float | None] = [None] * len(todo)
    seconds = torch.zeros(len(todo))
    broken_at: dict[int, str] = {}

    def decide(rows: Tensor, verdict: Verdict, decider: str) -> None:
        for i in rows.tolist():
            verdicts[i], deciders[i] = verdict, decider

    def charge(rows: Tensor, began: float) -> None:
        seconds[rows.cpu()] += (time.perf_counter() - began) / max(1, len(rows))

    left = torch.arange(len(todo), device=device)
    began = time.perf_counter()
    with torch.no_grad():
        logits = net(xs)
    finite, right = logits.isfinite().all(1), logits.argmax(1) == ys
    decide(left[~finite], "error", "clean")
    decide(left[finite & ~right], "misclassified", "clean")
    charge(left, began)
    left = left[finite & right]

    if "ibp" in by and len(left):
        began = time.perf_counter()
        proved = ibp.lower_margin(net, xs[left], ys[left], eps)
        for i, margin in zip(left.tolist(), proved.tolist(), strict=True):
            margins[i] = margin
        decide(left[proved > 0], "robust", "ibp")
        charge(left, began)
        left = left[~(proved > 0)]  # a NaN margin proves nothing

    if len(left):
        began = time.perf_counter()
        with torch.random.fork_rng():
            torch.manual_seed(hash((seed, todo[0], eps)) & (2**63 - 1))
            attacked = attack(net, xs[left], ys[left], eps)
        rows = left[attacked.broken]
        decide(rows, "falsified", "pgd")
        if folder and len(rows):
            broken_at = _keep(folder, attacked.x_adv[attacked.broken], rows.tolist(), todo, eps)
        charge(left, began)

    predictions, labels = logits.argmax(1).tolist(), ys.tolist()
    return [
        Record(
            index=index,
            eps=eps,
            label=labels[i],
            prediction=predictions[i],
            verdict=verdicts[i],
            by=deciders[i],
            lower_margin=margins[i],
            seconds=round(float(seconds[i]), 6),
            attack=str(attack),
            model=model,
            counterexample=broken_at.get(i),
        )
        for i, index in enumerate(todo)
    ]


def _keep(folder: Path, x_adv: Tensor, rows: list[int], todo: list[int], eps: float) -> dict[int, str]:
    """Counterexamples go to the disk before the records that name them."""
    name = f"counterexamples/eps-{eps:g}-{todo[0]:06d}-{todo[-1]:06d}.safetensors"
    (folder / "counterexamples").mkdir(parents=True, exist_ok=True)
    checkpoint.save(folder / name, {"x_adv": x_adv, "index": torch.tensor([todo[i] for i in rows])}, {"eps": eps})
    return {row: f"{name}#{k}" for k, row in enumerate(rows)}


def check_eps(eps: float) -> None:
    if not 0 < eps <= 1:
        raise UserError(f"eps is {eps}, but must be a number in (0, 1]: a radius in pixels, such as 0.3 or 8/255.")


def _check(net: nn.Module, x: Tensor, y: Tensor, by: Sequence[str]) -> None:
    for name in by:
        if name not in PROVERS:
            raise UserError(f"There is no verifier '{name}'; choose from {', '.join(PROVERS)}.")
    if len(x) == 0 or len(x) != len(y):
        raise UserError(f"There are {len(x)} images and {len(y)} labels; expected as many of each, and at least one.")
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise UserError("The images leave [0, 1] or hold NaN; scale them to [0, 1] and let the network normalise.")
    if not any(True for _ in net.parameters()):
        raise UserError("The network has no parameters; there is nothing to certify.")
