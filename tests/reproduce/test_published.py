"""The paper's numbers, as its text has them."""

from __future__ import annotations

import csv
from importlib import resources

import pytest

from advibp.reproduce.published import METHODS, find, published

TABLES = ("results", "all_models_results", "robustness", "full_results", "post_robustness", "runtime")


def test_every_row_reads() -> None:
    text = (resources.files("advibp") / "reproduce" / "published.csv").read_text("utf-8")
    rows = [row for table in TABLES for row in published(table)]
    assert len(rows) == len(list(csv.DictReader(text.splitlines()))) == 130
    for row in rows:
        numbers = [n for n in (row.standard, row.attack, row.verified) if n is not None]
        assert all(0 < n < 100 for n in numbers)
        assert numbers == sorted(numbers)  # what is broken is no more than what is not proved
        assert (row.eps is None) == (row.table == "runtime")
        assert (row.seconds is not None) == (row.table == "runtime")


def test_the_abstracts_numbers() -> None:
    """6.60 % on MNIST at 0.3 and 66.57 % on CIFAR-10 at 8/255."""
    assert min(r.verified for r in published("robustness") if r.eps == 0.3 and r.verified) == 6.60
    best = [r for r in published("results") if r.eps == pytest.approx(8 / 255) and r.model != "best reported"]
    assert min(r.verified for r in best if r.verified) == 66.57


def test_rows_are_found_by_our_names() -> None:
    row = find("robustness", "mnist", "advibp", "dm-small", 0.4)
    assert row is not None
    assert (row.standard, row.verified, row.attack) == (4.15, 17.57, 8.48)
    found = find("results", "cifar10", "crown-ibp", "dm-large", 2 / 255)
    assert found is not None
    assert found.verifier == "CROWN"
    times = [find("runtime", "mnist", method, "dm-small") for method in ("advibp", "fixed")]
    assert [time.seconds for time in times if time] == [6683, 5942]
    assert find("robustness", "mnist", "ibp", "dm-small", 0.4) is None
    assert find("robustness", "svhn", "advibp", "dm-small", 0.4) is None


def test_every_cell_of_the_grids_is_there() -> None:
    for eps in (0.1, 0.2, 0.3, 0.4):
        for size in ("small", "medium", "large"):
            for method in set(METHODS) - {"fixed"}:
                assert find("robustness", "mnist", method, f"dm-{size}", eps)
            assert find("full_results", "mnist", "advibp", f"cnn-{size}", eps)


def test_ibp_errors_in_parentheses() -> None:
    """Table D has IBP's verified error beside that of a stronger verifier, but for networks verified by IBP alone."""
    for size, ibp in (("small", 10.80), ("medium", 8.73), ("large", 8.23)):
        row = find("post_robustness", "mnist", "advibp", f"dm-{size}", 0.3)
        assert row is not None
        assert (row.in_parentheses, row.ibp) == (ibp, ibp)
        assert row.verifier != "IBP"
    alone = find("post_robustness", "mnist", "crown-ibp", "dm-small", 0.3)
    assert alone is not None
    assert (alone.in_parentheses, alone.ibp, alone.verified) == (None, 9.40, 9.40)
    by_crown = find("results", "cifar10", "crown-ibp", "dm-small", 2 / 255)
    assert by_crown is not None
    assert by_crown.ibp is None
