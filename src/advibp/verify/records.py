"""One line of JSON per image and eps, and the counts that follow from them."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, get_args

from advibp import checkpoint
from advibp.errors import UserError
from advibp.verify.attack import Kind

Verdict = Literal["robust", "falsified", "misclassified", "unknown", "timeout", "error"]
#: What a proof is about: every evaluation of the network in a type, or the network of real numbers that its weights
#: define. In real arithmetic bounds are computed without regard to rounding, as papers report them.
Arithmetic = Literal["float32", "float64", "real"]
VERDICTS: tuple[Verdict, ...] = ("robust", "falsified", "misclassified", "unknown", "timeout", "error")


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of one image at one eps. No verdict is ever folded into another."""

    index: int
    eps: float
    label: int
    prediction: int
    verdict: Verdict
    by: str | None  # who decided; None where nobody did
    lower_margin: float | None  # proved lower bound of the smallest margin
    seconds: float
    provers: str  # who was asked for a proof
    attack: str  # the attack and all its options
    model: str  # fingerprint of the weights this is about
    image: str  # fingerprint of the image and its label
    counterexample: str | None = None  # "file#row" beside the records
    arithmetic: str = "real"  # that a proof covers; records of versions that did not say so ignore rounding
    real_margin: float | None = None  # of an image that is open: its lower margin, if real arithmetic would prove it


@dataclass
class RecordFile:
    """Records on disk, appended batch by batch. A line cut short by a kill is dropped when the file is opened."""

    path: Path
    records: dict[tuple[int, float], Record] = field(default_factory=dict)
    _lines: int = 0

    @classmethod
    def open(cls, path: Path) -> RecordFile:
        file = cls(path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return file
        raw = path.read_bytes()
        whole = raw[: raw.rfind(b"\n") + 1]
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = Record(**json.loads(line))
            except (ValueError, TypeError):
                raise UserError(
                    f"{path} is damaged in line {number}: it holds no record; delete it to certify anew."
                ) from None
            file.records.pop((record.index, record.eps), None)
            file.records[record.index, record.eps] = record
        file._lines = whole.count(b"\n")
        file.compact(half_a_line=len(whole) < len(raw))
        return file

    def compact(self, half_a_line: bool = False) -> None:
        """One line per image and eps: what was superseded goes, and so does half a line."""
        if half_a_line or self._lines > len(self.records):
            checkpoint.write_atomically(self.path, "".join(_line(r) for r in self.records.values()))
            self._lines = len(self.records)

    def add(self, records: Iterable[Record]) -> None:
        records = list(records)
        with self.path.open("a") as out:
            out.writelines(_line(r) for r in records)
            out.flush()
            os.fsync(out.fileno())
        for r in records:  # the newest come last: they tell which network the file is about
            self.records.pop((r.index, r.eps), None)
            self.records[r.index, r.eps] = r
        self._lines += len(records)


#: All that may decide, in the order in which they are asked.
STAGES = (
    "clean", "ibp", "crown-ibp", *get_args(Kind), "crown", "deepz", "alpha-crown", "refinezono", "bab", "milp"
)  # fmt: skip


def place(stage: str | None) -> int:
    """Of a stage in the cascade; nobody comes last."""
    return STAGES.index(stage) if stage in STAGES else len(STAGES)


def verified_errors(flow: Iterable[Decided], asked: Iterable[str]) -> dict[str, float]:
    """The share of images that is not proved by a verifier or one before it, for each that was asked."""
    flow = list(flow)
    total = sum(d.images for d in flow)
    proved = [(place(d.by), d.images) for d in flow if d.verdict == "robust"]
    return {name: 1 - sum(n for at, n in proved if at <= place(name)) / total for name in asked}


def _line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"


@dataclass(frozen=True, kw_only=True)
class Decided:
    """How many images of one eps got one verdict from one stage, and what one of them took, all stages together."""

    by: str | None  # None: nobody
    verdict: Verdict
    images: int
    seconds: float


@dataclass(frozen=True)
class Certificate:
    """The records of a certification, and the errors they add up to."""

    records: list[Record]

    @property
    def eps(self) -> list[float]:
        return sorted({r.eps for r in self.records})

    def counts(self, eps: float) -> Counter[str]:
        return Counter(r.verdict for r in self.records if r.eps == eps)

    def errors(self, eps: float) -> dict[str, float]:
        """Shares of all images: wrong as they are, wrong under attack, and not proved.

        What a complete verifier broke is not proved, but the attack did not find it.
        """
        counts = self.counts(eps)
        total = counts.total()
        attacked = sum(r.eps == eps and r.verdict == "falsified" and r.by in get_args(Kind) for r in self.records)
        wrong = counts["misclassified"] + counts["error"]  # NaN is no right answer either
        return {
            "standard_error": wrong / total,
            "pgd_error": (wrong + attacked) / total,
            "verified_error": (total - counts["robust"]) / total,
        }

    def real_proofs(self, eps: float) -> int:
        """How many open images the provers would prove in real arithmetic, in which the network does not round."""
        return sum(r.eps == eps and r.verdict != "robust" and r.real_margin is not None for r in self.records)

    def flow(self, eps: float) -> list[Decided]:
        """Who decided what, in the order in which the stages are asked."""
        seconds: dict[tuple[str | None, Verdict], list[float]] = {}
        for r in self.records:
            if r.eps == eps:
                seconds.setdefault((r.by, r.verdict), []).append(r.seconds)
        decided = [
            Decided(by=by, verdict=verdict, images=len(took), seconds=sum(took) / len(took))
            for (by, verdict), took in seconds.items()
        ]
        return sorted(decided, key=lambda d: (place(d.by), VERDICTS.index(d.verdict)))

    def asked(self, eps: float, also: Iterable[str] = ()) -> list[str]:
        """Who was asked for proofs, cheapest first, and `also` these.

        Not who was passed over about an image that a later one proved: nobody knows what it proves by itself.
        """
        names = {*also, *(name for r in self.records if r.eps == eps for name in r.provers.split())}
        later = {(r.provers, place(r.by)) for r in self.records if r.eps == eps and r.verdict == "robust"}
        passed = {name for provers, at in later for name in names - {*provers.split()} if place(name) < at}
        return sorted(names - passed, key=place)

    def rows(self) -> list[list[str]]:
        """Header and one row per eps, as text."""
        head = ["eps", "images", "standard error", "PGD error", "verified error", *VERDICTS]
        body = []
        for eps in self.eps:
            counts, errors = self.counts(eps), self.errors(eps)
            shares = [f"{100 * share:.2f} %" for share in errors.values()]
            body.append([f"{eps:g}", str(counts.total()), *shares, *(str(counts[v]) for v in VERDICTS)])
        return [head, *body]

    def table(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join("  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows)
