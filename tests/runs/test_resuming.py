"""More epochs for a run that exists, and keys that its folder determines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import call, halves
from torch import nn

from advibp import Recipe, Silent, UserError, data, read_run, train
from advibp.data import Data
from advibp.runs.resuming import recipe_of
from advibp.storage.run_folder import RunFolder

torch.set_num_threads(1)

SHORT: dict[str, Any] = {"eps": 0.1, "epochs": 4, "warmup_natural": "25%", "warmup_adversarial": 0.5, "ramp": "25%"}
SHORT |= {"batch_size": 10, "lr": 0.01, "init": "default", "show": Silent()}


def images(count: int = 60) -> Data:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(count, 1, 4, 4, generator=generator), torch.arange(count) % 2
    return data.from_tensors(x, y, x, y)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))


def equal(one: nn.Module, other: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


class StopAfter(Silent):
    """Interrupts a training after an epoch."""

    def __init__(self, epoch: int) -> None:
        self.last = epoch

    def epoch(self, training: Any, metrics: dict[str, Any]) -> None:
        if metrics["epoch"] == self.last:
            raise KeyboardInterrupt


@pytest.mark.parametrize("shape", [{"lr_shape": "linear"}, {"lr_shape": "steps"}], ids=lambda s: s["lr_shape"])
def test_a_finished_run_is_extended(tmp_path: Path, shape: dict[str, Any]) -> None:
    options = SHORT | shape
    train(network(), images(), out=tmp_path / "run", **options)
    (tmp_path / "run" / "certify").mkdir()
    before = read_run(tmp_path / "run").history
    extended = train(network(), images(), out=tmp_path / "run", resume=True, **options | {"epochs": 7})
    assert (extended.recipe.epochs, extended.recipe.extended) == (7, (4,))
    assert [m["epoch"] for m in extended.history] == list(range(1, 8))
    assert extended.history[:4] == before  # the phases of the first epochs were not moved
    assert [m["phase"] for m in extended.history[4:]] == ["full"] * 3
    assert recipe_of(RunFolder(tmp_path / "run")) == extended.recipe
    assert not (tmp_path / "run" / "certify").exists()  # it was about the old weights
    # The stored recipe describes what was done: one run with it has the same weights.
    at_once = train(network(), images(), **options | {"epochs": 7, "extended": [4]})
    assert equal(at_once.net, extended.net)
    # An interruption in the extension changes nothing.
    train(network(), images(), out=tmp_path / "other", **options)
    with pytest.raises(KeyboardInterrupt):
        train(network(), images(), out=tmp_path / "other", resume=True, **options | {"epochs": 7, "show": StopAfter(5)})
    resumed = train(network(), images(), out=tmp_path / "other", resume=True, **{**options, "epochs": 7})
    assert equal(resumed.net, extended.net)
    # A second extension.
    twice = train(network(), images(), out=tmp_path / "run", resume=True, **options | {"epochs": 9})
    assert twice.recipe.extended == (4, 7)


def test_an_interrupted_run_is_extended_without_moving_its_phases(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(network(), images(), out=tmp_path, **SHORT | {"show": StopAfter(2)})
    late = train(network(), images(), out=tmp_path, resume=True, **SHORT | {"epochs": 6})
    at_once = train(network(), images(), **SHORT | {"epochs": 6, "extended": (4,)})
    assert equal(late.net, at_once.net)


def test_resuming_without_epochs_keeps_their_number(tmp_path: Path) -> None:
    first = train(network(), images(), out=tmp_path, **SHORT)
    again = train(network(), images(), out=tmp_path, resume=True, **{k: v for k, v in SHORT.items() if k != "epochs"})
    assert equal(first.net, again.net)
    assert again.recipe == first.recipe


@pytest.mark.parametrize(
    ("changes", "epochs", "sentence"),
    [
        ({}, 1, "can't be shortened to 1"),
        ({}, 3, r"has 4 epochs, 4 of them finished, and can't be shortened to 3"),
        ({"stages": 1, "stage_epochs": 1}, 6, "has layer-wise stages after its 4 epochs"),
        ({"epochs": 4.5}, 6, "ends within an epoch"),
    ],
)
def test_refused_numbers_of_epochs(tmp_path: Path, changes: dict[str, Any], epochs: int, sentence: str) -> None:
    train(network(), images(), out=tmp_path, **SHORT | changes)
    with pytest.raises(UserError, match=sentence):
        train(network(), images(), out=tmp_path, resume=True, **SHORT | changes | {"epochs": epochs})


def test_the_learning_rate_of_an_extension_decays_on_the_line_of_the_longer_run() -> None:
    recipe = Recipe(epochs=100, extended=(60, 80))
    assert [recipe.decay_end(t) for t in (0, 59.9, 60, 79, 80, 99)] == [60, 60, 80, 80, 100, 100]
    assert recipe.timeline().ramp == 0.35 * 60
    for wrong in ((60, 60), (80, 60), (100,), "x", (1.5,)):
        with pytest.raises(UserError, match="extended"):
            Recipe(epochs=100, extended=wrong)  # type: ignore[arg-type]


def test_the_default_number_of_validation_images_depends_on_the_data(tmp_path: Path) -> None:
    assert len(images(60).validation) == 6
    assert len(images(900).validation) == 90
    assert len(images(12_000).validation) == 1000
    run = train(network(), images(), out=tmp_path, **SHORT | {"epochs": 3})
    assert run.recipe.validation == 6
    assert "validation: 6 " in (tmp_path / "recipe.yaml").read_text()


def test_an_old_folder_keeps_its_number_of_validation_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(60, 1, 4, 4, generator=generator), torch.arange(60) % 2
    old = data.from_tensors(x, y, x, y, validation=20)
    with pytest.raises(KeyboardInterrupt):
        train(network(), old, out=tmp_path, **SHORT | {"validation": 20, "show": StopAfter(2)})
    resumed = train(network(), old, out=tmp_path, resume=True, **SHORT)  # the recipe's default is auto
    assert resumed.recipe.validation == 20
    assert equal(resumed.net, train(network(), old, **SHORT | {"validation": 20}).net)
    with pytest.raises(UserError, match="validation=20"):
        train(network(), images(), out=tmp_path, resume=True, **SHORT | {"epochs": 5})


def test_the_command_extends_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (x, y), file, out = halves(60), tmp_path / "data.npz", tmp_path / "run"
    np.savez(file, x_train=x, y_train=y, x_test=x, y_test=y)
    short = "--warmup-natural 1 --warmup-adversarial 0.5 --ramp 25% --eps 0.1 --batch-size 20 --threads 1"
    assert call(f"train {file} 'FC 4' --epochs 3 {short} --out {out}") == 0
    for epochs, extended in ((4, [3.0]), (5, [3.0, 4.0])):
        assert call(f"train --resume --out {out} --epochs {epochs}") == 0
        assert read_run(out).recipe["extended"] == extended
    assert len(read_run(out).history) == 5
    capsys.readouterr()
    for fewer in (4, 1):
        assert call(f"train --resume --out {out} --epochs {fewer}") == 2
        assert f"can't be shortened to {fewer}" in capsys.readouterr().err
