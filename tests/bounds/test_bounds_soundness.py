"""Check twenty networks of checks/soundness.py."""

from __future__ import annotations

import soundness


def test_all_bounds_contain_sampled_points() -> None:
    counts = soundness.run(20, seed=1000, minutes=60, quiet=True, most=8)
    assert counts["nets"] == 20
    assert counts["exact"] >= 2
    assert counts["points"] > 10_000
    assert counts["bounds"] > 10_000
    assert counts["violations"] == 0
