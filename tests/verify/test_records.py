"""Records on disk survive a cut at any byte, and errors follow from the verdicts."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from advibp import UserError
from advibp.storage.json_lines import to_line
from advibp.verify import Attack
from advibp.verify.records import VERDICTS, Certificate, Record, RecordFile
from advibp.verify.summary import summarize

with_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
#: Who may give a verdict, for a label of 0, and what the network may have predicted.
DECIDERS: dict[str, tuple[list[str | None], list[int]]] = {
    "robust": (["ibp", "crown", "milp"], [0]),
    "falsified": (["pgd", "apgd", "bab"], [0]),
    "misclassified": (["clean"], [1, 9]),
    "unknown": ([None], [0]),
    "timeout": ([None], [0]),
    "error": (["clean"], [0, 1]),
}


@st.composite
def any_record(draw: st.DrawFn) -> Record:
    verdict = draw(st.sampled_from(VERDICTS))
    deciders, predictions = DECIDERS[verdict]
    margins = st.floats(0, 1e3, exclude_min=True) if verdict == "robust" else st.floats(-1e3, 1e3)
    return Record(
        index=draw(st.integers(0, 5)),
        eps=draw(st.sampled_from([0.1, 8 / 255, 1e-7])),
        label=0,
        prediction=draw(st.sampled_from(predictions)),
        verdict=verdict,
        by=draw(st.sampled_from(deciders)),
        lower_margin=draw(st.none() | margins),
        seconds=draw(st.floats(0, 1e6)),
        provers=draw(st.sampled_from(["ibp", "ibp crown milp", ""])),
        attack=draw(st.text(max_size=12)),
        model=draw(st.text(max_size=12)),
        image=draw(st.text(max_size=12)),
        counterexample=draw(st.sampled_from([None, "counterexamples/a#0", "ä b#17"])),
        weights=draw(st.text(max_size=12)),
        arithmetic=draw(st.sampled_from(["float32", "float64", "real"])),
        real_margin=draw(st.none() | st.floats(-1, 1)),
    )


records = any_record()


def record(index: int, verdict: Any = "robust", eps: float = 0.1) -> Record:
    return Record(
        index=index, eps=eps, label=0, prediction=int(verdict == "misclassified"), verdict=verdict,
        by=DECIDERS[verdict][0][0],
        lower_margin=None, seconds=0.0, provers="ibp", attack="pgd", model="m", image="i",
    )  # fmt: skip


@with_folder
@given(batches=st.lists(st.lists(records, max_size=4), max_size=3))
def test_records_are_read_back_and_the_last_one_wins(batches: list[list[Record]], tmp_path: Path) -> None:
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
def test_an_invalid_line_is_reported_with_its_number(line: str, tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    path.write_bytes(f"{json.dumps(asdict(record(0)))}\n{line}\n".encode("latin-1"))
    before = path.read_bytes()
    with pytest.raises(UserError, match="line 2") as raised:
        RecordFile.open(path)
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before


EDITS: dict[str, Any] = {
    "verdict": ["Robust!", "", None, 1, ["robust"]],
    "by": ["pgd", None, "clean", "magic", 3],
    "index": [-1, 0.0, "0", None, True],
    "eps": [0, -0.1, 1e39, "0.1", None, math.nan, math.inf, 10**400, True],
    "label": [-1, 1, None],
    "prediction": [-1, 1, "0"],
    "lower_margin": [0.0, -1e-9, math.nan, math.inf, "low"],
    "seconds": [-1, math.nan, None],
    "provers": ["ibp magic", 3],
    "attack": [None],
    "model": [3],
    "image": [[]],
    "counterexample": [3, "file", "#0", "file#-1"],
    "weights": [None],
    "arithmetic": ["exact", None, 32],
    "real_margin": [math.nan, "0"],
    "surprise": [1],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in EDITS.items() for value in values])
def test_every_field_is_checked(name: str, value: Any, tmp_path: Path) -> None:
    """Also where the checksum fits."""
    path = tmp_path / "records.jsonl"
    path.write_text(to_line(asdict(record(0))) + to_line({**asdict(record(1)), name: value}))
    with pytest.raises(UserError, match=r"records\.jsonl is damaged in line 2") as raised:
        RecordFile.open(path)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_line_that_was_edited_is_refused_and_one_without_a_checksum_is_not(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    RecordFile.open(path).add([record(0), record(1, "unknown")])
    path.write_text(path.read_text().replace('"index": 1', '"index": 7'))
    with pytest.raises(UserError, match=r"in line 2: it was changed after it was written; delete that line"):
        RecordFile.open(path)
    older = {k: v for k, v in asdict(record(0)).items() if k not in ("weights", "arithmetic", "real_margin")}
    path.write_text(json.dumps(older) + "\n")
    assert RecordFile.open(path).records == {(0, 0.1): record(0)}
    assert record(0).arithmetic == "real"


def test_all_attacks_are_named() -> None:
    def by(index: int, verdict: Any, attack: str) -> Record:
        return replace(record(index, verdict), attack=attack)

    strong, weak = "pgd steps=100 seed=0", "pgd steps=2 seed=0"
    found = Certificate(
        [
            by(0, "robust", "never made seed=0"),
            by(1, "misclassified", "nor this seed=0"),
            by(2, "falsified", strong),
            by(3, "falsified", strong),
            by(4, "unknown", weak),
        ]
    )
    assert found.attacks() == {strong: {"broken": 2, "unbroken": 0}, weak: {"broken": 0, "unbroken": 1}}
    assert found.attack("asked now") == "pgd steps=100 / pgd steps=2"
    assert Certificate(found.records[:2]).attack("asked now") == "asked now"
    seeds = Certificate([by(0, "unknown", "pgd steps=2 seed=1"), by(1, "unknown", weak)])
    assert seeds.attack() == "pgd steps=2 seed=1 / pgd steps=2 seed=0"


@given(verdicts=st.lists(st.sampled_from(VERDICTS), min_size=1, max_size=30))
def test_errors_follow_from_the_verdicts(verdicts: list[Any]) -> None:
    certificate = Certificate([record(i, verdict) for i, verdict in enumerate(verdicts)])
    errors, counts, total = certificate.errors(0.1), certificate.counts(0.1), len(verdicts)
    assert sum(counts.values()) == total
    wrong = counts["misclassified"] + counts["error"]  # NaN is no right answer
    assert errors["standard_error"] == pytest.approx(wrong / total)
    assert errors["attack_error"] == pytest.approx((wrong + counts["falsified"]) / total)
    assert errors["verified_error"] == pytest.approx((total - verdicts.count("robust")) / total)
    assert errors["standard_error"] <= errors["attack_error"] <= errors["verified_error"] + 1e-12


def test_the_table_has_a_row_for_each_radius() -> None:
    certificate = Certificate([record(i, v, eps) for eps in (0.2, 0.1) for i, v in enumerate(VERDICTS)])
    assert certificate.eps == [0.1, 0.2]
    head, *rows = certificate.rows()
    assert [row[0] for row in rows] == ["0.1", "0.2"]
    assert all(len(row) == len(head) for row in rows)
    assert rows[0][head.index("robust")] == "1"
    *lines, below = certificate.table().splitlines()
    assert below == "proofs in real arithmetic"
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1


def test_a_verifier_that_was_skipped_has_no_error() -> None:
    """milp alone proved image 0: nobody knows whether ibp would have."""
    asked = {"provers": "milp", "by": "milp"}
    mixed = Certificate([Record(**{**asdict(record(0)), **asked}), record(1, "unknown")])
    assert mixed.verifiers(0.1) == ["milp"]
    assert summarize(mixed, attack=Attack(), by=["ibp"], arithmetic="float32")["by"] == ["milp"]
    plain = Certificate([Record(**{**asdict(record(0)), "by": "ibp"})])
    assert summarize(plain, attack=Attack(), by=["ibp", "crown"], arithmetic="float32")["by"] == ["ibp", "crown"]


def test_the_old_name_of_the_attack_error_warns() -> None:
    errors = Certificate([record(0)]).errors(record(0).eps)
    with pytest.warns(DeprecationWarning, match="attack_error"):
        assert errors["pgd_error"] == errors["attack_error"]
    assert set(errors) == {"standard_error", "attack_error", "verified_error"}
    with pytest.raises(KeyError):
        errors["other"]
