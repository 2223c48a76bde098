"""A certification as a few lines of JSON: what is kept where its records are too many to keep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from advibp.verify.attack_options import Attack
from advibp.verify.records import Certificate
from advibp.verify.verifiers import stage_position


def summary(
    certificate: Certificate,
    *,
    attack: Attack,
    by: Sequence[str],
    arithmetic: str,
    sample: int | None = None,
    seed: int = 0,
    budget: float | None = None,
    command: str = "",
    hardware: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The table of a certification with what made it; percent, as in the paper.

    `by` and `attack` are those asked for now. Records that stand from earlier may be by others, whose proofs and
    counterexamples count: the summary names all of them.
    """
    radii = certificate.eps
    everyone = {name for eps in radii for name in certificate.asked(eps, by)}
    known = [set(certificate.asked(eps, everyone)) for eps in radii]
    return {
        "command": command,
        "attack": certificate.attack(attack),
        "attacks": certificate.attacks(),
        "weights": certificate.weights,  # their fingerprint
        "by": sorted(everyone.intersection(*known), key=stage_position),
        "arithmetic": arithmetic,  # that the proofs cover
        "images": certificate.counts(radii[0]).total(),
        "sample": sample,  # None: all of them, or the first ones
        "seed": seed,  # of the sample, and of the attack
        "budget": budget,  # seconds an image; None: as much as it takes, or what a search has by default
        "percent": {
            f"{eps:g}": {name: round(100 * share, 2) for name, share in certificate.errors(eps).items()}
            for eps in radii
        },
        "verdicts": {f"{eps:g}": dict(certificate.counts(eps)) for eps in radii},
        # Open images that would be proved if the network did not round.
        "real_proofs": {f"{eps:g}": certificate.real_proofs(eps) for eps in radii},
        "flow": {f"{eps:g}": [asdict(decided) for decided in certificate.flow(eps)] for eps in radii},
        "hardware": dict(hardware or {}),
    }
