"""Read the folder of a run, finished or not, with or without weights.

    recipe.yaml  summary.json  metrics.jsonl  certify/{summary.json, records.jsonl, radii.jsonl}  certify-stage-K/...

An archived folder may have no weights and no records. Then the numbers come from `certify/summary.json`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from advibp.bounds import Perturbation
from advibp.errors import UserError
from advibp.storage.json_lines import read_lines
from advibp.storage.run_folder import RunFolder
from advibp.verify.argument_checks import check_path
from advibp.verify.certification import set_fingerprint
from advibp.verify.radius import Radius
from advibp.verify.records import Certificate, Outcome, Record, verified_errors
from advibp.verify.verifiers import cascade_position


@dataclass(frozen=True)
class Errors:
    """Errors of one network at one eps, in percent.

    Attributes:
        images: number of images.
        standard: misclassified images.
        attack: images that are misclassified or broken by the attack.
        verified: by verifier, cheapest first: images that neither it nor a cheaper verifier has proved.
    """

    images: int
    standard: float
    attack: float
    verified: dict[str, float]

    @property
    def best(self) -> float:
        """Verified error of all verifiers together, in percent."""
        return min(self.verified.values())


@dataclass(frozen=True)
class Certification:
    """Results of `advibp certify` in a folder.

    Attributes:
        path: the folder.
        summary: summary.json; {} if it is missing.
        records: records.jsonl, one record per image and eps.
        radii: radii.jsonl, one entry per image.
    """

    path: Path
    summary: dict[str, Any]
    records: list[Record]
    radii: list[Radius]

    @cached_property
    def certificate(self) -> Certificate:
        """The records as a certificate."""
        return Certificate(self.records)

    @property
    def eps(self) -> list[float]:
        """Radii for which there are verdicts."""
        return self.certificate.eps or sorted(float(eps) for eps in self.summary.get("percent", {}))

    @property
    def attack(self) -> str:
        """Description of all attacks that the records come from."""
        description: str = self.summary.get("attack", "")
        return self.certificate.attack(description) if self.records else description

    @property
    def arithmetic(self) -> str:
        """Arithmetic that the proofs cover; "real" for files of versions that did not record it."""
        names = {r.arithmetic for r in self.records if r.verdict == "robust"}
        return " / ".join(sorted(names)) or self.summary.get("arithmetic", "real")

    @property
    def perturbation(self) -> str:
        """Fingerprint of the set of allowed changes; "" for images in [0, 1] with one radius."""
        stored = self.summary.get("perturbation")
        return self.certificate.perturbation or (str(stored.get("fingerprint")) if isinstance(stored, dict) else "")

    def counts(self, eps: float) -> dict[str, int]:
        """Return the number of images by verdict."""
        return dict(
            self.certificate.counts(eps) if self.records else self.summary.get("verdicts", {}).get(f"{eps:g}", {})
        )

    def outcomes(self, eps: float) -> list[Outcome]:
        """Return how many images each check of the cascade decided, in order."""
        if self.records:
            return self.certificate.outcomes(eps)
        try:
            return [Outcome(**outcome) for outcome in self.summary.get("flow", {}).get(f"{eps:g}", [])]
        except TypeError:
            raise _damaged(self.path / "summary.json") from None

    def errors(self, eps: float) -> Errors:
        """Return the errors at one eps, in percent."""
        if self.records:
            percent = {name: 100 * share for name, share in self.certificate.errors(eps).items()}
            verifiers, images = self.certificate.verifiers(eps), self.certificate.counts(eps).total()
        else:
            percent, verifiers, images = (
                self.summary["percent"][f"{eps:g}"],
                self.summary["by"],
                self.summary["images"],
            )
        outcomes = self.outcomes(eps)
        proved = {d.by for d in outcomes if d.verdict == "robust" and d.by}
        # A summary lists only the verifiers of the last call.
        verifiers = sorted({*verifiers, *proved}, key=cascade_position)
        verified = (
            {name: 100 * share for name, share in verified_errors(outcomes, verifiers).items()} if outcomes else {}
        )
        # The error of all verifiers together is stored and may be rounded; use it instead of the computed one.
        verified |= dict.fromkeys(verifiers[-1:], percent["verified_error"])
        attack = percent["attack_error" if "attack_error" in percent else "pgd_error"]  # its name in older summaries
        return Errors(images, percent["standard_error"], attack, verified)


@dataclass(frozen=True)
class RunFiles:
    """Contents of the folder of a run, from `read_run`.

    Attributes:
        path: the folder.
        recipe: keys of recipe.yaml.
        summary: summary.json; None if the run is not finished.
        history: metrics of each finished epoch.
        certified: certifications by layer-wise stage; None is the final network.
        stale: for certifications of other weights, which are omitted: a message, by layer-wise stage.

    Examples:
        ```python
        run = read_run("runs/first")
        print(run.name, run.last.errors(0.1).best)
        ```
    """

    path: Path
    recipe: dict[str, Any]
    summary: dict[str, Any] | None
    history: list[dict[str, Any]]
    certified: dict[int | None, Certification] = field(default_factory=dict)
    stale: dict[int | None, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.resolve().name  # also for `.`

    @property
    def warnings(self) -> list[str]:
        """Sentences about a collapsed network, from the training and from the records of the final network."""
        return self.warnings_with()

    def warnings_with(self, names: Sequence[str] | None = None) -> list[str]:
        """Return the warnings, with names of the classes if they are given."""
        certified = self.last.certificate.warnings(names) if self.last and self.last.records else []
        return [*stored_warnings(self.summary or {}), *certified]

    @property
    def last(self) -> Certification | None:
        """Certification of the final network."""
        return self.certified.get(None)


def stored_warnings(summary: Mapping[str, Any]) -> list[str]:
    """Return the warnings in a summary.json; [] if they are missing or damaged."""
    messages = summary.get("warnings")
    return [str(message) for message in messages] if isinstance(messages, list) else []


def read_run(path: str | Path) -> RunFiles:
    """Read the folder of a run. Its weights are not loaded, and incomplete last lines are skipped.

    Args:
        path: the folder.

    Raises:
        UserError: the folder is not a run, or a file is damaged.
    """
    folder = RunFolder(check_path("path", path))
    recipe = folder.recipe()
    certified, stale = _certified(folder)
    return RunFiles(
        path=folder.path,
        recipe=recipe,
        summary=_json(folder.path / "summary.json"),
        history=folder.history(),
        certified=dict(sorted(certified.items(), key=lambda item: (item[0] is None, item[0] or 0))),
        stale=stale,
    )


def set_suffix(trained: Perturbation, around: Perturbation) -> str:
    """Return the suffix of folders with results about another set than the run's, such as "-radii-1f2e3d4c".

    Args:
        trained: the set of the training.
        around: the set of a certification or an attack.

    Returns:
        "" if both are the same.
    """
    name = set_fingerprint(around)
    return "" if name == set_fingerprint(trained) else f"-radii-{name[:8]}"


def _certified(folder: RunFolder) -> tuple[dict[int | None, Certification], dict[int | None, str]]:
    """Return the certifications of the weights in the folder, and a message for those of other weights."""
    current_by_stage: dict[int | None, Certification] = {}
    stale: dict[int | None, str] = {}
    for path in [folder.path / "certify", *folder.path.glob("certify-stage-*")]:
        name = path.name.removeprefix("certify").removeprefix("-stage-")
        if not path.is_dir() or (name and not name.isdecimal()):
            continue
        stage = int(name) if name else None
        read = Certification(
            path=path,
            summary=_json(path / "summary.json") or {},
            records=read_lines(path / "records.jsonl", Record.of),
            radii=read_lines(path / "radii.jsonl", Radius.of),
        )
        _check(read)
        current = _current(read, folder, stage)
        if current.eps or current.radii:
            current_by_stage[stage] = _newest(current)
        if (current.eps, bool(current.radii)) != (read.eps, bool(read.radii)):
            which = "" if stage is None else f" after stage {stage}"
            stale[stage] = f"{path} certifies other weights than the run{which} has now; certify it again."
    return current_by_stage, stale


def _current(read: Certification, folder: RunFolder, stage: int | None) -> Certification:
    """Remove results of other weights than the run's. Results without a fingerprint, or of lost weights, are kept."""
    known = {*(r.weights for r in read.records), *(r.weights for r in read.radii), read.summary.get("weights") or ""}
    weights = folder.fingerprint(stage) if known != {""} else None
    if weights is None:
        return read
    accepted = ("", weights)
    return Certification(
        read.path,
        read.summary if (read.summary.get("weights") or "") in accepted else {},
        [r for r in read.records if r.weights in accepted],
        [r for r in read.radii if r.weights in accepted],
    )


def _check(read: Certification) -> None:
    """Raise a UserError if the summary is incomplete. Only the attack is needed if there are records."""
    try:
        _check_strings(read.attack)
        for eps in () if read.records else read.eps:
            errors, counts = read.errors(eps), read.counts(eps)
            _check_numbers(eps, errors.images, errors.standard, errors.attack, errors.best, *counts.values())
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
        raise _damaged(read.path / "summary.json") from None


def _newest(read: Certification) -> Certification:
    """Keep the last record per image and eps, and only those of the network and the set of the last record."""
    last = {(r.index, r.eps): r for r in read.records if _same_question(r, read.records[-1])}
    records = sorted(last.values(), key=lambda r: (r.eps, r.index))
    radii = [r for r in read.radii if _same_question(r, read.radii[-1])]
    return Certification(read.path, read.summary, records, radii)


def _same_question(one: Record | Radius, other: Record | Radius) -> bool:
    """Whether two results are about the same network and the same set of allowed changes."""
    return (one.model, one.perturbation) == (other.model, other.perturbation)


def _json(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(file) from None
    if not isinstance(content, dict):
        raise _damaged(file)
    return content


def _check_numbers(*values: Any) -> None:
    """Raise a TypeError or ValueError unless all values are finite numbers."""
    if not all(math.isfinite(value) for value in values):
        raise ValueError(values)


def _check_strings(*values: Any) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError(values)


def _damaged(file: Path) -> UserError:
    return UserError(f"{file} is damaged: a value is missing or invalid; restore it, or delete it and create it again.")
