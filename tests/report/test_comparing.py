"""Comparison of runs: incomparable numbers give a warning."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, halves
from hypothesis import given
from hypothesis import strategies as st

from advibp.cli.compare_command import fitting, markdown
from advibp.errors import UserError
from advibp.report.comparing import Comparison
from advibp.report.sections import TableSection
from advibp.runs.run_files import read_run
from advibp.verify.records import Record, Verdict

torch.set_num_threads(1)

PGD = "pgd steps=10 step=0.1eps restarts=1 loss=ce random start"


def record(index: int, eps: float, verdict: Verdict, **changes: Any) -> Record:
    said: dict[str, Any] = {"by": "ibp" if verdict == "robust" else None, "provers": "ibp", "attack": f"{PGD} seed=0"}
    said |= {"lower_margin": None, "seconds": 0.1, "model": "m", "image": f"image-{index}"}
    return Record(index=index, eps=eps, label=0, prediction=0, verdict=verdict, **(said | changes))


def make(folder: Path, records: Sequence[Record] = (), **recipe: Any) -> Path:
    """A run that is not finished, as far as its files say it, with what `certify` would have left."""
    (folder / "certify").mkdir(parents=True)
    said = {"data": "mnist", "net": "a", "method": "advibp", "eps": 0.1, "epochs": 4.0} | recipe
    (folder / "recipe.yaml").write_text(json.dumps(said))
    if records:
        (folder / "certify" / "records.jsonl").write_text("".join(json.dumps(asdict(r)) + "\n" for r in records))
    return folder


def verdicts(text: str, **changes: Any) -> list[Record]:
    """One image a letter: r(obust) or u(nknown)."""
    return [record(k, 0.1, "robust" if letter == "r" else "unknown", **changes) for k, letter in enumerate(text)]


def sections(*folders: Path) -> dict[str, TableSection]:
    return {section.title: section for section in Comparison([read_run(path) for path in folders]).sections()}


def table(section: TableSection) -> dict[str, list[str]]:
    return {row[0]: [cell.strip() for cell in row[1:]] for row in section.rows}


def warned(section: TableSection) -> str:
    return "\n".join(note for note in section.notes if note.startswith("Not comparable"))


def test_images_are_paired_by_fingerprint_not_by_place(tmp_path: Path) -> None:
    first = make(tmp_path / "first", verdicts("rrrrruuu"))
    turned = [Record(**{**asdict(r), "index": 7 - r.index}) for r in verdicts("ruuuuuur")]
    other = make(tmp_path / "other", turned)
    tests = sections(first, other)["errors on test images"]
    expected = "first proves 4 images that other does not, other 1 that first does not, of 8: p = 0.38"
    assert tests.notes[0] == f"eps 0.1: {expected}"
    assert not warned(tests)


def test_networks_that_prove_the_same_images(tmp_path: Path) -> None:
    pair = [make(tmp_path / name, verdicts("rrru")) for name in ("a", "b")]
    assert "a and b prove the same 3 of 4 images." in sections(*pair)["errors on test images"].notes[0]


def test_proofs_of_different_arithmetics_are_not_paired(tmp_path: Path) -> None:
    """One network has to prove more than the other, so no p-value says which is better."""
    kinds = ("real", "float32")
    pair = [make(tmp_path / kind, verdicts("rrru" if kind == "real" else "ruuu", arithmetic=kind)) for kind in kinds]
    tests = sections(*pair)["errors on test images"]
    assert "the proofs cover different arithmetics (real: real; float32: float32)" in warned(tests)
    assert not any("does not" in note for note in tests.notes)


def test_errors_and_their_difference_to_the_first_run(tmp_path: Path) -> None:
    runs = make(tmp_path / "a", verdicts("rruu")), make(tmp_path / "b", verdicts("ruuu")), make(tmp_path / "c")
    tests = sections(*runs)["errors on test images"]
    assert tests.head == ["", "a", "b", "c"]
    assert table(tests)["not proved by ibp"] == ["50.00 %", "75.00 % (+25.00)", "–"]
    assert table(tests)["eps 0.1"] == ["4 images", "4 images", "–"]
    assert "c is not certified." in tests.notes


def test_different_attacks_images_and_verifiers_give_a_warning(tmp_path: Path) -> None:
    first = make(tmp_path / "first", verdicts("rruu"))
    others = {
        "attacks": make(tmp_path / "attack", verdicts("rruu", attack="apgd steps=5 seed=0")),
        "images": make(tmp_path / "more", verdicts("rruur")),
        "verifiers": make(tmp_path / "by", verdicts("rruu", provers="ibp crown")),
    }
    for what, other in others.items():
        told = warned(sections(first, other)["errors on test images"])
        assert f"the {what} differ" in told
        assert told.count("\n") == 0
    same = make(tmp_path / "same", verdicts("ruuu", attack=f"{PGD} seed=1"))  # another seed is no other attack
    assert not warned(sections(first, same)["errors on test images"])
    # What only one was asked is a dash for the other, and all together are a row of their own.
    rows = table(sections(first, others["verifiers"])["errors on test images"])
    assert rows["not proved by crown"] == ["–", "50.00 %"]
    assert rows["not proved by any"] == ["50.00 %", "50.00 % (+0.00)"]


def test_an_eps_is_the_same_in_records_and_summaries(tmp_path: Path) -> None:
    eps = 8 / 255
    first = make(tmp_path / "records", [record(0, eps, "robust"), record(1, eps, "unknown")])
    kept = make(tmp_path / "numbers")
    percent = {f"{eps:g}": {"standard_error": 0.0, "pgd_error": 0.0, "verified_error": 50.0}}
    told = {"percent": percent, "by": ["ibp"], "images": 2, "attack": PGD}
    (kept / "certify" / "summary.json").write_text(json.dumps(told))
    tests = sections(first, kept)["errors on test images"]
    assert table(tests)["not proved by ibp"] == ["50.00 %", "50.00 % (+0.00)"]
    assert not warned(tests)
    del told["by"]
    (kept / "certify" / "summary.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match="is damaged"):
        sections(first, kept)


def test_only_what_differs_in_the_recipes_is_shown(tmp_path: Path) -> None:
    runs = make(tmp_path / "a", lr=0.3, published={"x": 1}), make(tmp_path / "b", lr=0.3000000001, flip=None)
    assert table(sections(*runs)["recipes: keys that differ"]) == {"lr": ["0.3", "0.3000000001"], "flip": ["–", "none"]}
    same = make(tmp_path / "c"), make(tmp_path / "d")
    told = sections(*same)["recipes: keys that differ"]
    assert (list(told.rows), list(told.notes)) == ([], ["The recipes are the same."])


def test_many_runs_are_rows(tmp_path: Path) -> None:
    runs = [make(tmp_path / f"run-{k}", verdicts("r" * k + "u" * (5 - k)), eps=k / 10 + 0.1) for k in range(5)]
    told = sections(*runs)
    tests = told["errors on test images, eps 0.1"]
    assert [row[0] for row in tests.rows] == [f"run-{k}" for k in range(5)]
    assert list(tests.head)[1:] == ["eps 0.1", "standard error", "attack error", "not proved by ibp"]
    assert tests.rows[2][4].strip() == "60.00 % (-40.00)"
    assert list(told["recipes: keys that differ"].head) == ["", "eps"]


def test_runs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    a, b = make(tmp_path / "a" / "run"), make(tmp_path / "b" / "run", eps=0.2)
    assert Comparison([read_run(a), read_run(b)]).names == ["a/run", "b/run"]
    with pytest.raises(UserError, match="given twice"):
        Comparison([read_run(a), read_run(tmp_path / "b" / ".." / "a" / "run")])


@given(widths=st.lists(st.integers(1, 30), min_size=2, max_size=15))
def test_every_column_is_printed_once_and_tables_fit(widths: list[int]) -> None:
    section = TableSection(title="", head=["x" * width for width in widths], rows=[["1"] * len(widths)])
    parts = list(fitting(section, 120))
    assert [i for part in parts for i in part[1:]] == list(range(1, len(widths)))
    assert all(part[0] == 0 for part in parts)
    assert all(1 + sum(min(widths[i], 20) + 3 for i in part) <= 120 for part in parts)


def test_markdown_shows_hostile_names_as_they_are() -> None:
    told = markdown(TableSection(title="t", head=["", "a|b<script>"], rows=[["x_y", "1*2"]], notes=["*n*"]))
    assert "a\\|b&lt;script>" in told
    assert "| x\\_y | 1\\*2 |" in told
    assert "- \\*n\\*" in told


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs as training and certifying leave them, and one of them kept for its numbers alone."""
    here = tmp_path_factory.mktemp("real")
    x, y = halves(150)
    np.savez(here / "data.npz", x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    options = "--epochs 3 --warmup-natural 1 --warmup-adversarial 0 --ramp 1 --eps 0.1 --lr 0.02 --batch-size 20"
    for seed in (0, 1):
        run = here / f"seed-{seed}"
        common = f"--validation 30 --threads 1 --seed {seed} --out {run}"
        assert call(f"train {here}/data.npz 'FC 8' {options} {common}") == 0
        assert call(f"certify {run} --eps 0.05 0.1 --attack-steps 5 --by ibp crown") == 0
    (here / "kept" / "certify").mkdir(parents=True)
    for name in ("recipe.yaml", "summary.json", "metrics.jsonl", "certify/summary.json"):
        shutil.copy(here / "seed-1" / name, here / "kept" / name)
    return here


def test_real_runs_in_the_terminal(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"compare {real}/seed-0 {real}/seed-1") == 0
    told = capsys.readouterr().out
    assert all(len(line) <= 120 for line in told.splitlines())
    assert "│ seed " in told
    assert "not proved by crown" in told
    assert "Not comparable" not in told
    assert "of 40" in " ".join(told.split())


def test_summaries_and_records_give_the_same_errors(real: Path) -> None:
    whole, kept = (sections(real / "seed-0", real / name)["errors on test images"] for name in ("seed-1", "kept"))
    assert table(whole) == table(kept)
    assert not warned(kept)
    assert any("proves" in note or "prove the same" in note for note in whole.notes)
    assert not any("prove" in note for note in kept.notes)  # there is nothing to pair


def test_an_unfinished_run_shows_its_epochs(real: Path, tmp_path: Path) -> None:
    for name in ("recipe.yaml", "metrics.jsonl"):
        shutil.copy(real / "seed-1" / name, tmp_path / name)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:2]))
    told = sections(real / "seed-0", tmp_path)
    assert table(told["training"])["epochs"] == ["3", "2 of 3"]
    assert any("is not finished" in note for note in told["training"].notes)


def test_markdown_is_what_the_terminal_shows(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(f"compare {real}/seed-0 {real}/seed-1 --markdown") == 0
    told = capsys.readouterr().out
    assert "### errors on test images" in told
    rows = [line for line in told.splitlines() if line.startswith("|")]
    assert all(row.count("|") == 4 for row in rows)
    assert "| seed | 0 | 1 |" in rows


def test_mistakes_are_one_sentence(real: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (f"{real}/seed-0", f"{real}/seed-0 {real}/nothing", f"{real}/seed-0 {real}/seed-0"):
        assert call(f"compare {command}") == 2
        told = capsys.readouterr()
        assert told.out == ""
        assert told.err.startswith("error: ")
        assert told.err.count("\n") == 1
