"""Small trained runs for the tests of readers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import call


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders: one with all kinds of verdicts and radii, one with verdicts by another verifier, and one without
    weights and records."""
    home = tmp_path_factory.mktemp("runs")
    small = "--validation 100 --batch-size 50 --threads 1"
    first, second, bare = home / "first", home / "second", home / "bare"
    commands = [
        f"train mnist a --eps 0.05 --limit 1000 --epochs 5 {small} --out {first}",
        f"certify {first} --eps 0.01 0.05 --limit 60 --attack-steps 10 --threads 1 --by ibp crown",
        f"certify {first} --radius --limit 60 --attack-steps 5 --threads 1",
        f"train mnist 'Conv 4 4x4+3, FC 20' --method ibp --eps 0.02 --limit 800 --epochs 3 {small} --out {second}",
        f"certify {second} --eps 0.01 0.02 --limit 60 --attack-steps 5 --threads 1",
    ]
    for command in commands:
        assert call(command) == 0, command
    (bare / "certify").mkdir(parents=True)
    for name in ("recipe.yaml", "summary.json", "metrics.jsonl", "certify/summary.json"):
        shutil.copy(first / name, bare / name)
    return {"first": first, "second": second, "bare": bare}
