"""The radii of one image: a line of radii.jsonl, and the curve of certified accuracy computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from advibp.moved import renamed_keywords
from advibp.storage.json_lines import Fields, to_line
from advibp.verify.precision import ARITHMETICS
from advibp.verify.records import MAX_EPS, without_default_set


@dataclass(frozen=True, kw_only=True)
class Radius:
    """The radii of one image.

    Attributes:
        index: Number of the image in the data set.
        label: Class of the image.
        prediction: Predicted class; -1 if the logits are not finite.
        proved: The image is proved up to this eps. 0 for a misclassified image.
        broken: Distance of the nearest counterexample. 0 for a misclassified image; None if the attack found none up to
            `most`.
        provers: Names of the verifiers, separated by spaces.
        attack: The attack with all its options and its seed.
        model: Fingerprint of the network, as in `Record`.
        image: Fingerprint of the image and its label.
        weights: Fingerprint of the weights alone; "" if unknown.
        arithmetic: What the proof covers. Old files without this field ignore rounding: "real".
        perturbation: Fingerprint of the set of allowed changes, as in `Record`.
        most: Largest eps that was tried. Default: 1, for images.
    """

    index: int
    label: int
    prediction: int
    proved: float
    broken: float | None
    provers: str
    attack: str
    model: str
    image: str
    weights: str = ""
    arithmetic: str = "real"
    perturbation: str = ""
    most: float = 1.0

    @classmethod
    def of(cls, content: dict[str, Any]) -> Radius:
        """Build a radius from its fields. A ValueError names a field that is wrong."""
        required = [f.name for f in fields(cls) if f.default is MISSING]
        check = Fields(content, [f.name for f in fields(cls)], required)
        check.integer("index", 0)
        check.integer("label", 0)
        check.integer("prediction", -1)
        check.number("proved", 0, MAX_EPS)
        check.number_or_none("broken", 0, MAX_EPS)
        if "most" in content:
            check.number("most", 0, MAX_EPS, above=True)
        check.text("provers", "attack", "model", "image", "weights", "perturbation")
        if "arithmetic" in content:
            check.choice("arithmetic", ARITHMETICS)
        radius = cls(**content)
        if max(radius.proved, radius.broken or 0.0) > radius.most:
            raise ValueError(f"proved and broken must not exceed {radius.most}, the largest eps that was tried")
        if radius.broken is not None and radius.proved > radius.broken:
            raise ValueError(f"proved is {radius.proved}, but must not exceed broken, which is {radius.broken}")
        if radius.prediction != radius.label and radius.proved > 0:
            raise ValueError(f"proved is {radius.proved}, but must be 0 for a misclassified image")
        return radius


def radius_line(radius: Radius) -> str:
    """A line of radii.jsonl. What is the default for images is left out."""
    content = without_default_set(asdict(radius))
    return to_line({name: value for name, value in content.items() if name != "most" or value != 1.0})


@renamed_keywords(found="radii")
def curve(radii: Sequence[Radius], eps: Sequence[float]) -> list[tuple[float, float, float]]:
    """Certified accuracy over eps.

    Args:
        radii: The radii of all images.
        eps: The points of the curve.

    Returns:
        For each eps: eps, the share of images that are proved there, the share that the attack does not break there.
    """
    count = len(radii)
    return [
        (
            e,
            sum(r.proved >= e for r in radii if r.prediction == r.label) / count,
            sum(r.broken is None or r.broken > e for r in radii if r.prediction == r.label) / count,
        )
        for e in eps
    ]
