"""Compares two networks image by image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, Literal

from advibp.errors import UserError
from advibp.report.statistics import format_p, mcnemar
from advibp.runs.run_files import Certification, Errors, RunFiles

#: A property of an image and a network, and its verb in sentences.
Property = Literal["proved", "right"]
#: Up to this number of runs, all pairs are compared on the page.
_ALL_PAIRS = 4
_VERBS: dict[Property, tuple[str, str]] = {"proved": ("proves", "prove"), "right": ("classifies", "classify")}


@dataclass(frozen=True)
class Certified:
    """A run's errors on test images. Radii are keyed by their text, such as 0.0313725."""

    run: str
    data: str  # of the recipe
    files: Certification | None

    @cached_property
    def eps(self) -> dict[str, float]:
        return {f"{eps:g}": eps for eps in self.files.eps} if self.files else {}

    @cached_property
    def errors(self) -> dict[str, Errors]:
        if self.files is None:
            return {}
        try:
            return {written: self.files.errors(eps) for written, eps in self.eps.items()}
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{self.files.path} is damaged: its summary lacks errors; certify the run again.") from None

    def proved(self, eps: str) -> dict[str, bool]:
        """Whether each image, by its fingerprint, is proved; {} if there are no records."""
        return self.having("proved", eps)

    def having(self, what: Property, eps: str) -> dict[str, bool]:
        """Whether each image, by its fingerprint, has a property; {} if there are no records."""
        if self.files is None or eps not in self.eps:
            return {}
        records = [r for r in self.files.records if r.eps == self.eps[eps]]
        if what == "proved":
            return {r.image: r.verdict == "robust" for r in records}
        return {r.image: r.verdict not in ("misclassified", "error") for r in records}


@dataclass(frozen=True)
class Paired:
    """Counts of images that two networks prove, or classify correctly, over the images that both were certified on."""

    first: str
    other: str
    images: int
    both: int  # proved by both
    only_first: int
    only_other: int
    what: Property = "proved"

    @classmethod
    def of(cls, first: Certified, other: Certified, eps: str, what: Property = "proved") -> Paired | None:
        """Count the images; None if the two have no images in common, or their proofs are not comparable."""
        if what == "proved" and first.files and other.files and first.files.arithmetic != other.files.arithmetic:
            return None  # proofs in float32 and in real arithmetic are not comparable
        if first.files and other.files and first.files.perturbation != other.files.perturbation:
            return None  # nor are results about different sets of inputs
        return cls.count(first.run, other.run, first.having(what, eps), other.having(what, eps), what)

    @classmethod
    def count(
        cls, first: str, other: str, ours: Mapping[str, bool], theirs: Mapping[str, bool], what: Property
    ) -> Paired | None:
        """Count the images of two mappings from fingerprints; None if they have no images in common."""
        pairs = [(ours[image], theirs[image]) for image in ours.keys() & theirs.keys()]
        if not pairs:
            return None
        both, only_first, only_other = map(pairs.count, ((True, True), (True, False), (False, True)))
        return cls(first, other, len(pairs), both, only_first, only_other, what)

    @property
    def p(self) -> float:
        """P-value of McNemar's test."""
        return mcnemar(self.only_first, self.only_other)

    def sentence(self) -> str:
        one, two = _VERBS[self.what]
        how = "" if self.what == "proved" else " correctly"
        if self.only_first == self.only_other == 0:
            return f"{self.first} and {self.other} {two} the same {self.both} of {self.images} images{how}."
        return (
            f"{self.first} {one} {_images(self.only_first)}{how} that {self.other} does not, {self.other} "
            f"{self.only_other} that {self.first} does not, of {self.images}: {format_p(self.p)}"
        )


def pair_facts(runs: Sequence[RunFiles], names: Sequence[str]) -> list[dict[str, Any]]:
    """Comparisons of the final networks of runs as plain data: all pairs, or each with the first of many."""
    certified = [Certified(name, str(run.recipe.get("data")), run.last) for run, name in zip(runs, names, strict=True)]
    pairs = combinations(range(len(runs)), 2)
    result = []
    for first, other in (pair for pair in pairs if len(runs) <= _ALL_PAIRS or not pair[0]):
        for eps in (eps for eps in certified[first].eps if eps in certified[other].eps):
            for what in _VERBS:
                if paired := Paired.of(certified[first], certified[other], eps, what):
                    facts = {**asdict(paired), "first": first, "other": other}
                    result.append({**facts, "eps": float(eps), "p": format_p(paired.p)})
    return result


def _images(count: int) -> str:
    return f"{count} image{'s' * (count != 1)}"
