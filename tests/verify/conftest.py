"""Random networks and exact answers are those of the tests of bounds; searches have time on a loaded machine too."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bounds"))


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advibp.verify.certifying.SEARCH_SECONDS", 600.0)
