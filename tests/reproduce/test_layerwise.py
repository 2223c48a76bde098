"""The figure of layer-wise stages from runs that are unfinished, or have fewer stages than their network allows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from small_runs import StopAt

from advibp.report.sections import ChartSection, TableSection
from advibp.reproduce import PLANS, Ask, Work, make
from advibp.reproduce.carry_out import Measured
from advibp.reproduce.layerwise import LAYERWISE_FIGURE
from advibp.runs.run_files import Certification

NAME = "mnist-a-advibp-0.2-2e-allx1e-300n-s0"


def ask(*folders: Path) -> Ask:
    return Ask(scale="tiny", folders=folders, where={"threads": 1})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished run of all three stages, certified, and kept without weights in `kept` beside it."""
    folder = tmp_path_factory.mktemp("whole")
    make("layerwise-figure", Work(ask(folder / "out")), kept=folder / "kept")
    return folder


def table(made: object, number: int = 0) -> list[dict[str, str]]:
    section = made.sections[number]  # type: ignore[attr-defined]
    assert isinstance(section, TableSection)
    return [dict(zip(section.head, row, strict=True)) for row in section.rows]


def reproduce(out: Path, reuse: Path) -> tuple[list[dict[str, str]], list[dict[str, str]], str]:
    """Both tables and the notes; training would stop with an error, and nothing is written to `reuse`."""
    before = {p: p.stat().st_mtime_ns for p in reuse.rglob("*")}
    made = make("layerwise-figure", Work(ask(out, reuse), show=lambda: StopAt(epoch=1)))
    assert {p: p.stat().st_mtime_ns for p in reuse.rglob("*")} == before
    chart = next(section for section in made.sections if isinstance(section, ChartSection))
    assert [len(series.x) for series in chart.series] == [len(table(made)) // 2] * 2
    return table(made), table(made, 1), "\n".join(made.sections[0].notes)


def test_a_kept_run_makes_the_same_figure(whole: Path, tmp_path: Path) -> None:
    rows, shares, notes = reproduce(tmp_path, whole / "kept")
    assert [row["stage"] for row in rows] == list("01230123")
    assert {row["stages"] for row in shares} == {"3"}
    assert "missing" not in notes
    assert not (tmp_path / NAME).exists()


def test_an_unfinished_run_shows_the_stages_it_has(whole: Path, tmp_path: Path) -> None:
    """It is in stage 2, and nothing of it has been certified."""
    run = tmp_path / "runs" / "under-way"
    shutil.copytree(whole / "out" / NAME, run)
    for name in ("summary.json", "model.safetensors", "stages/stage-2.safetensors", "stages/stage-3.safetensors"):
        (run / name).unlink()
    for folder in run.glob("certify*"):
        shutil.rmtree(folder)
    rows, shares, notes = reproduce(tmp_path / "out", tmp_path / "runs")
    assert [row["stage"] for row in rows] == list("0101")
    assert rows == [row for row in table_of(whole) if row["stage"] in "01"]
    assert {(row["runs"], row["stages"], row["share of the first two, %"]) for row in shares} == {("0", "3", "unknown")}
    assert f"{NAME} has only 1 of its 3 stages" in notes
    # It gets further: the next figure shows more, and certifies only that.
    shutil.copyfile(whole / "out" / NAME / "stages" / "stage-2.safetensors", run / "stages" / "stage-2.safetensors")
    rows, shares, _ = reproduce(tmp_path / "out", tmp_path / "runs")
    assert [row["stage"] for row in rows] == list("012012")
    assert {(row["runs"], row["gain of all"], row["share of the first two, %"]) for row in shares} == {
        ("1", "", "unknown")
    }
    assert all(row["gain of the first two"] for row in shares)


def test_a_run_that_was_trained_with_fewer_stages_is_taken(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "kept" / "two-stages"
    shutil.copytree(whole / "kept" / NAME, run)
    shutil.rmtree(run / "certify-stage-3")
    recipe = (run / "recipe.yaml").read_text()
    assert '\nstages: "all"' in recipe
    (run / "recipe.yaml").write_text(recipe.replace('\nstages: "all"', "\nstages: 2"))
    rows, _, notes = reproduce(tmp_path / "out", tmp_path / "kept")
    assert rows == [row for row in table_of(whole) if row["stage"] in "012"]
    assert f"{NAME} has only 2 of its 3 stages" in notes
    # One with all stages goes first.
    shutil.copytree(whole / "kept" / NAME, tmp_path / "kept" / "whole")
    rows, _, _ = reproduce(tmp_path / "out", tmp_path / "kept")
    assert rows == table_of(whole)
    # Another table does not take it.
    asked = ask(tmp_path / "new", tmp_path / "kept")
    assert all(Work(asked).find(one).how == "train" for one in PLANS["training-time"].specs(asked))


def test_partial_runs_can_be_kept(whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "runs" / NAME
    shutil.copytree(whole / "kept" / NAME, run)
    (run / "summary.json").unlink()
    shutil.rmtree(run / "certify-stage-3")
    make("layerwise-figure", Work(ask(tmp_path / "out", tmp_path / "runs")), kept=tmp_path / "kept")
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [f"{NAME}-partial"]
    rows, _, _ = reproduce(tmp_path / "again", tmp_path / "kept")
    assert [row["stage"] for row in rows] == list("012012")


def table_of(whole: Path) -> list[dict[str, str]]:
    return table(make("layerwise-figure", Work(ask(whole / "out"))))


@pytest.mark.parametrize(
    ("errors", "gains", "share"),
    [
        ((10.0, 9.5, 9.2, 9.0), ("0.80", "1.00"), "80"),
        ((10.0, 9.5, 9.2, 9.6), ("0.80", "0.40"), "200"),
        ((10.0, 9.9, 9.9, 9.0), ("0.10", "1.00"), "10"),
        ((10.0, 9.9, 9.9, 10.1), ("0.10", "-0.10"), "no gain"),
    ],
)
def test_the_share_of_the_first_two_stages(
    errors: tuple[float, ...], gains: tuple[str, str], share: str, tmp_path: Path
) -> None:
    asked = Ask(data="mnist", eps=(0.3,), seeds=(0,))
    (spec,) = LAYERWISE_FIGURE.specs(asked)
    tasks = {task.folder: certification(error) for task, error in zip(spec.tasks, errors, strict=True)}
    (tmp_path / "recipe.yaml").write_text(spec.recipe.to_yaml())
    sections = LAYERWISE_FIGURE.sections(asked, [Measured(spec, tmp_path, tasks, "reuse")])
    assert isinstance(sections[1], TableSection)
    (row,) = sections[1].rows
    assert row == ["MNIST", "dm-small", "advibp", "0.3", "1", "3", *gains, share]


def certification(error: float) -> Certification:
    percent = {"standard_error": 3.0, "pgd_error": 7.0, "verified_error": error}
    summary = {"images": 10_000, "attack": "pgd", "by": ["ibp"], "percent": {"0.3": percent}}
    return Certification(Path(), summary, [], [])
