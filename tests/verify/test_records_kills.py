"""Certifying that is killed at any moment, and goes on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SMALL_KILLS = Path(__file__).parents[2] / "checks" / "endurance" / "small_kills.py"


@pytest.mark.slow
def test_a_kill_loses_no_record_and_duplicates_none(tmp_path: Path) -> None:
    command = [sys.executable, str(SMALL_KILLS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["problems"] == []
    assert found["hits"] >= 1, found
