"""Records and radii as columns, which the page filters, sorts and writes as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any

from advibp.report.facts import round_eps
from advibp.report.shown_images import Pictures, Place
from advibp.runs.run_files import Certification, RunFiles
from advibp.verify.radius import Radius
from advibp.verify.records import VERDICTS, Record
from advibp.verify.verifiers import labels_of_checks


def record_columns(runs: Sequence[RunFiles], pictures: Pictures) -> list[dict[str, Any]]:
    """The records and radii of each certified network, in the order of the page's entries."""
    return [
        _of_network(number, stage, certified, pictures)
        for number, run in enumerate(runs)
        for stage, certified in run.certified.items()
    ]


def _of_network(run: int, stage: int | None, certified: Certification, pictures: Pictures) -> dict[str, Any]:
    return {
        "at": [
            {"eps": round_eps(eps), **_at(run, stage, [r for r in certified.records if r.eps == eps], pictures)}
            for eps in (certified.eps if certified.records else ())
        ],
        "radii": _radii(certified.radii, pictures),
    }


def _at(run: int, stage: int | None, records: Sequence[Record], pictures: Pictures) -> dict[str, list[Any]]:
    checks = list(labels_of_checks())
    broken = [pictures.broken.get(Place(run, stage, r.eps, r.index), (None, None)) for r in records]
    return {
        "index": [r.index for r in records],
        "label": [r.label for r in records],
        "prediction": [r.prediction for r in records],
        "verdict": [VERDICTS.index(r.verdict) for r in records],
        # Position in DATA.checks; a name that is not there stays a name.
        "by": [checks.index(r.by) if r.by in checks else r.by for r in records],
        "margin": [_rounded(r.lower_margin, ROUND_FLOOR) for r in records],
        "seconds": [float(f"{r.seconds:.3g}") for r in records],
        "picture": [pictures.numbers.get(r.image) for r in records],
        "change": [number for number, _ in broken],
        "row": [pictures.features.numbers.get(r.image) for r in records],
        "changed": [pictures.features.changed.get(Place(run, stage, r.eps, r.index)) for r in records],
        "now": [now for _, now in broken],
    }


def _radii(radii: Sequence[Radius], pictures: Pictures) -> dict[str, list[Any]]:
    return {
        "index": [r.index for r in radii],
        "label": [r.label for r in radii],
        "prediction": [r.prediction for r in radii],
        "proved": [_rounded(r.proved, ROUND_FLOOR) for r in radii],
        "broken": [_rounded(r.broken, ROUND_CEILING) for r in radii],
        "picture": [pictures.numbers.get(r.image) for r in radii],
    }


def _rounded(value: float | None, direction: str) -> float | None:
    """Round to five digits, in the direction in which the statement stays true."""
    return None if value is None else float(Context(prec=5, rounding=direction).create_decimal(value))
