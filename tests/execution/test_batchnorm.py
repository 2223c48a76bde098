"""BatchNorm within a step: one pass updates the statistics, and sets are normalized with captured statistics."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import Box, UserError, attacks, data, objectives
from advibp.execution import batchnorm
from advibp.execution.batchnorm import Population
from advibp.objectives import Ball
from advibp.recipe import Recipe
from advibp.training import Training

torch.set_num_threads(1)


class Functional(nn.Module):
    """BatchNorm by function, and one layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.norm, self.last = nn.BatchNorm1d(6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: Any) -> Any:
        x = F.relu(self.norm(self.first(x.flatten(1))))
        x = F.relu(F.batch_norm(self.second(x), self.mean, self.var, None, None, self.training, 0.3))
        return self.last(self.norm(x))


def layered() -> nn.Module:
    """One layer with the usual momentum, and one that averages over all steps."""
    first = [nn.Conv2d(1, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*first, nn.Linear(3, 5), nn.BatchNorm1d(5, momentum=None), nn.ReLU(), nn.Linear(5, 3))


NETS = {"layers": layered, "functional": Functional}


def running(net: nn.Module) -> dict[str, Tensor]:
    return {name: buffer.clone() for name, buffer in net.named_buffers()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return all(torch.allclose(one[k].double(), two[k].double(), atol=1e-6) for k in one)


def images(count: int = 7, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(count, 1, 2, 2, generator=generator), torch.randint(0, 3, (count,), generator=generator)


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_plain_pass_equals_torch(build: Any) -> None:
    net = build().double()
    twin = copy.deepcopy(net)
    x = images()[0].double()
    for _ in range(3):
        with batchnorm.step(net, True):
            ours = net(x)
        theirs = twin(x)
        assert torch.allclose(ours, theirs)
        ours.sum().backward()
        theirs.sum().backward()
    grads = zip(net.parameters(), twin.parameters(), strict=True)
    assert all(torch.allclose(p.grad, q.grad) for p, q in grads)
    if build is layered:  # torch counts a layer that runs twice as two steps
        assert same(running(net), running(twin))


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_attack_uses_batch_statistics_and_keeps_running_ones(build: Any) -> None:
    net = build()
    x, y = images()
    before, expected = running(net), copy.deepcopy(net)(x)
    with batchnorm.step(net, True), batchnorm.no_tracking():
        assert torch.allclose(net(x), expected, atol=1e-6)
        attacks.linf_fgsm_random(net, x, y, 0.1)
    assert same(before, running(net))


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
@given(seed=st.integers(0, 1000), eps=st.floats(0, 0.3))
def test_bounds_contain_outputs_of_captured_batch(build: Any, seed: int, eps: float) -> None:
    """With the statistics held constant, the bounds hold for every batch within the ball."""
    torch.manual_seed(seed)
    net = build().double()
    x = images(seed=seed)[0].double()
    with batchnorm.step(net, True):
        center = net(x)
        box = net(Box.ball(x, eps))
    assert bool((box.lower <= center + 1e-9).all())
    assert bool((center <= box.upper + 1e-9).all())
    with batchnorm.step(net, True) as statistics:
        assert statistics
        statistics.capture(net, x)
        for _ in range(5):
            inside = (x + eps * (2 * torch.rand_like(x) - 1)).clamp(0, 1)
            out = net(inside)
            assert bool(((box.lower <= out + 1e-9) & (out <= box.upper + 1e-9)).all())
    if eps == 0:
        assert torch.allclose(box.center, center)


@pytest.mark.parametrize("build", NETS.values(), ids=NETS)
def test_set_of_radius_zero_has_the_usual_gradient(build: Any) -> None:
    """The gradient flows through the captured statistics, from a clean pass or from the previous pass."""
    torch.manual_seed(0)
    net = build().double()
    x, y = images()
    x = x.double()
    params = list(net.parameters())
    twin = copy.deepcopy(net)
    expected = torch.autograd.grad(F.cross_entropy(twin(x), y), list(twin.parameters()), materialize_grads=True)
    for clean in (False, True):
        with batchnorm.step(net, True) as statistics:
            assert statistics
            if clean:
                statistics.capture(net, x)
            else:
                net(x)
            loss = objectives.ibp(net, Ball(x, 0.0), y).loss
            found = torch.autograd.grad(loss, params, materialize_grads=True)
        assert all(torch.allclose(g, e, atol=1e-9) for g, e in zip(found, expected, strict=True))


@given(seed=st.integers(0, 1000), eps=st.floats(0.01, 0.3))
def test_loss_does_not_depend_on_weight_scale_before_batchnorm(seed: int, eps: float) -> None:
    """The loss of the bounds is constant along the weights before BatchNorm. With constant statistics it is not."""
    torch.manual_seed(seed)
    net = layered().double()
    for layer in net:
        if hasattr(layer, "num_batches_tracked"):
            layer.eps = 1e-14
    x, y = images(seed=seed)
    x = x.double()
    with batchnorm.step(net, True):
        net(x)
        loss = objectives.ibp(net, Ball(x, eps), y).loss
        weight, bias = torch.autograd.grad(loss, [net[0].weight, net[0].bias])
    slope = (weight * net[0].weight).sum() + (bias * net[0].bias).sum()
    assert float(slope.detach()) == pytest.approx(0, abs=1e-9)


def test_population_uses_running_statistics_in_every_mode() -> None:
    net = layered()
    x, _ = images()
    with Population():
        inside = net(x)
    assert torch.allclose(inside, net.eval()(x), atol=1e-6)


def training(net: nn.Module, **options: Any) -> Training:
    x, y = images(40)
    own = data.from_tensors(x, y, x, y, validation=10)
    short = {"epochs": 4, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 1, "eps": 0.1, "batch_size": 10}
    recipe = Recipe.of({**short, **options})
    return Training(net, own, recipe)


@pytest.mark.parametrize("method", ["advibp", "fixed", "ibp", "rs-fgsm", "standard"])
@pytest.mark.parametrize("statistics", ["adversarial", "clean"])
def test_running_statistics_are_updated_once_per_step(method: str, statistics: str) -> None:
    net = layered()
    course = training(net, method=method, batchnorm=statistics)
    course.check()
    assert int(net[1].num_batches_tracked) == 0
    while not course.finished:
        for _ in course.run_epoch():
            assert int(net[1].num_batches_tracked) == course.steps
            assert int(net[5].num_batches_tracked) == course.steps
        before = running(net)
        course.validate()
        assert same(before, running(net))


def test_running_mean_is_that_of_the_selected_pass() -> None:
    """The mean of the first layer's input shows which pass was captured."""
    for option in ("adversarial", "clean"):
        net = layered()
        course = training(net, batchnorm=option, warmup_natural=0, warmup_adversarial=0, ramp=0)
        outputs: list[Tensor] = []
        hook = net[0].register_forward_hook(
            lambda m, i, o, outputs=outputs: outputs.append(o) if isinstance(o, Tensor) else None
        )
        next(course.run_epoch())
        hook.remove()
        pass_ = outputs[0] if option == "clean" else outputs[1]  # attack, then adversarial; or clean, then both
        assert torch.allclose(net[1].running_mean, 0.1 * pass_.mean((0, 2, 3)), atol=1e-6)
        assert len(outputs) == (3 if option == "clean" else 2)


def test_layers_keep_their_mode() -> None:
    net = layered()
    net[1].eval()
    before = running(net)
    course = training(net)
    list(course.run_epoch())
    after = running(net)
    assert torch.equal(before["1.running_mean"], after["1.running_mean"])
    assert not torch.equal(before["5.running_mean"], after["5.running_mean"])
    assert not net[1].training
    assert net[5].training


class ByFunction(nn.Module):
    """A network with BatchNorm by function only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 3)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x: Any) -> Any:
        x = F.batch_norm(self.first(x.flatten(1)), self.mean, self.var, training=self.training)
        return self.last(F.relu(x))


@pytest.mark.parametrize("method", ["advibp", "ibp"])
def test_batchnorm_by_function_trains_like_a_layer(method: str) -> None:
    torch.manual_seed(0)
    net = ByFunction()
    twin = nn.Sequential(nn.Flatten(), nn.Linear(4, 6), nn.BatchNorm1d(6, affine=False), nn.ReLU(), nn.Linear(6, 3))
    twin[1].load_state_dict(net.first.state_dict())
    twin[4].load_state_dict(net.last.state_dict())
    for made in (net, twin):
        course = training(made, method=method)
        course.check()
        while not course.finished:
            list(course.run_epoch())
    assert torch.equal(net.mean, twin[2].running_mean)
    assert torch.equal(net.last.weight, twin[4].weight)
    assert not torch.equal(net.mean, torch.zeros(6))


def test_batch_of_one_is_rejected() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    x, y = images(1)
    with pytest.raises(UserError, match="a batch of one image"), batchnorm.step(net, True):
        objectives.adversarial(net, Ball(x, 0.1), y)
