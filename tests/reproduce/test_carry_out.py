"""What is there is taken: finished runs, interrupted ones, and folders that hold numbers alone."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from commands import call
from small_runs import Stop, StopAt

from advibp.errors import UserError
from advibp.reproduce import Ask, Work, make
from advibp.reproduce.run_specs import MNIST, make_task, run_spec
from advibp.storage import checkpoint

TINY = "--scale tiny --threads 1"
NAME = "mnist-a-ibp-0.2-2e-300n-s0"


def ask(out: Path, *reuse: Path) -> Ask:
    return Ask(scale="tiny", methods=("ibp",), folders=(out, *reuse), where={"threads": 1})


def first_rows(folder: Path) -> list[list[str]]:
    """Of the table, without the command."""
    return [row[:-2] for row in csv.reader((folder / "table.csv").read_text("utf-8").splitlines())]


@pytest.fixture(scope="module")
def ibp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run, and its numbers alone in the folder `kept` beside it."""
    folder = tmp_path_factory.mktemp("ibp")
    command = f"reproduce mnist-table {TINY} --methods ibp --out {folder / 'out'} --keep {folder / 'kept'}"
    assert call(command) == 0
    return folder


def test_what_is_kept_is_small_and_makes_the_table_again(
    ibp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = sorted(str(file.relative_to(ibp / "kept")) for file in (ibp / "kept").rglob("*") if file.is_file())
    assert kept == [
        f"{NAME}/{file}" for file in ("certify/summary.json", "metrics.jsonl", "recipe.yaml", "summary.json")
    ]
    command = f"reproduce mnist-table {TINY} --methods ibp --out {tmp_path} --reuse {ibp / 'kept'}"
    assert call(command) == 0
    assert f"(reused: {ibp / 'kept' / NAME})" in capsys.readouterr().out
    assert first_rows(tmp_path / "mnist-table") == first_rows(ibp / "out" / "mnist-table")
    assert not (tmp_path / NAME).exists()


def test_a_kept_run_under_another_name_and_on_other_threads_is_found(ibp: Path, tmp_path: Path) -> None:
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / "pair-7")
    recipe = tmp_path / "kept" / "pair-7" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("threads: 1 ", "threads: 2 "))
    spec = _spec(ask(tmp_path / "out"), (0.1,))
    assert Work(ask(tmp_path / "out", tmp_path / "kept")).find(spec).description.endswith("pair-7")
    recipe.write_text(recipe.read_text().replace("lr: 0.002 ", "lr: 0.003 "))
    assert Work(ask(tmp_path / "out", tmp_path / "kept")).find(spec).how == "train"


def _spec(asked: Ask, eps: tuple[float, ...], **more: object):  # type: ignore[no-untyped-def]
    tasks = [make_task(asked, eps, **more)]  # type: ignore[arg-type]
    return run_spec(asked, MNIST, net="a", method="ibp", eps=0.2, seed=0, tasks=tasks)


def test_numbers_that_do_not_answer_the_question_are_not_taken(ibp: Path, tmp_path: Path) -> None:
    """Another radius or another verifier than was certified: without weights there is nothing but to train."""
    asked = ask(tmp_path, ibp / "kept")
    assert Work(asked).find(_spec(asked, (0.1,))).how == "reuse"
    assert Work(asked).find(_spec(asked, (0.1, 0.2))).how == "train"
    assert Work(asked).find(_spec(asked, (0.1,), by=("ibp", "crown"))).how == "train"
    with_weights = ask(tmp_path, ibp / "out")
    assert Work(with_weights).find(_spec(with_weights, (0.1, 0.2))).how == "copy"


def test_a_run_with_weights_is_copied_and_certified_not_trained(ibp: Path, tmp_path: Path) -> None:
    asked = ask(tmp_path, ibp / "out")
    before = {p: p.stat().st_mtime_ns for p in (ibp / "out").rglob("*") if p.is_file()}
    measured = Work(asked, show=lambda: StopAt(epoch=1)).measure(_spec(asked, (0.1, 0.2)))  # training would stop
    assert measured.run.path == tmp_path / NAME
    assert measured.errors(0.1).standard == measured.errors(0.2).standard
    assert measured.errors(0.2).images == 40
    assert {p: p.stat().st_mtime_ns for p in (ibp / "out").rglob("*") if p.is_file()} == before
    assert Work(asked).find(_spec(asked, (0.2,))).how == "reuse"  # its summary knows both radii
    assert Work(asked).find(_spec(asked, (0.1, 0.2))).how == "reuse"


def test_a_summary_loses_no_radius(ibp: Path, tmp_path: Path) -> None:
    shutil.copytree(ibp / "out" / NAME, tmp_path / NAME)
    asked = ask(tmp_path)
    Work(asked).measure(_spec(asked, (0.2,)))
    assert Work(asked).find(_spec(asked, (0.1, 0.2))).how == "reuse"


def test_an_interrupted_run_continues(ibp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Stop):
        make("mnist-table", Work(ask(tmp_path), show=lambda: StopAt(epoch=1)))
    assert call(f"reproduce mnist-table {TINY} --methods ibp --out {tmp_path}") == 0
    assert "(continued after epoch 1)" in capsys.readouterr().out
    ours, theirs = (checkpoint.load(folder / NAME / "model.safetensors")[0] for folder in (tmp_path, ibp / "out"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)  # to the bit what it would have been
    assert first_rows(tmp_path / "mnist-table") == first_rows(ibp / "out" / "mnist-table")


def test_another_run_of_that_name_is_refused(ibp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ibp / "kept" / NAME, tmp_path / NAME)
    recipe = tmp_path / NAME / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 0.002 ", "lr: 0.003 "))
    assert call(f"reproduce mnist-table {TINY} --methods ibp --out {tmp_path}") == 2
    assert f"{NAME} has a run with another lr; choose another --out" in capsys.readouterr().err


def test_a_damaged_run_elsewhere_is_passed_over(ibp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ibp / "kept", tmp_path / "kept")
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / "damaged")
    (tmp_path / "kept" / "damaged" / "recipe.yaml").write_text("lr: [")
    (tmp_path / "kept" / "notes.txt").write_text("no run")
    assert call(f"reproduce mnist-table {TINY} --methods ibp --out {tmp_path / 'out'} --reuse {tmp_path / 'kept'}") == 0
    assert "skipped" in capsys.readouterr().out


def test_another_run_is_not_overwritten_by_what_is_kept(
    ibp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused before anything is trained."""
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / NAME)
    recipe = tmp_path / "kept" / NAME / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("lr: 0.002 ", "lr: 0.003 "))
    before = recipe.read_text()
    command = f"reproduce mnist-table {TINY} --methods ibp --out {tmp_path / 'out'} --keep {tmp_path / 'kept'}"
    assert call(command) == 2
    assert "has a run with another lr; give another folder to --keep" in capsys.readouterr().err
    assert recipe.read_text() == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("change", [{"seed": 7}, {"sample": 41}, {"images": 41}, {"attack": "apgd"}, {"by": ["crown"]}])
def test_a_certification_of_other_images_or_by_another_attack_is_no_answer(
    ibp: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / NAME)
    file = tmp_path / "kept" / NAME / "certify" / "summary.json"
    asked = ask(tmp_path / "out", tmp_path / "kept")
    assert Work(asked).find(_spec(asked, (0.1,))).how == "reuse"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    assert Work(asked).find(_spec(asked, (0.1,))).how == "train"


def test_a_kept_summary_that_does_not_name_its_weights_is_taken(ibp: Path, tmp_path: Path) -> None:
    """As older versions wrote it, in a folder without weights."""
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / NAME)
    file = tmp_path / "kept" / NAME / "certify" / "summary.json"
    said = json.loads(file.read_text())
    del said["weights"]
    file.write_text(json.dumps(said))
    asked = ask(tmp_path / "out", tmp_path / "kept")
    assert Work(asked).find(_spec(asked, (0.1,))).how == "reuse"


def test_less_time_is_no_answer_to_a_search(ibp: Path, tmp_path: Path) -> None:
    shutil.copytree(ibp / "kept" / NAME, tmp_path / "kept" / NAME)
    file = tmp_path / "kept" / NAME / "certify" / "summary.json"
    asked = ask(tmp_path / "out", tmp_path / "kept")
    for budget, how in ((0.5, "train"), (1.0, "reuse"), (60.0, "reuse")):
        said = {**json.loads(file.read_text()), "by": ["ibp", "milp"], "budget": budget}
        file.write_text(json.dumps(said))
        assert Work(asked).find(_spec(asked, (0.1,), by=("ibp", "milp"))).how == how


def test_proofs_of_other_verifiers_do_not_count_for_ibp(ibp: Path, tmp_path: Path) -> None:
    """CROWN proved the images before IBP was tried, so that the error of IBP alone is unknown."""
    shutil.copytree(ibp / "out" / NAME, tmp_path / NAME)
    shutil.rmtree(tmp_path / NAME / "certify")
    assert call(f"certify {tmp_path / NAME} --eps 0.001 --sample 40 --attack-steps 5 --threads 1 --by crown") == 0
    asked = ask(tmp_path)
    with pytest.raises(UserError, match="before ibp was tried"):
        Work(asked).measure(_spec(asked, (0.001,)))
