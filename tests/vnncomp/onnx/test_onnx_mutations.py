"""A part of checks/mutations.py: mutated files get a verdict or one sentence, and never a wrong verdict."""

from __future__ import annotations

from mutations import run


def test_mutated_files() -> None:
    found = run(60, seed=100_000, workers=1, tell=lambda _: None)
    assert not found["wrong"]
    assert found["verdicts"]["sat"] + found["verdicts"]["unsat"] > 5
