"""Time limits that suffice on a loaded machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advibp.verify.certification.SEARCH_SECONDS", 600.0)
