"""Numbers the sets of images that results rest on, so that results on different images can be told apart."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from advibp.runs.run_files import Certification


@dataclass
class Samples:
    """Sets of images, numbered from 0.

    Attributes:
        numbers: Number of each set. Sets are compared by the fingerprints of their images.
        descriptions: A description of each set, such as "the first 500 test images".
    """

    numbers: dict[Hashable, int] = field(default_factory=dict)
    descriptions: list[str] = field(default_factory=list)

    def of_records(self, certified: Certification, eps: float) -> int:
        """The number of the images that were certified at one eps."""
        records = [r for r in certified.records if r.eps == eps]
        if not records:  # only the summary is known
            images = certified.errors(eps).images
            return self._number((str(certified.path), images), f"{_images(images)} (it is not stored which)")
        return self._number(frozenset(r.image for r in records), describe([r.index for r in records]))

    def of_radii(self, certified: Certification) -> int:
        """The number of the images whose radii were measured."""
        radii = certified.radii
        return self._number(frozenset(r.image for r in radii), describe([r.index for r in radii]))

    def _number(self, key: Hashable, description: str) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.numbers)
            self.descriptions.append(description)
        return self.numbers[key]


def describe(indices: Sequence[int]) -> str:
    """Describe a set of test images by their numbers."""
    count = len(set(indices))
    if max(indices) == count - 1:
        return f"the first {_images(count)}" if count > 1 else "the first test image"
    return f"a sample of {_images(count)} from 0 to {max(indices):,}"


def _images(count: int) -> str:
    return f"{count:,} test image{'s' * (count != 1)}"
