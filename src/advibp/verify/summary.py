"""The summary of a certification, which `certify` writes to summary.json next to the records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from advibp.bounds import Perturbation
from advibp.bounds.perturbation import PIXELS
from advibp.execution.hardware import hardware
from advibp.verify.attack_options import Attack
from advibp.verify.records import Certificate
from advibp.verify.verifiers import cascade_position


def summarize(
    certificate: Certificate,
    *,
    attack: Attack,
    by: Sequence[str],
    arithmetic: str,
    sample: int | None = None,
    seed: int = 0,
    budget: float | None = None,
    command: str = "",
    perturbation: Perturbation = PIXELS,
) -> dict[str, Any]:
    """Errors in percent, counts of verdicts, and the options of a certification, as plain data for JSON.

    `by` and `attack` are those of this call. Records of earlier calls stay valid, also if another attack or other
    verifiers made them, so the summary names the attacks and verifiers of all records.
    """
    radii = certificate.eps
    everyone = {name for eps in radii for name in certificate.verifiers(eps, by)}
    at_every_eps = everyone.intersection(*(certificate.verifiers(eps, everyone) for eps in radii))
    return {
        "command": command,
        "attack": certificate.attack(attack),
        "attacks": certificate.attacks(),
        "weights": certificate.weights,  # their fingerprint
        "by": sorted(at_every_eps, key=cascade_position),
        "arithmetic": arithmetic,  # covered by the proofs
        **_set_of(perturbation, certificate),
        "images": certificate.counts(radii[0]).total(),
        "sample": sample,  # None: no random sample
        "seed": seed,  # of the sample and of the attack
        "budget": budget,  # seconds per image; None: the default
        "percent": {
            f"{eps:g}": {name: round(100 * share, 2) for name, share in certificate.errors(eps).items()}
            for eps in radii
        },
        "verdicts": {f"{eps:g}": dict(certificate.counts(eps)) for eps in radii},
        "warnings": certificate.warnings(),
        # Undecided images that would be proved in real arithmetic.
        "real_proofs": {f"{eps:g}": certificate.real_proofs(eps) for eps in radii},
        "flow": {f"{eps:g}": [asdict(outcome) for outcome in certificate.outcomes(eps)] for eps in radii},
        "hardware": hardware(),
    }


def _set_of(perturbation: Perturbation, certificate: Certificate) -> dict[str, Any]:
    """The range and the scale as plain data; {} for images."""
    content = perturbation.as_dict()
    return {"perturbation": {"fingerprint": certificate.perturbation, **content}} if content else {}
