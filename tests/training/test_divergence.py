"""A training that goes wrong stops before it spoils the weights, and says where the bounds grew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from advibp import Box, data, train
from advibp.data import Data
from advibp.runs.training_display import Silent
from advibp.storage import checkpoint
from advibp.training import divergence
from advibp.training.divergence import Diverged

torch.set_num_threads(1)

OPTIONS: dict[str, Any] = {"epochs": 4, "warmup_natural": 1, "warmup_adversarial": 0, "ramp": 1, "batch_size": 10}
OPTIONS |= {"eps": 0.1, "lr": 1e-3, "show": Silent()}


def images() -> Data:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(70, 1, 4, 4, generator=generator), torch.randint(0, 2, (70,), generator=generator)
    return data.from_tensors(x, y, x[:20], y[:20], validation=20)


def net(factor: float = 1.0) -> nn.Sequential:
    torch.manual_seed(0)
    made = nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(27, 8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        made[3].weight.mul_(factor)
        made[5].weight.mul_(1 / factor)
    return made


def test_widths_are_those_of_the_boxes() -> None:
    x = torch.rand(3, 1, 4, 4)
    made = net()
    found = divergence.widths(made, x, 0.1)
    assert [w.layer for w in found][:2] == ["the input", "layer '0' (conv2d)"]
    value: Any = Box.ball(x, 0.1)
    assert found[0].width == pytest.approx(float((value.upper - value.lower).mean()), rel=1e-4)
    by_layer = []
    for layer in made:
        value = layer(value)
        by_layer.append(float((value.upper - value.lower).detach().mean()))
    assert [w.width for w in found[1:]] == pytest.approx(by_layer, rel=1e-4)
    assert made.training


@pytest.mark.parametrize("factor", [1e12, 1e30])
def test_the_layer_that_widens_the_bounds_is_named(factor: float) -> None:
    told = divergence.explain(net(factor), torch.rand(3, 1, 4, 4), 0.1)
    assert "layer '3' (linear)" in told


def test_exploding_bounds_stop_the_run_and_keep_what_was_good(tmp_path: Path) -> None:
    made = net()
    with pytest.raises(Diverged) as told:
        train(made, images(), out=tmp_path / "run", **{**OPTIONS, "max_loss": 0.5})
    for words in ("epoch 1, step 1", "phase natural", "the lower loss is 0.", "wide at the input", "smaller lr"):
        assert words in str(told.value)
    wide = net()
    with torch.no_grad():
        wide[0].weight.mul_(5)
        wide[3].weight.mul_(5)
    with pytest.raises(Diverged) as told:
        train(wide, images(), out=tmp_path / "other", **{**OPTIONS, "max_loss": 3.0, "eps": 1.0, "lr": 1e-12})
    assert "epoch 2" in str(told.value)
    assert "phase ramp" in str(told.value)
    assert "the upper loss is" in str(told.value)
    newest = checkpoint.newest(tmp_path / "other" / "checkpoints")[0]
    tensors, facts = checkpoint.load(newest)
    assert facts["steps"] == 5
    assert all(bool(t.isfinite().all()) for t in tensors.values())


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_that_is_no_number_is_not_taken(bad: float, tmp_path: Path) -> None:
    class Breaks(nn.Module):
        """Works until it is told not to."""

        def __init__(self) -> None:
            super().__init__()
            self.layers, self.scale = net(), 1.0

        def forward(self, x: Any) -> Any:
            return self.layers(x) * self.scale

    class Break(Silent):
        def step(self, training: Any, step: Any) -> None:
            if training.steps == 12:
                training.net.scale = bad

    made = Breaks()
    with pytest.raises(Diverged, match=r"epoch 3, step 3 \(phase full, eps 0.1\): .*(nan|inf).* not finite from"):
        train(made, images(), out=tmp_path / "run", **{**OPTIONS, "show": Break()})
    assert all(bool(p.isfinite().all()) for p in made.parameters())
    assert checkpoint.load(checkpoint.newest(tmp_path / "run" / "checkpoints")[0])[1]["steps"] == 10


def test_a_network_that_cannot_be_recorded_is_diagnosed_as_far_as_it_goes() -> None:
    class Odd(nn.Module):
        def forward(self, x: Any) -> Any:
            return x if bool(x.mean() > 0) else -x

    assert "can't be computed" in divergence.explain(Odd(), torch.rand(2, 1, 4, 4), 0.1)


def test_widths_are_those_of_training_where_there_is_batchnorm() -> None:
    """With the batch's statistics, not with running ones that have seen nothing yet."""
    torch.manual_seed(0)
    made = nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    with torch.no_grad():
        made[1].weight.mul_(1e-3)  # BatchNorm scales it up again
    x = torch.rand(30, 1, 4, 4)
    inside = {w.layer: w.width for w in divergence.widths(made, x, 0.1)}
    with torch.no_grad():
        box = nn.Sequential(*made[:2])(Box.ball(x[:8], 0.1))
        std = made[1](x.flatten(1)).var(0, unbiased=False).add(1e-5).sqrt()
    assert inside["layer '1' (linear)"] == pytest.approx(2 * float(box.radius.mean()), rel=1e-4)
    assert inside["layer '2' (batch_norm)"] == pytest.approx(2 * float((box.radius / std).mean()), rel=1e-3)
