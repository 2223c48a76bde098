"""channels_last changes only the memory layout: the same weights, checkpoints and user module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advibp import attacks, data, nets, train
from advibp.bounds import Box
from advibp.data import Data
from advibp.execution import memory_format
from advibp.recipe import Recipe
from advibp.runs.training_display import Silent
from advibp.storage import checkpoint
from advibp.training import Training
from advibp.weighting import Moments, joint_backward

torch.set_num_threads(1)
DEEP = "Conv 4 3x3+1p1, Conv 4 3x3+1p1, Conv 3 2x2+2, FC 6"
OPTIONS: dict[str, Any] = {"epochs": 4, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 1, "batch_size": 30}
OPTIONS |= {"eps": 0.1, "lr": 0.01}


def images(channels: int = 2) -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (160,), generator=generator)
    x = torch.rand(160, channels, 6, 6, generator=generator) * 0.5 + 0.5 * y[:, None, None, None]
    return data.from_tensors(x, y, x[:20], y[:20], validation=40)


def trained(channels: int, channels_last: bool, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Train without random starts of attacks, which are drawn in memory order."""
    monkeypatch.setattr(memory_format, "prefers_channels_last", lambda net, device: channels_last)
    monkeypatch.setattr(attacks, "linf_fgsm_random", lambda net, x, y, eps, **_: attacks.linf_fgsm(net, x, y, eps))
    net = nets.build(DEEP, (channels, 6, 6), 2, seed=0)
    train(net, images(channels), show=Silent(), **OPTIONS)
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


@pytest.mark.parametrize("channels", [1, 2])
def test_both_layouts_give_the_same_weights(channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, last = (trained(channels, c, monkeypatch) for c in (False, True))
    assert float((last - usual).norm() / usual.norm()) < 1e-3


def test_channels_last_from_three_convolutions_on_cpu() -> None:
    cpu = torch.device("cpu")
    assert memory_format.prefers_channels_last(nets.build(DEEP, (2, 6, 6), 2), cpu)
    assert not memory_format.prefers_channels_last(nets.build(DEEP, (2, 6, 6), 2), torch.device("cuda"))
    strided = nn.Sequential(*(nn.Conv2d(2, 2, 1, stride=2) for _ in range(3)))
    assert not memory_format.prefers_channels_last(strided, cpu)  # torch crashes in its backward pass
    assert not memory_format.prefers_channels_last(nets.build("Conv 4 3x3+1, Conv 4 3x3+1, FC 6", (2, 6, 6), 2), cpu)


def test_layout_is_restored_after_training() -> None:
    net = nets.build(DEEP, (2, 6, 6), 2, seed=0)
    net[2].to(memory_format=torch.channels_last)
    strides = [p.stride() for p in net.parameters()]
    training = Training(net, images(), Recipe.of(OPTIONS))
    assert [p.stride() for p in net.parameters()] != strides
    del training
    net = nets.build(DEEP, (2, 6, 6), 2, seed=0)
    net[2].to(memory_format=torch.channels_last)
    train(net, images(), show=Silent(), **OPTIONS)
    assert [p.stride() for p in net.parameters()] == strides


def test_resumed_run_is_bit_identical(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = nets.build(DEEP, (2, 6, 6), 2, seed=0)
    train(whole, images(), show=Silent(), out=tmp_path / "whole", **OPTIONS)
    part = nets.build(DEEP, (2, 6, 6), 2, seed=0)
    original = Training.step

    def step(self: Training, x: Tensor, y: Tensor) -> Any:
        if self.steps == 13:
            raise KeyboardInterrupt
        return original(self, x, y)

    monkeypatch.setattr(Training, "step", step)
    with pytest.raises(KeyboardInterrupt):
        train(part, images(), show=Silent(), out=tmp_path / "part", **OPTIONS)
    monkeypatch.undo()
    again = nets.build(DEEP, (2, 6, 6), 2, seed=0)
    train(again, images(), show=Silent(), out=tmp_path / "part", resume=True, **OPTIONS)
    for p, q in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_optimizer_state_is_loaded_in_the_layout_of_its_parameters() -> None:
    p = nn.Parameter(torch.rand(4, 3, 2, 2).to(memory_format=torch.channels_last))
    optimizer = torch.optim.Adam([p], fused=True)
    p.grad = torch.rand_like(p)
    optimizer.step()
    want = optimizer.state[p]["exp_avg"].clone()
    kept = {k: v.contiguous() for k, v in checkpoint.optimizer_tensors(optimizer).items()}
    checkpoint.load_optimizer(optimizer, kept)
    assert optimizer.state[p]["exp_avg"].stride() == p.stride()
    assert torch.equal(optimizer.state[p]["exp_avg"], want)


def test_gradients_have_the_strides_of_their_parameters() -> None:
    net = nn.Conv2d(3, 4, 2).to(memory_format=torch.channels_last)
    x = torch.rand(2, 3, 5, 5)
    joint_backward(Moments(), net(x).square().sum(), net(x).sin().sum(), net.parameters())
    got = net.weight.grad
    assert got is not None
    assert got.stride() == net.weight.stride()
    (want,) = torch.autograd.grad(0.5 * net(x).square().sum() + 0.5 * net(x).sin().sum(), net.weight)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("channels", [1, 3])
def test_radius_has_the_strides_of_the_center(channels: int) -> None:
    conv = nn.Conv2d(channels, 4, 3).to(memory_format=torch.channels_last)
    box = conv(Box.ball(torch.rand(2, channels, 8, 8).contiguous(memory_format=torch.channels_last), 0.1))
    assert box.center.stride() == box.radius.stride()
