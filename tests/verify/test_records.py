"""Records on disk survive any cut, and the errors are those that the verdicts add up to."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advibp import UserError
from advibp.verify import Attack
from advibp.verify.records import VERDICTS, Certificate, Record, RecordFile
from advibp.verify.summary import summary

with_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
records = st.builds(
    Record,
    index=st.integers(0, 5),
    eps=st.sampled_from([0.1, 8 / 255, 1e-7]),
    label=st.integers(0, 9),
    prediction=st.integers(0, 9),
    verdict=st.sampled_from(VERDICTS),
    by=st.none() | st.sampled_from(["ibp", "pgd", "clean"]),
    lower_margin=st.none() | st.floats(allow_nan=False),
    seconds=st.floats(0, 1e6),
    attack=st.text(max_size=12),
    model=st.text(max_size=12),
    image=st.text(max_size=12),
    counterexample=st.none() | st.text(max_size=12),
)


def record(index: int, verdict: Any = "robust", eps: float = 0.1) -> Record:
    return Record(
        index=index, eps=eps, label=0, prediction=0, verdict=verdict, by="pgd" if verdict == "falsified" else None,
        lower_margin=None, seconds=0.0, provers="ibp", attack="pgd", model="m", image="i",
    )  # fmt: skip


@with_folder
@given(batches=st.lists(st.lists(records, max_size=4), max_size=3))
def test_records_come_back_as_they_were_and_the_last_word_counts(batches: list[list[Record]], tmp_path: Path) -> None:
    path = tmp_path / "some" / "records.jsonl"
    path.unlink(missing_ok=True)
    file = RecordFile.open(path)
    for batch in batches:
        file.add(batch)
    want = {(r.index, r.eps): r for batch in batches for r in batch}
    assert file.records == want
    assert RecordFile.open(path).records == want


@with_folder
@given(batch=st.lists(records, min_size=1, max_size=3), cut=st.integers(0, 10_000), more=records)
def test_a_file_cut_anywhere_keeps_its_whole_lines(batch: list[Record], cut: int, more: Record, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.unlink(missing_ok=True)
    RecordFile.open(path).add(batch)
    content = path.read_bytes()
    path.write_bytes(content[: cut % (len(content) + 1)])
    whole = path.read_bytes().count(b"\n")
    file = RecordFile.open(path)
    assert file.records == {(r.index, r.eps): r for r in batch[:whole]}
    file.add([more])
    assert RecordFile.open(path).records == {(r.index, r.eps): r for r in [*batch[:whole], more]}
    assert path.read_bytes().count(b"\n") == len(RecordFile.open(path).records)  # one line per image and eps


@pytest.mark.parametrize("line", ["", "nonsense", "5", "[]", "{}", "null", '{"index": 0}', "\x00\xff"])
def test_a_line_that_is_no_record_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(f"{json.dumps(asdict(record(0)))}\n{line}\n".encode("latin-1"))
    before = path.read_bytes()
    with pytest.raises(UserError, match="line 2") as raised:
        RecordFile.open(path)
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before


@given(verdicts=st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=30))
def test_errors_follow_from_the_verdicts(verdicts: list[Any]) -> None:
    certificate = Certificate([record(i, verdict) for i, verdict in enumerate(verdicts)])
    errors, counts, total = certificate.errors(0.1), certificate.counts(0.1), len(verdicts)
    assert sum(counts.values()) == total
    wrong = counts["misclassified"] + counts["error"]  # NaN is no right answer
    assert errors["standard_error"] == pytest.approx(wrong / total)
    assert errors["pgd_error"] == pytest.approx((wrong + counts["falsified"]) / total)
    assert errors["verified_error"] == pytest.approx((total - verdicts.count("robust")) / total)
    assert errors["standard_error"] <= errors["pgd_error"] <= errors["verified_error"] + 1e-12


def test_the_table_has_a_row_for_each_radius() -> None:
    certificate = Certificate([record(i, v, eps) for eps in (0.2, 0.1) for i, v in enumerate(VERDICTS)])
    assert certificate.eps == [0.1, 0.2]
    head, *rows = certificate.rows()
    assert [row[0] for row in rows] == ["0.1", "0.2"]
    assert all(len(row) == len(head) for row in rows)
    assert rows[0][head.index("robust")] == "1"
    lines = certificate.table().splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1


def test_who_was_passed_over_is_not_said_to_prove_nothing() -> None:
    """milp alone proved image 0: nobody knows whether ibp would have."""
    asked = {"provers": "milp", "by": "milp"}
    mixed = Certificate([Record(**{**asdict(record(0)), **asked}), record(1, "unknown")])
    assert mixed.asked(0.1) == ["milp"]
    assert summary(mixed, attack=Attack(), by=["ibp"])["by"] == ["milp"]
    plain = Certificate([Record(**{**asdict(record(0)), "by": "ibp"})])
    assert summary(plain, attack=Attack(), by=["ibp", "crown"])["by"] == ["ibp", "crown"]
