"""A run's folder is read as it lies there; what is damaged is told in a sentence."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import call

from advibp.errors import UserError
from advibp.runs.run_files import read_run
from advibp.storage import checkpoint
from advibp.storage.json_lines import to_line
from advibp.verify.records import VERDICTS, RecordFile


@pytest.fixture
def folder(trained: dict[str, Path], tmp_path: Path) -> Path:
    """A copy of the first run."""
    copy = tmp_path / "copy"
    shutil.copytree(trained["first"], copy)
    return copy


def test_read_run(trained: dict[str, Path]) -> None:
    run = read_run(trained["first"])
    assert (run.name, run.recipe["method"], run.recipe["eps"]) == ("first", "advibp", 0.05)
    assert run.summary is not None
    assert [epoch["epoch"] for epoch in run.history] == [1, 2, 3, 4, 5]
    assert run.last is not None
    assert run.last.eps == [0.01, 0.05]
    assert len(run.last.records) == 120
    assert len(run.last.radii) == 60
    assert run.last.attack == "pgd steps=10 step=0.1eps restarts=1 loss=ce random start"


def test_errors_are_ordered_and_follow_from_the_verdicts(trained: dict[str, Path]) -> None:
    for name in ("first", "second"):
        certified = read_run(trained[name]).last
        assert certified is not None
        for eps in certified.eps:
            errors, counts, flow = certified.errors(eps), certified.counts(eps), certified.outcomes(eps)
            verified = list(errors.verified.values())
            assert 0 <= errors.standard <= errors.attack <= errors.best <= 100
            assert verified == sorted(verified, reverse=True)  # who is asked later proves no less
            assert errors.best == pytest.approx(100 * (1 - counts["robust"] / errors.images))
            assert sum(decided.images for decided in flow) == sum(counts.values()) == errors.images == 60
            assert set(counts) <= set(VERDICTS)


def test_summary_and_records_agree(trained: dict[str, Path]) -> None:
    whole, bare = read_run(trained["first"]).last, read_run(trained["bare"]).last
    assert whole is not None
    assert bare is not None
    assert not bare.records
    assert bare.eps == whole.eps
    for eps in whole.eps:
        one, other = whole.errors(eps), bare.errors(eps)
        assert one.images == other.images
        assert (one.standard, one.attack) == pytest.approx((other.standard, other.attack), abs=0.005)  # rounded
        assert one.verified == pytest.approx(other.verified, abs=0.005)
        assert whole.counts(eps) == bare.counts(eps)
        assert whole.outcomes(eps) == bare.outcomes(eps)


def test_a_run_that_has_just_begun(folder: Path) -> None:
    for name in ("summary.json", "model.safetensors", "metrics.jsonl"):
        (folder / name).unlink()
    shutil.rmtree(folder / "certify")
    run = read_run(folder)
    assert run.summary is None
    assert run.history == []
    assert run.last is None


def test_incomplete_line_is_skipped_and_later_lines_win(folder: Path) -> None:
    records = folder / "certify" / "records.jsonl"
    first = json.loads(records.read_text().splitlines()[0])
    del first["checksum"]
    with records.open("a") as file:
        file.write(to_line({**first, "lower_margin": 0.25}) + '{"index": 3, "eps"')
    certified = read_run(folder).last
    assert certified is not None
    assert len(certified.records) == 120
    (newest,) = [r for r in certified.records if (r.index, r.eps) == (first["index"], first["eps"])]
    assert newest.lower_margin == 0.25


def test_stages_come_before_the_last_network(folder: Path) -> None:
    for name in ("certify-stage-10", "certify-stage-2", "certify-stage-x"):
        shutil.copytree(folder / "certify", folder / name)
    assert list(read_run(folder).certified) == [2, 10, None]


_SAID: dict[str, Any] = {"by": ["ibp"], "images": 3, "verdicts": {"0.1": {"robust": 3}}}
_PERCENT = {"standard_error": 1, "pgd_error": 2, "verified_error": 3}


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ("recipe.yaml", "- a\n- list\n"),
        ("recipe.yaml", "a: [\n"),
        ("recipe.yaml", "a: &a [*a]\n"),
        ("summary.json", "[]"),
        ("summary.json", "{"),
        ("metrics.jsonl", "3\n"),
        ("metrics.jsonl", '{"phase": "ramp"}\n'),
        ("metrics.jsonl", '{"epoch": 1}\nnot json\n{"epoch": 2}\n'),
        ("certify/records.jsonl", '{"index": 0}\n'),
        ("certify/radii.jsonl", '{"index": "0"}\n'),
        ("certify/radii.jsonl", "[" * 100_000 + "\n"),
        ("certify/summary.json", json.dumps({**_SAID, "percent": 3})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": {}}})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"nan": _PERCENT}})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": {**_PERCENT, "verified_error": "3"}}})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": _PERCENT}, "by": []})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": _PERCENT}, "verdicts": 3})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": _PERCENT}, "flow": {"0.1": [{"by": 3}]}})),
        ("certify/summary.json", json.dumps({**_SAID, "percent": {"0.1": _PERCENT}, "attack": 3})),
        ("metrics.jsonl", '{"epoch": Infinity}\n'),
    ],
)
def test_damaged_file_is_named(trained: dict[str, Path], tmp_path: Path, file: str, said: str) -> None:
    folder = tmp_path / "damaged"
    shutil.copytree(trained["bare"], folder)
    (folder / file).write_text(said)
    with pytest.raises(UserError, match="is damaged") as told:
        read_run(folder)
    assert file in str(told.value)


@pytest.mark.parametrize(
    "change",
    [
        {"eps": "0.1"},
        {"eps": 10**400},
        {"verdict": "fine"},
        {"index": None},
        {"index": 0.5},
        {"by": []},
        {"counterexample": 3},
        {"lower_margin": "low"},
        {"seconds": "nan"},
    ],
)
def test_invalid_record_is_refused(folder: Path, change: dict[str, Any]) -> None:
    records = folder / "certify" / "records.jsonl"
    first, *others = records.read_text().splitlines(keepends=True)
    said = json.loads(first)
    del said["checksum"]
    records.write_text("".join([to_line({**said, **change}), *others]))
    with pytest.raises(UserError, match=r"records\.jsonl is damaged"):
        read_run(folder)


def test_a_folder_without_a_recipe_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        read_run(tmp_path)


def test_records_of_an_earlier_network_are_not_counted(folder: Path) -> None:
    """The same folder after more training, and after some images of one eps were certified again."""
    records = folder / "certify" / "records.jsonl"
    file = RecordFile.open(records)
    old = [replace(record, weights="") for record in file.records.values() if record.eps == 0.05]
    new = [replace(record, model="of another network") for record in old][:10]
    file.add(new)
    file.compact()
    certified = read_run(folder).last
    assert certified is not None
    assert certified.records == new
    assert certified.eps == [0.05]
    assert certified.errors(0.05).images == 10


def test_certificates_of_other_weights_are_omitted_with_a_message(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Also if there is only a summary. Without weights nothing is compared."""
    tensors, facts = checkpoint.load(folder / "model.safetensors")
    changed = {name: 1.01 * tensor if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    checkpoint.save(folder / "model.safetensors", changed, facts)
    for _ in ("records", "summary alone"):
        run = read_run(folder)
        assert run.certified == {}
        assert "certifies other weights" in run.stale[None]
        for name in ("records.jsonl", "radii.jsonl"):
            (folder / "certify" / name).unlink(missing_ok=True)
    assert call(f"report {folder} --out {tmp_path / 'page.html'}") == 0
    assert "certifies other weights than the run has now; certify it again." in capsys.readouterr().out
    assert "certifies other weights" in (tmp_path / "page.html").read_text()
    assert call(f"certify {folder} --eps 0.05 --limit 10 --attack-steps 2 --threads 1") == 0
    again = read_run(folder)
    assert again.stale == {}
    assert again.last is not None
    assert len(again.last.records) == 10
    (folder / "model.safetensors").write_bytes(b"damaged")
    assert read_run(folder).certified == {}
    (folder / "model.safetensors").unlink()
    assert len(read_run(folder).certified) == 1


def test_attack_of_earlier_records_is_described(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_run(folder).last
    assert before is not None
    broken = before.counts(0.05)["falsified"]
    assert broken
    capsys.readouterr()
    assert call(f"certify {folder} --eps 0.05 --limit 60 --attack-steps 1 --threads 1") == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"earlier call: pgd steps=10 step=0.1eps restarts=1 loss=ce random start seed=0: {broken} broken" in shown
    after = read_run(folder).last
    assert after is not None
    for told in (after.attack, after.summary["attack"]):
        assert "steps=10 " in told
    assert sum(counts["broken"] for counts in after.summary["attacks"].values()) == broken
    assert any("steps=10 " in name for name in after.summary["attacks"])


def test_proofs_are_attributed_to_their_verifier(folder: Path) -> None:
    """Proofs by CROWN stay CROWN's after a later call with only IBP, with records and without."""
    before = read_run(folder).last
    assert before is not None
    crown = sum(d.images for d in before.outcomes(0.01) if (d.by, d.verdict) == ("crown", "robust"))
    assert crown > 0
    assert call(f"certify {folder} --eps 0.01 --limit 60 --attack-steps 12 --threads 1 --by ibp") == 0
    for _ in ("records", "summary alone"):
        certified = read_run(folder).last
        assert certified is not None
        verified = certified.errors(0.01).verified
        assert verified == pytest.approx(before.errors(0.01).verified, abs=0.005)
        assert verified["ibp"] - verified["crown"] == pytest.approx(100 * crown / 60, abs=0.01)
        (folder / "certify" / "records.jsonl").unlink(missing_ok=True)


def test_other_data_have_a_folder_of_their_own(folder: Path) -> None:
    own = folder / "own.npz"
    x, y = np.zeros((200, 28, 28), dtype=np.float32), np.arange(200) % 10
    np.savez(own, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    before = (folder / "certify" / "records.jsonl").read_bytes()
    assert call(f"certify {folder} --data {own} --eps 0.05 --attack-steps 2 --threads 1") == 0
    assert (folder / "certify" / "records.jsonl").read_bytes() == before
    assert (folder / "certify-on-own" / "summary.json").exists()
    assert list(read_run(folder).certified) == [None]
