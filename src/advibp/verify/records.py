"""One line of JSON per image and eps, and the counts that follow from them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from advibp.storage import checkpoint
from advibp.storage.json_lines import Fields, parse_line, to_line
from advibp.verify.attack_options import Attack
from advibp.verify.precision import ARITHMETICS
from advibp.verify.verifiers import ATTACKS, VERIFIERS, searches, stage_position

Verdict = Literal["robust", "falsified", "misclassified", "unknown", "timeout", "error"]
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
    model: str  # fingerprint of the function this is about: its weights, and what it makes of a fixed image
    image: str  # fingerprint of the image and its label
    counterexample: str | None = None  # "file#row" beside the records
    weights: str = ""  # fingerprint of the weights alone, which a run's folder can be compared with; "": not known
    arithmetic: str = "real"  # that a proof covers; records of versions that did not say so ignore rounding
    real_margin: float | None = None  # of an image that is open: its lower margin, if real arithmetic would prove it

    @classmethod
    def of(cls, content: dict[str, Any]) -> Record:
        """A record from its fields; a ValueError says which one is wrong."""
        check = Fields(content, _FIELDS, _REQUIRED)
        check.integer("index", 0)
        check.number("eps", 0, 1, above=True)
        check.integer("label", 0)
        check.integer("prediction", 0)
        check.choice("verdict", VERDICTS)
        verdict = content["verdict"]
        check.choice("by", _deciders(verdict), f" for the verdict {verdict}")
        check.number_or_none("lower_margin")
        if "real_margin" in content:
            check.number_or_none("real_margin")
        check.number("seconds", 0)
        check.text("provers", "attack", "model", "image", "weights")
        if content.get("counterexample") is not None:
            check.text("counterexample")
        if "arithmetic" in content:
            check.choice("arithmetic", ARITHMETICS)
        record = cls(**content)
        if strange := sorted(set(record.provers.split()) - VERIFIERS.keys()):
            raise ValueError(f"provers names {strange[0]!r}, which is no verifier")
        if record.verdict == "robust" and record.lower_margin is not None and not record.lower_margin > 0:
            raise ValueError(f"lower_margin is {record.lower_margin}, but must be above 0 for the verdict robust")
        if record.verdict != "error" and (record.prediction == record.label) != (record.verdict != "misclassified"):
            raise ValueError(
                f"label {record.label} and prediction {record.prediction} contradict the verdict {record.verdict}"
            )
        if record.counterexample is not None and not re.fullmatch(r"[^#]+#[0-9]+", record.counterexample):
            raise ValueError("counterexample names no file and row, such as counterexamples/file#0")
        return record


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
        for number, line in enumerate(whole.split(b"\n")[:-1], 1):
            record = parse_line(line, Record.of, f"{path} is damaged in line {number}")
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


_FIELDS = [f.name for f in fields(Record)]
_REQUIRED = [f.name for f in fields(Record) if f.default is MISSING]


def _deciders(verdict: Verdict) -> tuple[str | None, ...]:
    """The stages that can give a verdict; None if no stage decides it."""
    if verdict in ("unknown", "timeout"):
        return (None,)
    deciders = {"robust": (*VERIFIERS,), "falsified": (*ATTACKS, *searches())}
    return deciders.get(verdict, ("clean",))


def verified_errors(flow: Iterable[Decided], asked: Iterable[str]) -> dict[str, float]:
    """The share of images that is not proved by a verifier or one before it, for each that was asked."""
    flow = list(flow)
    total = sum(d.images for d in flow)
    proved = [(stage_position(d.by), d.images) for d in flow if d.verdict == "robust"]
    return {name: 1 - sum(n for at, n in proved if at <= stage_position(name)) / total for name in asked}


def _line(record: Record) -> str:
    return to_line(asdict(record))


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
        attacked = sum(r.eps == eps and r.verdict == "falsified" and r.by in ATTACKS for r in self.records)
        wrong = counts["misclassified"] + counts["error"]  # NaN is no right answer either
        return {
            "standard_error": wrong / total,
            "pgd_error": (wrong + attacked) / total,
            "verified_error": (total - counts["robust"]) / total,
        }

    def real_proofs(self, eps: float) -> int:
        """How many open images the provers would prove in real arithmetic, in which the network does not round."""
        return sum(r.eps == eps and r.verdict != "robust" and r.real_margin is not None for r in self.records)

    def attacks(self) -> dict[str, dict[str, int]]:
        """Each attack, with its seed, that was made on some images: how many are broken and unbroken; most first.

        Records stand whatever attack is asked for later, so there may be several. Images that are misclassified, or
        proved by a verifier that comes before the attack, were not attacked.
        """
        made: dict[str, dict[str, int]] = {}
        not_attacked = {"clean", *(name for name, row in VERIFIERS.items() if row.before_attack)}
        for r in self.records:
            if r.by not in not_attacked:
                counts = made.setdefault(r.attack, {"broken": 0, "unbroken": 0})
                counts["broken" if r.by in ATTACKS else "unbroken"] += 1
        return dict(sorted(made.items(), key=lambda item: -sum(item[1].values())))

    def attack(self, asked: Attack | str = "") -> str:
        """All attacks in one text, their seeds only where they differ in nothing else.

        Where no image had to be attacked: the one that was `asked` for, or those that the records were asked with.
        """
        full = list(self.attacks() or ([str(asked)] if asked else sorted({r.attack for r in self.records})))
        short = [name.partition(" seed=")[0] for name in full]
        return " / ".join(short if len(set(short)) == len(full) else full)

    @property
    def weights(self) -> str:
        """Fingerprint of the weights that all records are about; "" if they differ, or do not say."""
        known = {r.weights for r in self.records}
        return known.pop() if len(known) == 1 else ""

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
        return sorted(decided, key=lambda d: (stage_position(d.by), VERDICTS.index(d.verdict)))

    def asked(self, eps: float, also: Iterable[str] = ()) -> list[str]:
        """Who was asked for proofs, cheapest first, and `also` these.

        Not who was passed over about an image that a later one proved: nobody knows what it proves by itself.
        """
        names = {*also, *(name for r in self.records if r.eps == eps for name in r.provers.split())}
        later = {(r.provers, stage_position(r.by)) for r in self.records if r.eps == eps and r.verdict == "robust"}
        passed = {name for provers, at in later for name in names - {*provers.split()} if stage_position(name) < at}
        return sorted(names - passed, key=stage_position)

    def rows(self) -> list[list[str]]:
        """Header and one row per eps, as text."""
        head = ["eps", "images", "standard error", "PGD error", "verified error", *VERDICTS]
        body = []
        for eps in self.eps:
            counts, errors = self.counts(eps), self.errors(eps)
            shares = [f"{100 * share:.2f} %" for share in errors.values()]
            body.append([f"{eps:g}", str(counts.total()), *shares, *(str(counts[v]) for v in VERDICTS)])
        return [head, *body]

    @property
    def arithmetic(self) -> str:
        """What the proofs cover."""
        return " / ".join(sorted({r.arithmetic for r in self.records}))

    def table(self) -> str:
        """Header and one row per eps, and below them what the proofs cover."""
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"proofs in {self.arithmetic} arithmetic"])
