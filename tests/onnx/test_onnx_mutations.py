"""A part of tests/mutations.py: mutated files get a verdict or one sentence, and never a wrong verdict."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from mutations import run


def test_mutated_files() -> None:
    found = run(60, seed=100_000, workers=1, tell=lambda _: None)
    assert not found["wrong"]
    assert found["verdicts"]["sat"] + found["verdicts"]["unsat"] > 5
