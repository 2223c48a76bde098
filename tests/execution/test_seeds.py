"""Derived seeds are pinned, so that runs and attacks can be repeated, and distinct."""

from __future__ import annotations

import math
import re
from itertools import product
from pathlib import Path

from advibp.execution.seeds import mix, mix_number, mix_to_32_bits

SOURCES = Path(__file__).parents[2] / "src" / "advibp"


def test_seeds_are_pinned() -> None:
    assert mix(0, 1, 0) == 146846928924908304
    assert mix(-3, 2, 10**25) == 1434619528094052095
    assert mix_number(7, 5, 0.3) == 5913169879702351534
    assert mix_to_32_bits(0, 17) == 2531192988


def test_neighbors_have_different_seeds() -> None:
    numbers = list(product(range(5), range(5), range(40)))
    assert len({mix(*each) for each in numbers}) == len(numbers)
    starts = list(product(range(9), range(99), [0.1, math.nextafter(0.1, 1), 0.2, 8 / 255, 1.0]))
    assert len({mix_number(mix(seed, 5, index), 5, eps) for seed, index, eps in starts}) == len(starts)


def test_only_one_module_derives_seeds() -> None:
    files = [path for path in SOURCES.rglob("*.py") if re.search(r"\bhash\(\(|blake2b\(", path.read_text("utf-8"))]
    assert [path.relative_to(SOURCES).as_posix() for path in files] == ["execution/seeds.py"]
