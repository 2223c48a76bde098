"""A run's folder as it lies on the disk, finished or not, with or without weights.

    recipe.yaml  summary.json  metrics.jsonl  certify/{summary.json, records.jsonl, radii.jsonl}  certify-stage-K/...

A folder that is kept for its numbers alone has no weights and no records; `certify/summary.json` then says what they
said.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from advibp.errors import UserError
from advibp.storage.json_lines import read_lines
from advibp.storage.run_folder import RunFolder
from advibp.verify.radius import Radius
from advibp.verify.records import Certificate, Decided, Record, verified_errors
from advibp.verify.verifiers import stage_position


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
        """All attacks that were made, of this call and of earlier ones whose records stand."""
        told: str = self.summary.get("attack", "")
        return self.certificate.attack(told) if self.records else told

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
        asked = sorted({*asked, *proved}, key=stage_position)  # a summary may name those alone who were asked last
        verified = {name: 100 * share for name, share in verified_errors(flow, asked).items()} if flow else {}
        # What is said of all verifiers together was rounded, or not, by one rule.
        verified |= dict.fromkeys(asked[-1:], told["verified_error"])
        attack = told["attack_error" if "attack_error" in told else "pgd_error"]  # its name in older summaries
        return Errors(images, told["standard_error"], attack, verified)


@dataclass(frozen=True)
class RunFiles:
    """One run."""

    path: Path
    recipe: dict[str, Any]
    summary: dict[str, Any] | None  # None: it is not finished
    history: list[dict[str, Any]]  # metrics of each finished epoch
    certified: dict[int | None, Certification] = field(default_factory=dict)  # by stage; None: as trained at last
    stale: dict[int | None, str] = field(default_factory=dict)  # left out, for they are of other weights: a note each

    @property
    def name(self) -> str:
        return self.path.resolve().name  # of `.` too

    @property
    def last(self) -> Certification | None:
        """Of the network as it was trained at last."""
        return self.certified.get(None)


def read_run(path: str | Path) -> RunFiles:
    """All that a run's folder says; what a kill cut short is passed over."""
    folder = RunFolder(Path(path))
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


def _certified(folder: RunFolder) -> tuple[dict[int | None, Certification], dict[int | None, str]]:
    """What was certified of the weights that are in the folder now, and a note for what was of others."""
    found: dict[int | None, Certification] = {}
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
            found[stage] = _newest(current)
        if (current.eps, bool(current.radii)) != (read.eps, bool(read.radii)):
            which = "" if stage is None else f" after stage {stage}"
            stale[stage] = f"{path} certifies other weights than the run{which} has now; certify it again."
    return found, stale


def _current(read: Certification, folder: RunFolder, stage: int | None) -> Certification:
    """Without what is of other weights than those of the run; the weights may be gone, or not have been recorded."""
    known = {*(r.weights for r in read.records), *(r.weights for r in read.radii), read.summary.get("weights") or ""}
    weights = folder.weights(stage) if known != {""} else None
    if weights is None:
        return read
    mine = ("", weights)
    return Certification(
        read.path,
        read.summary if (read.summary.get("weights") or "") in mine else {},
        [r for r in read.records if r.weights in mine],
        [r for r in read.radii if r.weights in mine],
    )


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


def _numbers(*values: Any) -> None:
    """A TypeError or ValueError unless all are."""
    if not all(math.isfinite(value) for value in values):
        raise ValueError(values)


def _words(*values: Any) -> None:
    if not all(isinstance(value, str) for value in values):
        raise TypeError(values)


def _damaged(file: Path) -> UserError:
    return UserError(f"{file} is damaged: it does not say what it should; restore it, or delete it and make it again.")
