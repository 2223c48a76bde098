"""Records of a certification, one line of JSON per image and eps, and the errors computed from them."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from advibp.display.eps import format_eps
from advibp.moved import RenamedKeys, renamed, renamed_attribute
from advibp.storage import checkpoint
from advibp.storage.json_lines import Fields, parse_line, to_line
from advibp.verify.attack_options import Attack
from advibp.verify.certificate_views import CertificateViews
from advibp.verify.collapse import collapse_messages, guessing_message
from advibp.verify.precision import ARITHMETICS
from advibp.verify.verifiers import ATTACKS, VERIFIERS, cascade_position, searches

Verdict = Literal["robust", "falsified", "misclassified", "unknown", "timeout", "error"]
#: Largest eps in records: all numbers of float32.
MAX_EPS = 3.4e38
VERDICTS: tuple[Verdict, ...] = ("robust", "falsified", "misclassified", "unknown", "timeout", "error")


@dataclass(frozen=True, kw_only=True)
class Record:
    """The verdict on one image at one eps. Verdicts are never merged.

    Attributes:
        index: Number of the image in the data set.
        eps: Radius, above 0.
        label: Class of the image.
        prediction: Class that the network predicts for the unchanged image.
        verdict: One of `VERDICTS`.
        by: The check that decided; None if no check did.
        lower_margin: Proved lower bound of the smallest margin, if there is a finite one.
        seconds: Time spent on the image, all checks together.
        provers: Names of the verifiers of the call, separated by spaces.
        attack: The attack with all its options and its seed.
        model: Fingerprint of the network: its weights and its logits on fixed noise images.
        image: Fingerprint of the image and its label.
        counterexample: "file#row" in the folder of the records, if there is one.
        weights: Fingerprint of the weights alone, to compare with a run's folder; "" if unknown.
        arithmetic: What a proof covers. Old records without this field ignore rounding: "real".
        real_margin: Lower margin in real arithmetic of an undecided image that would be proved in real arithmetic.
        perturbation: Fingerprint of the range of the inputs and of the scale of each feature's radius; "" for images
            in [0, 1] with one radius.

    Examples:
        >>> import torch, advibp
        >>> certificate = advibp.certify(torch.nn.Linear(2, 2), torch.rand(1, 2), torch.tensor([0]), 0.5)
        >>> record = certificate.records[0]
        >>> record.index, record.eps, record.verdict in advibp.verify.records.VERDICTS
        (0, 0.5, True)
    """

    index: int
    eps: float
    label: int
    prediction: int
    verdict: Verdict
    by: str | None
    lower_margin: float | None
    seconds: float
    provers: str
    attack: str
    model: str
    image: str
    counterexample: str | None = None
    weights: str = ""
    arithmetic: str = "real"
    real_margin: float | None = None
    perturbation: str = ""

    @classmethod
    def of(cls, content: dict[str, Any]) -> Record:
        """Build a record from its fields. A ValueError names a field that is wrong."""
        check = Fields(content, _FIELDS, _REQUIRED)
        check.integer("index", 0)
        check.number("eps", 0, MAX_EPS, above=True)
        check.integer("label", 0)
        check.integer("prediction", 0)
        check.choice("verdict", VERDICTS)
        verdict = content["verdict"]
        check.choice("by", _deciders(verdict), f" for the verdict {verdict}")
        check.number_or_none("lower_margin")
        if "real_margin" in content:
            check.number_or_none("real_margin")
        check.number("seconds", 0)
        check.text("provers", "attack", "model", "image", "weights", "perturbation")
        if content.get("counterexample") is not None:
            check.text("counterexample")
        if "arithmetic" in content:
            check.choice("arithmetic", ARITHMETICS)
        record = cls(**content)
        if unknown := sorted(set(record.provers.split()) - VERIFIERS.keys()):
            raise ValueError(f"provers names {unknown[0]!r}, which is not a verifier")
        if record.verdict == "robust" and record.lower_margin is not None and not record.lower_margin > 0:
            raise ValueError(f"lower_margin is {record.lower_margin}, but must be above 0 for the verdict robust")
        if record.verdict != "error" and (record.prediction == record.label) != (record.verdict != "misclassified"):
            raise ValueError(
                f"label {record.label} and prediction {record.prediction} contradict the verdict {record.verdict}"
            )
        if record.counterexample is not None and not re.fullmatch(r"[^#]+#[0-9]+", record.counterexample):
            raise ValueError("counterexample must name a file and a row, such as counterexamples/file#0")
        return record


@dataclass
class RecordFile:
    """A file of records, appended in batches. An incomplete last line, left by a killed process, is dropped on opening.

    Attributes:
        path: The file, records.jsonl.
        records: The newest record for each (index, eps).
    """

    path: Path
    records: dict[tuple[int, float], Record] = field(default_factory=dict)
    _lines: int = 0

    @classmethod
    def open(cls, path: Path) -> RecordFile:
        """Read a file, or start a new one.

        Raises:
            UserError: If a line is damaged.
        """
        file = cls(path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            return file
        raw = path.read_bytes()
        complete = raw[: raw.rfind(b"\n") + 1]
        for number, line in enumerate(complete.split(b"\n")[:-1], 1):
            record = parse_line(line, Record.of, f"{path} is damaged in line {number}")
            file.records.pop((record.index, record.eps), None)
            file.records[record.index, record.eps] = record
        file._lines = complete.count(b"\n")
        file.compact(cut_short=len(complete) < len(raw))
        return file

    def compact(self, cut_short: bool = False) -> None:
        """Rewrite the file with one line per image and eps if it has outdated lines or an incomplete one."""
        if cut_short or self._lines > len(self.records):
            checkpoint.write_atomically(self.path, "".join(_line(r) for r in self.records.values()))
            self._lines = len(self.records)

    def add(self, records: Iterable[Record]) -> None:
        """Append records, and wait until they are on the disk."""
        records = list(records)
        with self.path.open("a") as out:
            out.writelines(_line(r) for r in records)
            out.flush()
            os.fsync(out.fileno())
        for r in records:  # the newest come last, because readers take the network of the last record
            self.records.pop((r.index, r.eps), None)
            self.records[r.index, r.eps] = r
        self._lines += len(records)


_FIELDS = [f.name for f in fields(Record)]
_REQUIRED = [f.name for f in fields(Record) if f.default is MISSING]


def _deciders(verdict: Verdict) -> tuple[str | None, ...]:
    """The checks that can give a verdict; None if no check decides it."""
    if verdict in ("unknown", "timeout"):
        return (None,)
    deciders = {"robust": (*VERIFIERS,), "falsified": (*ATTACKS, *searches())}
    return deciders.get(verdict, ("clean",))


def verified_errors(outcomes: Iterable[Outcome], verifiers: Iterable[str]) -> dict[str, float]:
    """For each of the verifiers, the share of images that neither it nor a cheaper one proved.

    Args:
        outcomes: The counts of `Certificate.outcomes` at one eps.
        verifiers: Names of verifiers.
    """
    outcomes = list(outcomes)
    total = sum(o.images for o in outcomes)
    proved = [(cascade_position(o.by), o.images) for o in outcomes if o.verdict == "robust"]
    return {name: 1 - sum(n for at, n in proved if at <= cascade_position(name)) / total for name in verifiers}


def _line(record: Record) -> str:
    return to_line(without_default_set(asdict(record)))


def without_default_set(content: dict[str, Any]) -> dict[str, Any]:
    """Leave the set of allowed changes out of a line if it is that of images."""
    return {name: value for name, value in content.items() if name != "perturbation" or value}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How many images got one verdict from one check at one eps.

    Attributes:
        by: The check; None for images that no check decided.
        verdict: One of `VERDICTS`.
        images: Number of images.
        seconds: Mean time per image, all checks together.
    """

    by: str | None
    verdict: Verdict
    images: int
    seconds: float


__getattr__ = renamed(__name__, {"Decided": "Outcome"})


@dataclass(frozen=True, repr=False)
class Certificate(CertificateViews):
    """The records of a certification, and errors computed from them.

    A certificate is a sequence of its records: it has a length and can be iterated. With one eps, `cert[i]` is the
    record of the i-th certified image, and `cert[:10]` is the certificate of the first ten. With several eps an image
    has several records, so that `cert[i]` raises a UserError; write `cert.at(eps)[i]`. The position i is not always
    the number of the image in the data set: with `sample=`, that is `cert[i].index`.

    Examples:
        >>> import torch, advibp
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=3, seed=0)
        >>> x = torch.full((2, 1, 2, 2), 0.5)
        >>> certificate = advibp.certify(net, x, net(x).argmax(1), 0.001)
        >>> certificate.errors(0.001)["verified_error"]
        0.0
        >>> len(certificate), certificate[0].verdict
        (2, 'robust')

    Attributes:
        records: A record for each image and eps.
    """

    records: list[Record]

    asked = renamed_attribute("Certificate", "asked", "verifiers")
    flow = renamed_attribute("Certificate", "flow", "outcomes")

    @property
    def eps(self) -> list[float]:
        """The radii, in ascending order."""
        return sorted({r.eps for r in self.records})

    def counts(self, eps: float) -> Counter[str]:
        """The number of images with each verdict."""
        return Counter(r.verdict for r in self.records if r.eps == eps)

    def errors(self, eps: float) -> dict[str, float]:
        """Errors as shares of all images.

        Returns:
            `standard_error`: misclassified without a change. `attack_error`: misclassified or broken by the attack; an
            image that only a verifier broke is not included. `verified_error`: not proved.
        """
        counts = self.counts(eps)
        total = counts.total()
        attacked = sum(r.eps == eps and r.verdict == "falsified" and r.by in ATTACKS for r in self.records)
        wrong = counts["misclassified"] + counts["error"]  # NaN logits count as wrong
        errors = {
            "standard_error": wrong / total,
            "attack_error": (wrong + attacked) / total,
            "verified_error": (total - counts["robust"]) / total,
        }
        return RenamedKeys(errors, {"pgd_error": "attack_error"})

    def warnings(self, names: Sequence[str] | None = None) -> list[str]:
        """Sentences about a collapsed network, whose certificates mean nothing; [] if there are none.

        Args:
            names: Names of the classes. Default: their numbers.
        """
        if not self.records:
            return []
        radii = self.eps
        first = [r for r in self.records if r.eps == radii[0]]
        labels = [r.label for r in first]
        messages = collapse_messages(labels, [r.prediction for r in first], names)
        for eps in radii:
            labels = [r.label for r in self.records if r.eps == eps]
            what = f"certified accuracy at eps {format_eps(eps)}"
            message = guessing_message(labels, self.counts(eps)["robust"], what, names)
            messages += [message] if message else []
        return messages

    def real_proofs(self, eps: float) -> int:
        """The number of undecided images that would be proved in real arithmetic, which ignores rounding."""
        return sum(r.eps == eps and r.verdict != "robust" and r.real_margin is not None for r in self.records)

    def attacks(self) -> dict[str, dict[str, int]]:
        """The number of broken and unbroken images for each attack, most images first.

        There may be several attacks, because decided records are kept when a later call uses another attack. Images
        that are misclassified, or proved by a verifier that runs before the attack, were not attacked.
        """
        attacks: dict[str, dict[str, int]] = {}
        not_attacked = {"clean", *(name for name, row in VERIFIERS.items() if row.before_attack)}
        for r in self.records:
            if r.by not in not_attacked:
                counts = attacks.setdefault(r.attack, {"broken": 0, "unbroken": 0})
                counts["broken" if r.by in ATTACKS else "unbroken"] += 1
        return dict(sorted(attacks.items(), key=lambda item: -sum(item[1].values())))

    def attack(self, default: Attack | str = "") -> str:
        """All attacks in one text. Seeds are included only if two attacks differ in nothing else.

        Args:
            default: The attack to name if no image had to be attacked. Default: those of the records.
        """
        full = list(self.attacks() or ([str(default)] if default else sorted({r.attack for r in self.records})))
        short = [name.partition(" seed=")[0] for name in full]
        return " / ".join(short if len(set(short)) == len(full) else full)

    @property
    def perturbation(self) -> str:
        """Fingerprint of the range and the scale of the perturbation; "" for images in [0, 1] with one radius."""
        return " / ".join(sorted({r.perturbation for r in self.records}))

    @property
    def weights(self) -> str:
        """Fingerprint of the weights; "" if it is unknown, or not the same for all records."""
        known = {r.weights for r in self.records}
        return known.pop() if len(known) == 1 else ""

    def outcomes(self, eps: float) -> list[Outcome]:
        """Counts for each check and verdict, in the order of the checks."""
        seconds: dict[tuple[str | None, Verdict], list[float]] = {}
        for r in self.records:
            if r.eps == eps:
                seconds.setdefault((r.by, r.verdict), []).append(r.seconds)
        outcomes = [
            Outcome(by=by, verdict=verdict, images=len(took), seconds=sum(took) / len(took))
            for (by, verdict), took in seconds.items()
        ]
        return sorted(outcomes, key=lambda o: (cascade_position(o.by), VERDICTS.index(o.verdict)))

    def verifiers(self, eps: float, also: Iterable[str] = ()) -> list[str]:
        """Verifiers whose verified error is known, cheapest first.

        These are the verifiers of all calls and `also`. A verifier is left out if it did not run on an image that a
        later verifier proved, because it is unknown whether it would have proved the image.
        """
        names = {*also, *(name for r in self.records if r.eps == eps for name in r.provers.split())}
        proofs = {(r.provers, cascade_position(r.by)) for r in self.records if r.eps == eps and r.verdict == "robust"}
        skipped = {name for provers, at in proofs for name in names - {*provers.split()} if cascade_position(name) < at}
        return sorted(names - skipped, key=cascade_position)

    def rows(self) -> list[list[str]]:
        """A header and a row for each eps, as text."""
        head = ["eps", "images", "standard error", "attack error", "verified error", *VERDICTS]
        body = []
        for eps in self.eps:
            counts, errors = self.counts(eps), self.errors(eps)
            shares = [f"{100 * share:.2f} %" for share in errors.values()]
            body.append([format_eps(eps), str(counts.total()), *shares, *(str(counts[v]) for v in VERDICTS)])
        return [head, *body]

    @property
    def arithmetic(self) -> str:
        """The arithmetic that the proofs cover."""
        return " / ".join(sorted({r.arithmetic for r in self.records}))

    def table(self) -> str:
        """A header and a row for each eps, and the arithmetic that the proofs cover."""
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join([*lines, f"proofs in {self.arithmetic} arithmetic"])
