"""A tuning: its front, its recipes, that it continues, that it prunes, and that it never sees the test set."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_runs import Stop, StopAt, halves
from tuning_kills import check

from advibp import Recipe, TuneOptions, Tuning, UserError, cli, tune
from advibp.data import Data, Split, load
from advibp.runs.studies import Study
from advibp.runs.training_display import Display, Silent
from advibp.runs.tuning import TrialResult

torch.set_num_threads(1)
KEYS: dict[str, Any] = {"net": "FC 8", "eps": 0.1, "epochs": 4, "batch_size": 20, "method": "mtl-ibp"}
SEARCH = ["lr=1e-3..1e-1:log", "alpha=0.01..1:log"]


def tuned(out: Path, *, search: Any = SEARCH, data: Data | None = None, show: Any = None, **options: Any) -> Tuning:
    shown = {} if show is None else {"show": show}
    some = TuneOptions(**{"trials": 3, "sample": 10, "startup": 2, **options})
    return tune(search, out=out, data=halves() if data is None else data, options=some, **shown, **KEYS)


def facts(tuning: Tuning) -> list[TrialResult]:
    return [replace(trial, seconds=0.0) for trial in tuning.trials]


def test_the_front_and_its_recipes(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, trials=5, prune=False)
    assert [trial.state for trial in tuning.trials] == ["complete"] * 5
    for trial in tuning.trials:
        better = [o for o in tuning.trials if all(o.values[k] >= v for k, v in trial.values.items())]
        assert (trial in tuning.front) is all(other.values == trial.values for other in better)
    for trial, file in zip(tuning.front, tuning.recipes, strict=True):
        recipe = Recipe.load(file)
        assert (recipe.lr, recipe.alpha, recipe.method) == (trial.params["lr"], trial.params["alpha"], "mtl-ibp")
    assert sorted((tmp_path / "front").iterdir()) == sorted(tuning.recipes)


def test_one_objective_has_one_best_value(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, objectives=("natural",))
    best = max(trial.values["natural"] for trial in tuning.trials if trial.values)
    assert {trial.values["natural"] for trial in tuning.front} == {best}
    assert not list(tmp_path.rglob("certify-validation"))


def test_a_tuning_continues_after_a_sudden_end_with_the_same_trials(tmp_path: Path) -> None:
    undisturbed = tuned(tmp_path / "undisturbed", trials=4)
    displays: list[Display] = [Silent(), StopAt(step=7), StopAt(epoch=3), Silent(), Silent(), Silent()]
    for _ in range(2):
        with pytest.raises(Stop):
            tuned(tmp_path / "stopped", trials=4, show=lambda name: displays.pop(0))
    continued = tuned(tmp_path / "stopped", trials=4)
    assert facts(continued) == facts(undisturbed)


def test_more_trials_extend_a_tuning(tmp_path: Path) -> None:
    two = facts(tuned(tmp_path, trials=2))
    assert facts(tuned(tmp_path, trials=3))[:2] == two
    assert facts(tuned(tmp_path, trials=1))[:2] == two  # nothing is left to do


def test_an_incomplete_last_line_of_the_journal_is_repaired(tmp_path: Path) -> None:
    before = facts(tuned(tmp_path, trials=2))
    with (tmp_path / "journal.log").open("ab") as file:
        file.write(b'{"op_code": 4, "worker')
    assert facts(tuned(tmp_path, trials=3))[:2] == before


def test_minutes_limit_the_time_of_all_trials_together(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, trials=None, minutes=1e-9)
    assert len(tuning.trials) == 1  # a trial begins before any time was spent
    assert len(tuned(tmp_path, trials=None, minutes=1e-9).trials) == 1


def test_a_trial_that_diverges_has_failed_and_the_search_goes_on(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, search=["max_loss=1e-9,1e6"], trials=4, prune=False)
    states = {trial.params["max_loss"]: trial.state for trial in tuning.trials}
    assert states == {1e-9: "failed", 1e6: "complete"}
    assert all("diverged" in trial.failed for trial in tuning.trials if trial.state == "failed")


def test_bad_trials_are_pruned_after_half_of_their_epochs(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, search=["lr=1e-7,2e-2"], trials=14)
    pruned = [trial for trial in tuning.trials if trial.state == "pruned"]
    assert pruned
    assert all(trial.params["lr"] == 1e-7 for trial in pruned if trial.number > 6) or len(pruned) > 1
    for trial in pruned:
        lines = (tmp_path / "trials" / f"{trial.number:04d}" / "metrics.jsonl").read_text().splitlines()
        assert 2 <= len(lines) < 4


def test_several_methods_have_their_own_keys(tmp_path: Path) -> None:
    tuning = tuned(tmp_path, search=["method=sabr,mtl-ibp", "alpha=0.1..1", "sabr_lambda=0.1..1"], trials=6)
    for trial in tuning.trials:
        own = {"sabr": {"sabr_lambda"}, "mtl-ibp": {"alpha"}}[trial.params["method"]]
        assert trial.params.keys() == {"method", *own}


def test_the_test_set_is_never_read(tmp_path: Path) -> None:
    """Nothing touches the inputs or labels of a data set's test split."""

    class Untouchable(Split):
        def __getattribute__(self, name: str) -> Any:
            if name in ("x", "y", "batch", "batches"):
                raise AssertionError(f"the test set was read: {name}")
            return super().__getattribute__(name)

    data = halves()
    object.__setattr__(data, "test", Untouchable(data.test.x, data.test.y))
    tuned(tmp_path / "passed", data=data, trials=1)


def test_data_without_its_test_set(tmp_path: Path) -> None:
    """The files of the test set need not even exist; the other images are those of the whole data set."""
    x, y = np.random.RandomState(0).randint(0, 255, (40, 4, 4), np.uint8), np.arange(40, dtype=np.uint8) % 2
    for name, values in (("train-images-idx3-ubyte", x), ("train-labels-idx1-ubyte", y)):
        header = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape)
        (tmp_path / name).write_bytes(header + values.tobytes())
    loaded = load(tmp_path, test=False, validation=10)
    assert (len(loaded.train), len(loaded.validation), len(loaded.test)) == (30, 10, 0)
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x[:3], y_test=y[:3])
    whole, part = (load(tmp_path / "all.npz", test=test, validation=10) for test in (True, False))
    assert torch.equal(whole.train.x, part.train.x)
    assert torch.equal(whole.validation.y, part.validation.y)
    assert (len(whole.test), len(part.test)) == (3, 0)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"search": ["lr=1e-3..1e-2:log"]}, "was started with search"),
        ({"seed": 3}, "was started with seed = 0, not 3"),
        ({"objectives": ("certified",)}, "was started with objectives"),
    ],
)
def test_another_tuning_in_the_same_folder_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    tuned(tmp_path, trials=1)
    with pytest.raises(UserError, match=said):
        tuned(tmp_path, **change)


def test_bad_options_are_one_sentence(tmp_path: Path) -> None:
    for options, said in (
        ({"trials": None}, "no end"),
        ({"trials": 0}, "trials is 0"),
        ({"minutes": -1.0}, "minutes is -1"),
        ({"objectives": ()}, "natural, certified or both"),
        ({"objectives": ("fast",)}, "natural, certified or both"),
    ):
        with pytest.raises(UserError, match=said):
            TuneOptions(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="do not use sabr_lambda"):
        tuned(tmp_path, search=["sabr_lambda=0.1..1"])
    (tmp_path / "tune.json").write_text("{")
    with pytest.raises(UserError, match="damaged"):
        tuned(tmp_path)


def test_two_claims_are_two_trials_and_a_lost_one_is_taken_over(tmp_path: Path) -> None:
    one, two = (Study(tmp_path, ("natural",), 0) for _ in range(2))
    with one.claim(2, None) as first, two.claim(2, None) as second:
        assert first is not None
        assert second is not None
        assert (first.number, second.number) == (0, 1)
        with one.claim(2, None) as third:
            assert third is None
    with one.claim(2, None) as again:  # the first is not finished, and nobody holds it
        assert again is not None
        assert again.number == 0


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["tune", "mnist", "FC 5", "--eps", "0.05", "--limit", "200", "--validation", "50", "--epochs", "2"]
    command += ["--warmup-natural", "0", "--ramp", "1", "--method", "mtl-ibp", "--search", "alpha=0.1..1"]
    command += ["--trials", "2", "--sample", "10", "--by", "ibp", "--out", str(tmp_path / "tune"), "--json"]
    assert cli.main(command) == 0
    told = json.loads(capsys.readouterr().out)
    assert len(told["trials"]) == 2
    assert all(Path(file).exists() for file in (*told["recipes"], told["table"], told["page"]))
    assert "Pareto front" in Path(told["page"]).read_text("utf-8")
    assert cli.main(["tune", "mnist", "FC 5", "--search", "alpha"]) == 2
    assert "has no values" in capsys.readouterr().err
    assert cli.main(["train", "--recipe", told["recipes"][0], "--out", str(tmp_path / "run"), "--quiet"]) == 0


@pytest.mark.slow
def test_kill_nine_and_two_processes(tmp_path: Path) -> None:
    assert "equal to those of an undisturbed study" in check(tmp_path, trials=4, kills=2)
