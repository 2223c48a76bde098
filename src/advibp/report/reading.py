"""A run's folder as it lies on the disk, finished or not, with or without weights.

    recipe.yaml  summary.json  metrics.jsonl  certify/{summary.json, records.jsonl, radii.jsonl}  certify-stage-K/...

A folder that is kept for its numbers alone has no weights and no records; `certify/summary.json` then says what they
said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import yaml

from advibp.errors import UserError
from advibp.plain_yaml import from_yaml
from advibp.verify.radius import Radius
from advibp.verify.records import VERDICTS, Certificate, Decided, Record, place, verified_errors

T = TypeVar("T")


@dataclass(frozen=True)
class Errors:
    """Of one network at one eps, in percent."""

    images: int
    standard: float
    attack: float
    verified: dict[str, float]  # by each verifier that was asked, cheapest first: not proved by it or one before it

    @property
    def best(self) -> float:
        """By all verifiers together."""
        return min(self.verified.values())


@dataclass(frozen=True)
class Certification:
    """What `advibp certify` left in a folder."""

    path: Path
    summary: dict[str, Any]  # {} if there is none
    records: list[Record]
    radii: list[Radius]

    @cached_property
    def certificate(self) -> Certificate:
        return Certificate(self.records)

    @property
    def eps(self) -> list[float]:
        """Radii for which there are verdicts."""
        return self.certificate.eps or sorted(float(eps) for eps in self.summary.get("percent", {}))

    @property
    def attack(self) -> str:
        told = {r.attack.partition(" seed=")[0] for r in self.records} or {self.summary.get("attack", "")}
        return " / ".join(sorted(told))

    @property
    def arithmetic(self) -> str:
        """What the proofs cover. Files of versions that did not say so ignore rounding."""
        told = {r.arithmetic for r in self.records if r.verdict == "robust"}
        return " / ".join(sorted(told)) or self.summary.get("arithmetic", "real")

    def counts(self, eps: float) -> dict[str, int]:
        """How many images got each verdict."""
        return dict(
            self.certificate.counts(eps) if self.records else self.summary.get("verdicts", {}).get(f"{eps:g}", {})
        )

    def flow(self, eps: float) -> list[Decided]:
        """Who decided what, in the order of the stages."""
        if self.records:
            return self.certificate.flow(eps)
        try:
            return [Decided(**decided) for decided in self.summary.get("flow", {}).get(f"{eps:g}", [])]
        except TypeError:
            raise _damaged(self.path / "summary.json") from None

    def errors(self, eps: float) -> Errors:
        if self.records:
            told = {name: 100 * share for name, share in self.certificate.errors(eps).items()}
            asked, images = self.certificate.asked(eps), self.certificate.counts(eps).total()
        else:
            told, asked, images = self.summary["percent"][f"{eps:g}"], self.summary["by"], self.summary["images"]
        flow = self.flow(eps)
        proved = {d.by for d in flow if d.verdict == "robust" and d.by}
        asked = sorted({*asked, *proved}, key=place)  # a summary may name those alone who were asked last
        verified = {name: 100 * share for name, share in verified_errors(flow, asked).items()} if flow else {}
        # What is said of all verifiers together was rounded, or not, by one rule.
        verified |= dict.fromkeys(asked[-1:], told["verified_error"])
        return Errors(images, told["standard_error"], told["pgd_error"], verified)


@dataclass(frozen=True)
class RunFiles:
    """One run."""

    path: Path
    recipe: dict[str, Any]
    summary: dict[str, Any] | None  # None: it is not finished
    history: list[dict[str, Any]]  # metrics of each finished epoch
    certified: dict[int | None, Certification] = field(default_factory=dict)  # by stage; None: as trained at last

    @property
    def name(self) -> str:
        return self.path.resolve().name  # of `.` too

    @property
    def last(self) -> Certification | None:
        """Of the network as it was trained at last."""
        return self.certified.get(None)


def read_run(path: str | Path) -> RunFiles:
    """All that a run's folder says; what a kill cut short is passed over."""
    folder = Path(path)
    recipe = _recipe(folder)
    return RunFiles(
        path=folder,
        recipe=recipe,
        summary=_json(folder / "summary.json"),
        history=_lines(folder / "metrics.jsonl", _metrics),
        certified=dict(sorted(_certified(folder).items(), key=lambda item: (item[0] is None, item[0] or 0))),
    )


def _recipe(folder: Path) -> dict[str, Any]:
    file = folder / "recipe.yaml"
    try:
        loaded = from_yaml(file.read_text("utf-8"))
    except OSError:
        raise UserError(f"{folder} holds no run: {file} is missing; give a folder that `advibp train` made.") from None
    except (yaml.YAMLError, UnicodeDecodeError):
        raise _damaged(file) from None
    if not isinstance(loaded, dict):
        raise _damaged(file)
    return {str(key): value for key, value in loaded.items()}


def _certified(folder: Path) -> dict[int | None, Certification]:
    found: dict[int | None, Certification] = {}
    for path in [folder / "certify", *folder.glob("certify-stage-*")]:
        stage = path.name.removeprefix("certify").removeprefix("-stage-")
        if not path.is_dir() or (stage and not stage.isdecimal()):
            continue
        read = Certification(
            path=path,
            summary=_json(path / "summary.json") or {},
            records=_lines(path / "records.jsonl", _record),
            radii=_lines(path / "radii.jsonl", _radius),
        )
        _check(read)
        if read.eps or read.radii:
            found[int(stage) if stage else None] = _newest(read)
    return found


def _check(read: Certification) -> None:
    """That the summary, where it speaks for the records, says all that is asked of it."""
    try:
        _words(read.attack)
        for eps in () if read.records else read.eps:
            errors, counts = read.errors(eps), read.counts(eps)
            _numbers(eps, errors.images, errors.standard, errors.attack, errors.best, *counts.values())
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError, OverflowError):
        raise _damaged(read.path / "summary.json") from None


def _newest(read: Certification) -> Certification:
    """One record an image and eps, the last, and of one network, the newest: a file may hold what was superseded."""
    last = {(r.index, r.eps): r for r in read.records if r.model == read.records[-1].model}
    records = sorted(last.values(), key=lambda r: (r.eps, r.index))
    radii = [r for r in read.radii if r.model == read.radii[-1].model]
    return Certification(read.path, read.summary, records, radii)


def _json(file: Path) -> dict[str, Any] | None:
    if not file.exists():
        return None
    try:
        said = json.loads(file.read_text("utf-8"))
    except (ValueError, RecursionError):
        raise _damaged(file) from None
    if not isinstance(said, dict):
        raise _damaged(file)
    return said


def _lines(file: Path, of: Callable[[Any], T]) -> list[T]:
    """What each whole line says."""
    if not file.exists():
        return []
    lines = file.read_bytes().split(b"\n")[:-1]  # the last one was cut short, or is empty
    try:
        return [of(json.loads(line)) for line in lines]
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        raise _damaged(file) from None


def _metrics(said: Any) -> dict[str, Any]:
    return {**said, "epoch": int(said["epoch"])}


def _record(said: Any) -> Record:
    record = Record(**said)
    _numbers(record.eps, record.seconds, record.lower_margin or 0)
    _whole(record.index, record.label, record.prediction)
    _words(record.provers, record.attack, record.model, record.image)
    _words(*(word for word in (record.by, record.counterexample) if word is not None))
    if record.verdict not in VERDICTS:
        raise ValueError(record)
    return record


def _radius(said: Any) -> Radius:
    radius = Radius(**said)
    _numbers(radius.proved, radius.broken or 0)
    _whole(radius.index, radius.label, radius.prediction)
    _words(radius.provers, radius.model)
    return radius


def _numbers(*values: Any) -> None:
    """A TypeError or ValueError unless all are."""
    if not all(math.isfinite(value) for value in values):
        raise ValueError(values)


def _whole(*values: Any) -> None:
    if not all(isinstance(value, int) for value in values):
        raise TypeError(values)


def _words(*values: Any) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError(values)


def _damaged(file: Path) -> UserError:
    return UserError(f"{file} is damaged: it does not say what it should; restore it, or delete it and make it again.")
