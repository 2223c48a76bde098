"""The bold rule: one network is strictly more robust than another."""

from __future__ import annotations

from advibp.reproduce.post_verification import strictly_below


def test_equal_shares_are_no_gain_however_they_were_computed() -> None:
    assert 100 * (35 / 1000) != 100 * (1 - 965 / 1000)  # what a plain comparison stumbles over
    for left, right in ((35, 965), (67, 933), (7, 993)):
        for one, other in ((100 * (left / 1000), 100 * (1 - right / 1000)), (100 * (1 - right / 1000), left / 10)):
            assert not strictly_below(one, other)
            assert not strictly_below(other, one)
    assert strictly_below(3.49, 3.5)
    assert not strictly_below(3.5, 3.49)
