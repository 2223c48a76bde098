"""A certification as a few lines of JSON: what is kept where its records are too many to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from advibp.verify.attack import Attack
from advibp.verify.records import Certificate


def summary(
    certificate: Certificate,
    *,
    attack: Attack,
    by: Sequence[str],
    sample: int | None = None,
    command: str = "",
    hardware: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The table of a certification with what made it; percent, as in the paper. `by`: who was asked, cheapest first."""
    radii = certificate.eps
    return {
        "command": command,
        "attack": str(attack),
        "by": list(by),
        "images": certificate.counts(radii[0]).total(),
        "sample": sample,  # None: all of them, or the first ones
        "percent": {
            f"{eps:g}": {name: round(100 * share, 2) for name, share in certificate.errors(eps).items()}
            for eps in radii
        },
        "verdicts": {f"{eps:g}": dict(certificate.counts(eps)) for eps in radii},
        "flow": {f"{eps:g}": [asdict(decided) for decided in certificate.flow(eps)] for eps in radii},
        "hardware": dict(hardware or {}),
    }
