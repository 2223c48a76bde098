"""A run that was stopped anywhere and resumed ends as if it had never been stopped, to the bit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_runs import Stop, StopAt, ends_alike, halves
from torch import Tensor, nn

from advibp import CollapseWarning, Recipe, Run, UserError, cli, data, nets, open_run, read_run, runs, train
from advibp.runs.resuming import recipe_of
from advibp.runs.training_display import Silent
from advibp.storage import checkpoint
from advibp.storage.run_folder import KEPT_CHECKPOINTS, RunFolder
from advibp.training import Training
from advibp.verify.ibp_margins import Evaluation

torch.set_num_threads(1)

EPOCHS = 6
OPTIONS: dict[str, Any] = {"net": "FC 8", "epochs": EPOCHS, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 2}
OPTIONS |= {"batch_size": 20, "eps": 0.2, "lr": 0.01, "c_max": "auto"}


def run(out: Path | None, show: Silent | None = None, resume: bool = False, **options: Any) -> Run:
    recipe = Recipe.load(**{**OPTIONS, **options})
    net = nets.build(recipe.net, (1, 4, 4), 2, seed=3)
    return train(net, halves(), out=out, resume=resume, recipe=recipe, show=show or Silent())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run(tmp_path_factory.mktemp("undisturbed") / "run")


def test_a_run_is_deterministic_and_kept_as_it_was(undisturbed: Run) -> None:
    assert ends_alike(undisturbed, run(None))
    assert undisturbed.path is not None
    folder = RunFolder(undisturbed.path)
    assert folder.history() == undisturbed.history
    assert [m["epoch"] for m in folder.history()] == list(range(1, EPOCHS + 1))
    assert Recipe.of(folder.recipe()) == undisturbed.recipe
    assert json.loads((folder.path / "summary.json").read_text()) == undisturbed.summary
    assert len(checkpoint.newest(folder.checkpoints)) == KEPT_CHECKPOINTS


@pytest.mark.parametrize("epoch", range(1, EPOCHS + 1))
def test_resuming_after_any_epoch_changes_nothing(epoch: int, undisturbed: Run, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path / "run", StopAt(epoch=epoch))
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True))
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == EPOCHS


@pytest.mark.parametrize("step", [1, 2, 7, 11, 18])
def test_resuming_after_any_step_changes_nothing(step: int, undisturbed: Run, tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path / "run", StopAt(step=step))
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True))


@pytest.mark.parametrize("name", ["log", "save_checkpoint", "save_model", "write_summary", "create"])
def test_resuming_after_a_stop_between_two_files_changes_nothing(
    name: str, undisturbed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped before one of the files was written."""

    def stop(self: RunFolder, *args: Any) -> None:
        if name in ("log", "save_checkpoint") and not (self.checkpoints / checkpoint.file_name(3)).exists():
            return real(self, *args)
        raise Stop

    real = getattr(RunFolder, name)
    monkeypatch.setattr(RunFolder, name, stop)
    with pytest.raises(Stop):
        run(tmp_path / "run")
    monkeypatch.undo()
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True))
    assert (tmp_path / "run" / "summary.json").exists()


def test_a_finished_run_can_be_resumed_and_stays(undisturbed: Run, tmp_path: Path) -> None:
    run(tmp_path / "run")
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True))
    kept, _ = checkpoint.load(tmp_path / "run" / "model.safetensors")
    assert all(torch.equal(v, kept[k]) for k, v in undisturbed.net.state_dict().items())


def stopped(out: Path, epoch: int = 4) -> list[Path]:
    """Return the checkpoints, newest first, of a run that was stopped after an epoch."""
    with pytest.raises(Stop):
        run(out, StopAt(epoch=epoch))
    return checkpoint.newest(out / "checkpoints")


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_damaged_checkpoint_is_skipped(
    share: float, undisturbed: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest, _ = stopped(tmp_path / "run")
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    again = run(tmp_path / "run", resume=True)
    assert ends_alike(undisturbed, again)
    told = [record.getMessage() for record in caplog.records if record.name.startswith("advibp")]
    assert len(told) == 1
    assert told[0].startswith("skipped: ")
    assert newest.name in told[0]
    assert [m["epoch"] for m in RunFolder(tmp_path / "run").history()] == list(range(1, EPOCHS + 1))


def test_all_checkpoints_damaged(tmp_path: Path) -> None:
    for path in stopped(tmp_path / "run"):
        path.write_bytes(path.read_bytes()[:-1])
    metrics = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(UserError, match=r"All checkpoints .* are damaged") as raised:
        run(tmp_path / "run", resume=True)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.parametrize(
    ("key", "value"),
    [("lr", 0.02), ("eps", 0.1), ("seed", 1), ("method", "fixed"), ("net", "FC 9"), ("clip", "none")],
)
def test_resuming_with_another_recipe_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    stopped(tmp_path / "run", epoch=1)
    with pytest.raises(UserError, match=rf"\b{key} = ") as raised:
        run(tmp_path / "run", resume=True, **{key: value})
    assert "\n" not in str(raised.value)


def test_device_and_threads_may_change_when_resumed(undisturbed: Run, tmp_path: Path) -> None:
    stopped(tmp_path / "run")
    assert ends_alike(undisturbed, run(tmp_path / "run", resume=True, device="cpu", threads=1))


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    stopped(tmp_path / "run", epoch=1)
    before = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    with pytest.raises(UserError, match="--resume"):
        run(tmp_path / "run")
    assert {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()} == before


# The best weights


class Watch(StopAt):
    """Keeps the weights of every epoch."""

    def __init__(self, **when: int) -> None:
        super().__init__(**when)
        self.weights: dict[int, dict[str, Tensor]] = {}

    def epoch(self, training: Training, metrics: dict[str, Any]) -> None:
        self.weights[training.epoch] = {k: v.clone() for k, v in training.net.state_dict().items()}
        super().epoch(training, metrics)


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Validation errors by epoch: the least are before full eps, where they do not count; then 6 and 7 are best."""
    by_epoch = {1: 0.0, 2: 0.0, 3: 0.0, 4: 0.0, 5: 0.5, 6: 0.2, 7: 0.2, 8: 0.4}
    y = torch.zeros(100, dtype=torch.long)

    def validate(training: Training) -> Evaluation:
        return Evaluation(y, (torch.arange(100) < 10).long(), torch.arange(100) >= 100 * by_epoch[training.epoch])

    monkeypatch.setattr(Training, "validate", validate)


def same_weights(net: nn.Module, weights: dict[str, Tensor]) -> bool:
    return all(torch.equal(v, weights[k]) for k, v in net.state_dict().items())


@pytest.mark.usefixtures("errors")
@pytest.mark.parametrize("stop", [5, 6, 7])
def test_select_best_is_the_last_best_epoch_at_full_eps(stop: int, tmp_path: Path) -> None:
    """Also when the run is resumed before, at or after its best epoch, or kept in no folder at all."""
    watch = Watch()
    whole = run(None, watch, epochs=8, select="best")
    with pytest.raises(Stop):
        run(tmp_path / "run", StopAt(epoch=stop), epochs=8, select="best")
    resumed = run(tmp_path / "run", resume=True, epochs=8, select="best")
    for done in (whole, resumed):
        assert same_weights(done.net, watch.weights[7])
        assert done.summary["validation"] == {"epoch": 7, "standard_error": 0.1, "verified_error": 0.2}
    assert not same_weights(whole.net, watch.weights[8])
    assert same_weights(open_run(tmp_path / "run").net, watch.weights[7])


@pytest.mark.usefixtures("errors")
def test_select_last(tmp_path: Path) -> None:
    watch = Watch()
    assert same_weights(run(tmp_path / "run", watch, epochs=8).net, watch.weights[8])


# Opening a run


@pytest.mark.parametrize("normalize", [False, True])
def test_a_run_is_opened_as_it_was_trained(normalize: bool, tmp_path: Path) -> None:
    problem = halves()
    recipe = Recipe.load(**OPTIONS, normalize=normalize)
    done = train(runs.first_net(recipe, problem), problem, recipe=recipe, out=tmp_path / "run", show=Silent())
    opened = open_run(tmp_path / "run")
    # The data were given in Python.
    assert opened.recipe == dataclasses.replace(recipe, data="halves", validation=len(problem.validation))
    assert opened.history == done.history
    assert opened.summary == done.summary
    assert opened.path == tmp_path / "run"
    assert not opened.net.training
    assert len(opened.net) == len(nets.build("FC 8", (1, 4, 4), 2)) + normalize
    assert torch.equal(opened.net(problem.test.x), done.net(problem.test.x))


def test_unpacking_an_opened_run_is_deprecated(tmp_path: Path) -> None:
    run(tmp_path / "run")
    opened = open_run(tmp_path / "run")
    with pytest.warns(DeprecationWarning, match="run.net"):
        net, recipe = opened
    assert (net, recipe) == (opened.net, opened.recipe)
    with pytest.warns(DeprecationWarning, match="run.net"):
        assert opened[0] is opened.net


def test_a_run_that_is_not_finished_is_not_opened(tmp_path: Path) -> None:
    stopped(tmp_path / "run", epoch=1)
    with pytest.raises(UserError, match="not finished"):
        open_run(tmp_path / "run")


def test_folder_without_a_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run"):
        open_run(tmp_path)


@pytest.mark.parametrize("content", ["", "- 1", "a: [", "nothing: 1", "\udce9"])
def test_a_damaged_recipe_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(UserError) as raised:
        open_run(tmp_path)
    assert "\n" not in str(raised.value)


def test_open_run_with_a_user_network(tmp_path: Path) -> None:
    def own() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))

    recipe = Recipe.load(**{**OPTIONS, "net": "somewhere/own.py:make"})
    done = train(own(), halves(), out=tmp_path / "run", show=Silent(), recipe=recipe)
    with pytest.raises(UserError, match="user-defined network"):
        open_run(tmp_path / "run")
    net = open_run(tmp_path / "run", own()).net
    assert torch.equal(net(halves().test.x), done.net(halves().test.x))


def test_stored_recipe_is_complete(undisturbed: Run) -> None:
    assert undisturbed.path is not None
    text = (undisturbed.path / "recipe.yaml").read_text()
    assert Recipe.of(yaml.safe_load(text)) == undisturbed.recipe
    assert set(yaml.safe_load(text)) == set(undisturbed.recipe.as_dict())


# Kill -9


KILLS = 10
KILLER = """
import os, random, resource, signal, sys
import tensorboardX, torch, torch._dynamo  # what every start would import again: each child is a fork of this process
from advibp.cli import main

torch.set_num_threads(1)
data, whole, broken = sys.argv[1:4]
options = "--epochs 15 --warmup-natural 2 --warmup-adversarial 2 --ramp 4 --batch-size 5 --validation 30 --eps 0.2"


def start(out, seconds=0):  # of the processor's time, after which the kernel kills it: 0 is never
    child = os.fork()
    if child == 0:
        signal.setitimer(signal.ITIMER_PROF, seconds)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os._exit(main(["train", data, "FC 30, FC 30", *options.split(), "--threads", "1", "--out", out, "--resume"]))
    return child


assert os.waitpid(start(whole), 0)[1] == 0
used = resource.getrusage(resource.RUSAGE_CHILDREN)
lasts, moments, hits = used.ru_utime + used.ru_stime, random.Random(0), 0
for _ in range(int(sys.argv[4])):
    hits += os.WIFSIGNALED(os.waitpid(start(broken, moments.uniform(0.01, lasts / 8)), 0)[1])
assert os.waitpid(start(broken), 0)[1] == 0
print(hits, lasts)
"""


@pytest.mark.slow
def test_kill_nine_at_any_moment_changes_nothing(tmp_path: Path) -> None:
    problem = halves(150)
    file, whole, broken = tmp_path / "halves.npz", tmp_path / "whole", tmp_path / "broken"
    x, y = (torch.cat([getattr(part, k) for part in (problem.train, problem.validation)]).numpy() for k in "xy")
    np.savez(file, x_train=x, y_train=y, x_test=x[:20], y_test=y[:20])
    command = [sys.executable, "-c", KILLER, str(file), str(whole), str(broken), str(KILLS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[0]) >= KILLS // 2, done.stdout  # most kills found a run that was still going on

    (one, _), (two, _) = (checkpoint.load(folder / "model.safetensors") for folder in (whole, broken))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[k], two[k]) for k in one)
    histories = [RunFolder(folder).history() for folder in (whole, broken)]
    assert [m["epoch"] for m in histories[1]] == list(range(1, 16))
    for a, b in zip(*histories, strict=True):
        assert {k: v for k, v in a.items() if k != "seconds"} == {k: v for k, v in b.items() if k != "seconds"}


def test_an_edited_recipe_is_not_resumed(tmp_path: Path) -> None:
    run(tmp_path / "run")
    recipe = tmp_path / "run" / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("beta2: 0.99 ", "beta2: 0.5 "))
    assert recipe_of(RunFolder(tmp_path / "run")).beta2 == 0.5
    with pytest.raises(UserError, match="beta2"):
        run(tmp_path / "run", resume=True, beta2=0.5)


def test_a_finished_run_without_checkpoints_is_not_trained_again(tmp_path: Path) -> None:
    run(tmp_path / "run")
    weights = (tmp_path / "run" / "model.safetensors").read_bytes()
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(UserError, match="finished"):
        run(tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == weights


def test_damaged_metrics(tmp_path: Path) -> None:
    run(tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("a") as file:
        file.write("no json\n")
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
        run(tmp_path / "run", resume=True)


def test_initial_weights_of_a_user_network_follow_the_seed(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    lazy = "nn.Sequential(nn.Flatten(), nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))"
    file.write_text(f"from torch import nn\ndef make():\n    return {lazy}\n")
    before = torch.get_rng_state()
    made = [runs.first_net(Recipe.of({"net": f"{file}:make", "seed": seed}), halves()) for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), before)
    one, same, other = (net.state_dict() for net in made)
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert not torch.equal(one["1.weight"], other["1.weight"])
    assert made[0].training


def test_damaged_checkpoint_is_not_one_of_the_kept_ones(tmp_path: Path) -> None:
    with pytest.raises(Stop):
        run(tmp_path / "run", StopAt(epoch=4))
    folder = RunFolder(tmp_path / "run")
    newest, *_ = checkpoint.newest(folder.checkpoints)
    newest.write_bytes(newest.read_bytes()[:-1])
    other = folder.checkpoints / checkpoint.file_name(900)
    checkpoint.save(other, {"x": torch.ones(1)}, {"not": "a checkpoint"})
    with pytest.raises(Stop):
        run(tmp_path / "run", StopAt(epoch=4), resume=True)
    kept = checkpoint.newest(folder.checkpoints)
    assert [checkpoint.load(path)[1]["steps"] for path in kept] == [12, 9]
    assert {p.suffix for p in folder.checkpoints.iterdir()} == {".safetensors", ".damaged"}
    run(tmp_path / "run", resume=True)


def test_resume_needs_something_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--resume", "--out", str(tmp_path / "typo")]) == 2
    assert "has no run" in capsys.readouterr().err
    assert cli.main(["train", "--resume"]) == 2


def test_a_run_without_a_folder_is_timed_and_a_refused_one_gives_the_modes_back() -> None:
    assert run(None).summary["seconds"] > 0
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Softmax(1))
    with pytest.raises(UserError, match="softmax"):
        train(net, halves(), show=Silent(), **{k: v for k, v in OPTIONS.items() if k != "net"})
    assert all(module.training for module in net.modules())


def own_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 16), nn.ReLU(), nn.Linear(16, 10))


def test_a_new_network_of_the_user_is_initialized_for_ibp(tmp_path: Path) -> None:
    options: dict[str, Any] = {"eps": 0.1, "method": "ibp", "epochs": 1, "lr": 1e-12, "show": Silent()}
    digits = data.load("mnist", limit=60, validation=20)
    given, expected = own_net(), own_net()
    assert train(own_net(), digits, **{**options, "method": "standard"}).recipe.init == "default"  # it has no bounds
    run = train(given, digits, out=tmp_path / "new", **options)
    assert run.recipe.init == "ibp"
    assert not given[1].bias.abs().gt(1e-6).any()  # biases are zero
    again = train(own_net(), digits, **options)
    assert torch.equal(again.net[1].weight, given[1].weight)  # the seed determines the weights
    kept = train(own_net(), digits, init="given", **options)
    torch.testing.assert_close(kept.net[1].weight, expected[1].weight)
    trained = own_net()
    trained[1].weight.data.mul_(2)
    assert train(trained, digits, out=tmp_path / "trained", **options).recipe.init == "given"
    resumed = train(own_net(), digits, out=tmp_path / "trained", resume=True, **options)
    assert resumed.recipe.init == "given"
    torch.testing.assert_close(resumed.net[1].weight, trained[1].weight)


def test_a_collapsed_network_is_reported(tmp_path: Path) -> None:
    digits = data.load("mnist", limit=60, validation=50)
    net = own_net()
    net[3].weight.data.zero_()
    net[3].bias.data.copy_(torch.arange(10.0))
    with pytest.warns(CollapseWarning, match="it predicts class 9 for all 50 validation images"):
        run = train(net, digits, eps=0.1, method="standard", epochs=1, lr=1e-12, show=Silent(), out=tmp_path / "run")
    assert read_run(tmp_path / "run").warnings == run.summary["warnings"]
