"""Which images a result rests on."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from advibp.report.samples import Samples, describe
from advibp.runs.run_files import read_run


def test_sets_of_images_are_described() -> None:
    assert describe([2, 0, 1]) == "the first 3 test images"
    assert describe([0]) == "the first test image"
    assert describe([5, 3000]) == "a sample of 2 test images from 0 to 3,000"


def test_the_same_images_have_the_same_number(trained: dict[str, Path]) -> None:
    first, second, bare = (read_run(trained[name]).last for name in ("first", "second", "bare"))
    assert first
    assert second
    assert bare
    samples = Samples()
    assert {samples.of_records(one, eps) for one in (first, second) for eps in one.eps} == {0}
    assert samples.of_radii(first) == 0  # both of the first 60
    fewer = dataclasses.replace(first, radii=first.radii[:20])
    assert samples.of_radii(fewer) == 1
    assert samples.of_records(bare, bare.eps[0]) == 2  # only their number is known
    assert samples.descriptions[1:] == ["the first 20 test images", "60 test images (it is not stored which)"]
