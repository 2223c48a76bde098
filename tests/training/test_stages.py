"""Layer-wise stages: the layers before the cut stay, the rest is trained on the latent box they make."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import Box, Recipe, UserError, attacks, certify, data, open_run, train
from advibp.cli import main
from advibp.data import Data
from advibp.execution.modes import mode_warnings
from advibp.runs.training_display import Silent
from advibp.schedules import Course
from advibp.training import Training

torch.set_num_threads(1)

SHORT: dict[str, Any] = {"epochs": 2, "warmup_natural": 0, "warmup_adversarial": 0, "ramp": 0, "batch_size": 10}
SHORT |= {"eps": 0.1, "stages": 2, "stage_epochs": 1, "lr": 0.01, "stage_lr": 0.01}


def halves(count: int = 60) -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = 0.6 * torch.rand(count, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 0.4
    x[y == 1, :, :, 2:] += 0.4
    return data.from_tensors(x, y, x[:20], y[:20], validation=20, name="halves")


def chain(batchnorm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    norm = [nn.BatchNorm2d(4)] if batchnorm else []
    first = [nn.Conv2d(1, 4, 2), *norm, nn.ReLU(), nn.Flatten(), nn.Linear(36, 8)]
    return nn.Sequential(*first, *([nn.BatchNorm1d(8)] if batchnorm else []), nn.ReLU(), nn.Linear(8, 2))


class Wrapped(nn.Module):
    """The same layers, but no nn.Sequential, so it is replayed from a tape instead of sliced."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any) -> Any:
        return self.layers(x.view(x.size(0), 1, 4, 4))


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.stem, self.one = nn.Conv2d(1, 4, 2), nn.Conv2d(4, 4, 3, padding=1)
        self.two, self.last = nn.Conv2d(4, 4, 3, padding=1), nn.Linear(36, 2)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.stem(x))
        x = F.relu(x + self.two(F.relu(self.one(x))))
        return self.last(x.flatten(1))


def begin(net: nn.Module, **options: Any) -> Training:
    training = Training(net, halves(), Recipe.of({**SHORT, **options}))
    training.check()
    return training


def run_all(training: Training) -> list[Any]:
    steps = []
    while not training.finished:
        steps += list(training.run_epoch())
    return steps


def weights(net: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in net.state_dict().items()}


def test_each_stage_freezes_one_layer_more() -> None:
    net = chain(batchnorm=True)
    training = begin(net)
    history = [weights(net)]
    while not training.finished:
        list(training.run_epoch())
        history.append(weights(net))
    # Epochs 1 and 2 train everything; the first stage leaves layers 0 and 1 alone, the second 0 to 5.
    for (before, after), frozen in zip(
        [(history[1], history[2]), (history[2], history[3]), (history[3], history[4])], [(), "01", "0145"], strict=True
    ):
        for name in before:
            assert torch.equal(before[name], after[name]) == (name[0] in frozen), name


def test_a_recorded_network_is_trained_like_a_sliced_one() -> None:
    for batchnorm in (False, True):
        sliced, recorded = chain(batchnorm), Wrapped(chain(batchnorm))
        run_all(begin(sliced))
        run_all(begin(recorded))
        one, two = weights(sliced), weights(recorded.layers)
        # Replaying makes no module count its batches.
        assert all(torch.equal(one[k], two[k]) for k in one if "num_batches" not in k)


def test_a_step_of_a_stage_by_hand() -> None:
    """Both losses over the latent box: FGSM inside it without clipping to [0, 1], IBP from the image on."""
    net = chain()
    training = begin(net)
    while training.course.at(training.steps).stage < 1:
        list(training.run_epoch())
    training.begin_stage(1)
    x, y = training.feed.example(10)
    for number in range(3):
        twin = copy.deepcopy(net)
        taken = training.step(x, y)
        conv, low, high = twin[0], (x - 0.1).clamp(min=0), (x + 0.1).clamp(max=1)
        center, radius = conv((low + high) / 2), F.conv2d((high - low) / 2, conv.weight.abs(), None)
        low, high = F.relu(center - radius).flatten(1), F.relu(center + radius).flatten(1)
        expected = abstract(twin[3:], (low + high) / 2, (high - low) / 2, y)
        assert (taken.phase, taken.eps, taken.stage) == ("latent", 0.1, 1)
        assert float(taken.upper) == pytest.approx(float(expected.detach()), rel=1e-4)
        assert float(taken.lower) <= float(taken.upper) + 1e-5  # the point lies in the box that is bounded
        assert taken.weights is not None
        assert (taken.weights.branch == "start") == (number == 0)  # new moments
        assert taken.weights.branch != "lower"  # c_t = 0
        assert all(torch.equal(a, b) for a, b in zip(net[0].parameters(), twin[0].parameters(), strict=True))
        assert not torch.equal(net[3].weight, twin[3].weight)


def abstract(layers: nn.Sequential, c: Tensor, r: Tensor, y: Tensor) -> Tensor:
    """IBP by bounds, without any of our code, with the last layer elided."""
    one, relu, last = layers
    c, r = one(c), r @ one.weight.abs().T
    low, high = relu(c - r), relu(c + r)
    c, r = (low + high) / 2, (high - low) / 2
    spread = last.weight[y][:, None] - last.weight  # (B, K, J)
    offset = last.bias[y][:, None] - last.bias
    margins = (spread * c[:, None]).sum(2) + offset - (spread.abs() * r[:, None]).sum(2)
    return F.cross_entropy(-margins, y)


def test_latent_attacks_stay_in_the_box_that_bounds_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    net = chain()
    with torch.no_grad():
        net[0].weight.mul_(4)
    training = begin(net, stages="all")
    assert training.course.stages == 2
    seen: list[tuple[Tensor, Tensor, Tensor, Any]] = []
    real = attacks.linf_fgsm_random

    def spy(net: Any, x: Tensor, y: Tensor, eps: Any, within: Any = None) -> Tensor:
        found = real(net, x, y, eps, within=within)
        seen.append((x, torch.as_tensor(eps), found.detach(), within))
        return found

    monkeypatch.setattr(attacks, "linf_fgsm_random", spy)
    run_all(training)
    latent = [s for s in seen if s[3] is None]
    assert len(latent) == 2 * 4
    for center, radius, point, _ in latent:
        assert bool(((point - center).abs() <= radius + 1e-6).all())
        assert bool(((point - center).abs() > 0.5 * radius).any())
    assert bool((torch.cat([p.flatten() for _, _, p, _ in latent]) > 1).any())  # no clipping to pixels


def test_the_prefix_is_a_sound_box() -> None:
    net = chain(batchnorm=True)
    training = begin(net)
    run_all(training)
    x, _ = training.feed.example(10)
    inputs = training.stages.inputs(x, 0.1)
    net.eval()
    for _ in range(20):
        inside = (x + 0.1 * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
        value = net[:6](inside).relu()
        assert bool(((value - inputs.ball.x).abs() <= inputs.ball.eps + 1e-5).all())


class Plug(Silent):
    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, training: Training, step: Any) -> None:
        if training.steps == self.at:
            raise RuntimeError("pulled")


@pytest.mark.parametrize("at", [7, 8, 9, 12, 13, 15])
def test_stages_resume_exactly(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed in the middle of an epoch whose beginning was saved, at any step around the stages' borders."""
    monkeypatch.setattr("advibp.runs.runner.SAVE_EVERY", 0.0)
    whole = train(chain(True), halves(), out=tmp_path / "whole", show=Silent(), **SHORT)
    with pytest.raises(RuntimeError):
        train(chain(True), halves(), out=tmp_path / "cut", show=Plug(at), **SHORT)
    resumed = train(chain(True), halves(), out=tmp_path / "cut", resume=True, show=Silent(), **SHORT)
    one, two = weights(whole.net), weights(resumed.net)
    assert all(torch.equal(one[k], two[k]) for k in one)
    histories = [[{k: v for k, v in m.items() if k != "seconds"} for m in r.history] for r in (whole, resumed)]
    assert histories[0] == histories[1]
    assert [m.get("stage", 0) for m in whole.history] == [0, 0, 1, 2]


def test_stages_can_be_added_to_a_finished_run_but_not_changed_once_begun(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(chain(), halves(), out=out, show=Silent(), **{**SHORT, "stages": 0})
    (out / "certify").mkdir()  # it is about the weights as they are now
    longer = train(chain(), halves(), out=out, resume=True, show=Silent(), **SHORT)
    at_once = train(chain(), halves(), show=Silent(), **SHORT)
    assert all(torch.equal(a, b) for a, b in zip(longer.net.parameters(), at_once.net.parameters(), strict=True))
    assert Recipe.load(out / "recipe.yaml").stages == 2
    assert [folder.name for folder in out.glob("certify*")] == ["certify-until-epoch-2"]
    with pytest.raises(UserError, match="stage_lr"):
        train(chain(), halves(), out=out, resume=True, show=Silent(), **{**SHORT, "stage_lr": 0.5})


def test_every_stage_is_kept_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = tmp_path / "own.npz"
    d = halves()
    np.savez(own, x_train=d.train.x[:, 0], y_train=d.train.y, x_test=d.test.x[:, 0], y_test=d.test.y)
    options = "--epochs 2 --warmup-natural 0 --warmup-adversarial 0 --ramp 0 --batch-size 10 --eps 0.1 --validation 5"
    out = str(tmp_path / "run")
    net = "Conv 4 2x2+1, FC 8"
    assert main(["train", str(own), net, *options.split(), "--stages", "2", "--stage-epochs", "1", "--out", out]) == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert [s["stage"] for s in summary["stages"]] == [0, 1, 2]
    for stage in ("0", "1", "2"):
        assert main(["certify", out, "--stage", stage, "--attack-steps", "5"]) == 0
    assert main(["certify", out, "--attack-steps", "5"]) == 0
    found = [
        json.loads((tmp_path / "run" / name / "summary.json").read_text()) for name in ("certify", "certify-stage-2")
    ]
    assert found[0]["percent"] == found[1]["percent"]
    assert main(["certify", out, "--stage", "3"]) == 2
    assert "no layer-wise stage 3" in capsys.readouterr().err
    first = open_run(out, stage=0).net
    final = open_run(out).net
    assert not torch.equal(first[-1].weight, final[-1].weight)
    assert certify(final, d.test, 0.1).records


def test_a_cut_that_a_skip_connection_crosses_is_passed_over_or_refused() -> None:
    """The stem's output and the block's can be cut, the inside of the block can't."""
    training = begin(Residual(), stages="all")
    assert training.course.stages == 2
    run_all(training)
    with pytest.raises(UserError, match="skip connection"):
        begin(Residual(), stages=3)


@pytest.mark.parametrize(
    ("net", "options", "said"),
    [
        (chain, {"stages": 3}, "can be cut at 2 of its layers"),
        (chain, {"method": "ibp"}, "no layer-wise stages"),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 2)), {"stages": "all"}, "0 of its layers"),
    ],
)
def test_stages_that_cannot_be(net: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        begin(net(), **options)


@given(main_steps=st.integers(1, 40), each=st.integers(1, 30), stages=st.integers(0, 4), per_epoch=st.integers(1, 12))
def test_a_course_in_steps(main_steps: int, each: int, stages: int, per_epoch: int) -> None:
    """Walked step by step: epochs of `per_epoch` steps, cut short where a stage ends."""
    course = Course(main_steps, each, stages, per_epoch)
    epoch = 0
    steps = 0
    for stage, length in enumerate([main_steps] + [each] * stages):
        for since in range(length):
            now = course.at(steps)
            assert now == (stage, epoch, since % per_epoch, since / per_epoch)
            ends = course.epoch_ends(steps)
            assert ends - steps == min(per_epoch - since % per_epoch, length - since)
            steps += 1
            if ends == steps:
                epoch += 1
    assert steps == course.total
    assert course.at(steps).epoch == epoch == course.epochs
    assert math.isclose(course.at(steps).t, (each if stages else main_steps) / per_epoch)


def test_a_box_is_what_a_stage_is_trained_on() -> None:
    net = chain()
    training = begin(net)
    x, _ = training.feed.example(10)
    list(training.run_epoch())
    training.begin_stage(1)
    inputs = training.stages.inputs(x, 0.1)
    box = net[:3](Box.ball(x, 0.1))
    assert torch.equal(inputs.ball.x, box.center)
    assert torch.equal(torch.as_tensor(inputs.ball.eps), box.radius)
    assert inputs.ball.within is None
    assert not inputs.ball.x.requires_grad


class Noisy(nn.Module):
    """Draws random numbers of its own, in every pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(16, 8), nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return self.last(F.relu(self.first(x.flatten(1))) + 0.01 * torch.randn(8))


def test_stages_of_a_network_that_draws_resume_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("advibp.runs.runner.SAVE_EVERY", 0.0)
    options = {**SHORT, "stages": 1}
    whole = train(Noisy(), halves(), out=tmp_path / "whole", show=Silent(), **options)
    with pytest.raises(RuntimeError):
        train(Noisy(), halves(), out=tmp_path / "cut", show=Plug(10), **options)
    resumed = train(Noisy(), halves(), out=tmp_path / "cut", resume=True, show=Silent(), **options)
    assert all(torch.equal(a, b) for a, b in zip(whole.net.parameters(), resumed.net.parameters(), strict=True))


def test_a_network_with_a_mind_of_its_own_is_not_cut() -> None:
    class Counting(Noisy):
        calls = 0

        def forward(self, x: Any) -> Any:
            self.calls += 1
            return self.last(F.relu(self.first(x.flatten(1))) * self.calls)

    with pytest.raises(UserError, match="different outputs for the same images"):
        begin(Counting(), stages=1)


def test_a_run_that_gets_stages_is_finished_no_longer(tmp_path: Path) -> None:
    out = tmp_path / "run"
    train(chain(), halves(), out=out, show=Silent(), **{**SHORT, "stages": 0})
    with pytest.raises(RuntimeError):
        train(chain(), halves(), out=out, resume=True, show=Plug(10), **SHORT)
    assert not (out / "model.safetensors").exists()
    assert not (out / "summary.json").exists()
    assert (out / "stages" / "stage-0.safetensors").exists()
    train(chain(), halves(), out=out, resume=True, show=Silent(), **SHORT)
    assert (out / "model.safetensors").exists()


def test_layers_get_the_mode_they_came_in_back(tmp_path: Path) -> None:
    net = chain(batchnorm=True)
    net[1].eval()
    before = [module.training for module in net.modules()]
    train(net, halves(), show=Silent(), **SHORT)
    assert [module.training for module in net.modules()] == before
    running = net[5].running_mean.clone()
    train(net, halves(), show=Silent(), **SHORT)  # and again: BatchNorm has not become frozen on the way
    assert not torch.equal(net[5].running_mean, running)
    with pytest.raises(RuntimeError):
        train(net, halves(), show=Plug(10), **SHORT)
    assert [module.training for module in net.modules()] == before


def test_dropout_is_off_in_training_and_its_mode_is_restored() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 2))
    plain = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Identity(), nn.Linear(8, 2))
    plain.load_state_dict(net.state_dict())
    x, y = torch.rand(40, 1, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    images = data.from_tensors(x, y, x, y, validation=10)
    options: dict[str, Any] = {"eps": 0.1, "epochs": 3, "warmup_natural": 1, "warmup_adversarial": 0.5, "ramp": 1}
    options |= {"show": Silent(), "init": "given"}
    with pytest.warns(UserWarning, match="Dropout is off"):
        train(net, images, **options)
    train(plain, images, **options)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))
    assert net[3].training


def test_a_network_with_batchnorm_in_evaluation_mode_gives_a_warning() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    assert mode_warnings(net) == []
    assert "net.train()" in mode_warnings(net.eval())[0]
    net.train()[2].eval()  # frozen on purpose
    assert mode_warnings(net) == []
    assert mode_warnings(nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Dropout(0.0)).eval()) == []
