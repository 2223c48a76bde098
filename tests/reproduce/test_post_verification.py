"""The bold rule: one network is strictly more robust than another. And the paper's numbers in their columns."""

from __future__ import annotations

import pytest

from advibp.reproduce.cells import beside
from advibp.reproduce.post_verification import _verified, strictly_below
from advibp.reproduce.published import find


def test_equal_shares_are_no_gain_however_they_were_computed() -> None:
    assert 100 * (35 / 1000) != 100 * (1 - 965 / 1000)  # what a plain comparison stumbles over
    for left, right in ((35, 965), (67, 933), (7, 993)):
        for one, other in ((100 * (left / 1000), 100 * (1 - right / 1000)), (100 * (1 - right / 1000), left / 10)):
            assert not strictly_below(one, other)
            assert not strictly_below(other, one)
    assert strictly_below(3.49, 3.5)
    assert not strictly_below(3.5, 3.49)


@pytest.mark.parametrize(
    ("method", "net", "eps", "ibp", "refinezono"),
    [
        ("crown-ibp", "dm-small", 0.1, (3.44, ""), (None, "")),
        ("crown-ibp", "dm-large", 0.1, (2.24, ""), (2.10, "")),
        ("crown-ibp", "dm-large", 0.3, (6.68, ""), (6.20, "DeepZ")),
        ("advibp", "dm-small", 0.2, (7.68, ""), (6.80, "")),
        ("advibp", "dm-large", 0.3, (8.23, ""), (5.70, "DeepZ")),
    ],
)
def test_each_number_of_table_d_has_the_column_of_its_verifier(
    method: str, net: str, eps: float, ibp: tuple[float, str], refinezono: tuple[float | None, str]
) -> None:
    row = find("post_robustness", "mnist", method, net, eps)
    assert _verified(row, "IBP") == ibp
    assert _verified(row, "RefineZono") == refinezono
    assert _verified(None, "IBP") == _verified(None, "RefineZono") == (None, "")


def test_a_difference_is_one_between_numbers_of_the_same_verifier() -> None:
    assert beside([6.0], 5.70) == ["6.00", "5.70", "+0.30"]
    assert beside([6.0], 5.70, paper_by="DeepZ") == ["6.00", "5.70 (DeepZ)", ""]
    assert beside([6.0], 5.70, by="CROWN", paper_by="CROWN") == ["6.00 (CROWN)", "5.70 (CROWN)", "+0.30"]
    assert beside([6.0], None) == ["6.00", "", ""]
    assert beside([100 * (1 - 0.932)], 6.80)[2] == "+0.00"
