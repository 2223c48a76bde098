"""Less memory, the same weights: parts of a batch, and values computed again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from small_training import SHORT, begin, fgsm_without_chance, halves, weights_of
from torch import nn

from advibp import UserError, nets
from advibp.bounds import Box
from advibp.execution.recompute import chains, groups, recompute_activations
from advibp.methods import METHODS
from advibp.objectives import Context
from advibp.training import Training

torch.set_num_threads(1)
CHAIN = "Conv 3 2x2+1, Conv 3 2x2+1, FC 8, FC 8, FC 8"


def after(steps: int, **options: Any) -> Training:
    training = begin(CHAIN, **{**options, "warmup_natural": 1, "lr": 0.01})
    training.check()
    while training.steps < steps:
        for _ in training.run_epoch():
            if training.steps >= steps:
                break
    return training


def nearly_the_same(a: Training, b: Training) -> None:
    """Adam makes a step of full size from a gradient that is rounding noise, so single weights may differ by a step."""
    got, want = weights_of(a.net), weights_of(b.net)
    assert float((got - want).norm() / want.norm()) < 1e-3


@pytest.mark.parametrize("at_once", [1, 7, 10, 30, 1000])
def test_parts_of_a_batch_give_the_same_weights(at_once: int) -> None:
    whole, parts = after(16), after(16, at_once=at_once)
    nearly_the_same(parts, whole)
    if at_once >= 30:
        assert torch.equal(weights_of(parts.net), weights_of(whole.net))


@pytest.mark.parametrize("method", [name for name, row in METHODS.items() if row.per_image])
def test_parts_give_every_methods_gradient(method: str) -> None:
    """In the middle of the ramp, from the same weights; other methods refuse to be trained in parts."""
    training = after(12, method=method)
    x, y = training.feed.example(30)
    found = []
    for at_once in (30, 7):
        training.passes.at_once = at_once
        torch.manual_seed(0)
        now = Context(ramped=0.5, settings=training.settings)
        training.passes.run(training.method.lower, training.method.upper, x, y, 0.1, now)
        found.append(torch.cat([training.gradients.rows.flatten(), training.gradients.final]).clone())
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)


def test_parts_have_the_losses_and_the_fosc_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    fgsm_without_chance(monkeypatch)
    found = []
    for at_once in (0, 7):
        training = begin(CHAIN, at_once=at_once, warmup_natural=0, warmup_adversarial=0, ramp=0)
        step = training.step(*training.feed.example(30))
        found.append(torch.stack([step.lower, step.upper, step.fosc]))  # type: ignore[list-item]
    torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_automatic_c_max_does_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    fgsm_without_chance(monkeypatch)
    found = [after(20, at_once=k, c_max="auto").gate.level for k in (0, 7)]
    assert found[0] == pytest.approx(found[1], rel=1e-3)


def test_what_is_computed_again_is_the_same_to_the_bit() -> None:
    assert torch.equal(weights_of(after(16, recompute=True).net), weights_of(after(16).net))


@pytest.mark.parametrize("options", [{"at_once": 7}, {"recompute": True}], ids=str)
def test_layer_wise_stages_in_less_memory(options: dict[str, Any]) -> None:
    deep = nets.build("FC 6, FC 6, FC 6, FC 6, FC 6", (1, 4, 4), 2, seed=0)
    found = []
    for more in ({}, options):
        training = begin(pickle.loads(pickle.dumps(deep)), **{**more, "epochs": 4, "stages": 1, "stage_epochs": 1.0})
        while not training.finished:
            list(training.run_epoch())
        found.append(weights_of(training.net))
    assert float((found[1] - found[0]).norm() / found[0].norm()) < 1e-3


class Kept:
    """Bytes that autograd keeps for the backward pass."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        self.seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor


@pytest.mark.parametrize("on_a_box", [False, True])
def test_a_deep_chain_keeps_less(on_a_box: bool) -> None:
    net = nn.Sequential(*[layer for _ in range(16) for layer in (nn.Linear(20, 20), nn.ReLU())])
    x = torch.rand(500, 20)
    kept = []
    for wanted in (False, True):
        hook = Kept()
        with torch.autograd.graph.saved_tensors_hooks(hook, lambda t: t), recompute_activations(net, wanted):
            out = net(Box.ball(x, 0.1) if on_a_box else x)
            assert out.requires_grad
        kept.append(sum(hook.seen.values()))
        del out
    assert kept[1] < 0.5 * kept[0]


def test_groups_are_the_chain_in_order() -> None:
    chain = nets.build(CHAIN, (1, 4, 4), 2)
    assert chains(chain) == [chain]
    assert [m for group in groups(chain) for m in group] == list(chain)
    assert 1 < len(groups(chain)) < 5


def test_a_network_is_its_own_afterwards() -> None:
    net = nets.build(CHAIN, (1, 4, 4), 2)
    with recompute_activations(net):
        assert "forward" in vars(net)
    assert "forward" not in vars(net)
    pickle.dumps(net)


class Skip(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def writing() -> nn.Sequential:
    """Blocks that begin by writing to what they are given."""
    blocks = [nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(8, 8)) for _ in range(5)]
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), *blocks, nn.Linear(8, 2))


def skipping() -> nn.Sequential:
    layers = [layer for _ in range(5) for layer in (nn.Linear(8, 8), nn.ReLU())]
    chain = [layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), Skip(*layers), nn.Sequential(*chain), nn.Linear(8, 2))


@pytest.mark.parametrize("build", [writing, skipping])
@pytest.mark.parametrize("method", ["ibp", "advibp"])
def test_blocks_of_ones_own_are_computed_again_as_they_are(build: Any, method: str) -> None:
    torch.manual_seed(0)
    net, found = build(), []
    for recompute in (False, True):
        training = begin(pickle.loads(pickle.dumps(net)), method=method, recompute=recompute)
        training.check()
        for _ in range(3):
            list(training.run_epoch())
        found.append(weights_of(training.net))
    assert torch.equal(*found)


def test_a_stage_that_leaves_no_chain_goes_on_without() -> None:
    training = begin("FC 6, FC 6, FC 6, FC 6", recompute=True, epochs=4, stages="all", stage_epochs=1.0)
    training.check()
    while not training.finished:
        list(training.run_epoch())


def test_a_network_without_a_chain_is_refused() -> None:
    with pytest.raises(UserError, match=r"recompute works on an nn\.Sequential"):
        begin("FC 6", recompute=True).check()


@pytest.mark.parametrize("options", [{"at_once": 7}, {"recompute": True}], ids=str)
def test_batchnorm_in_training_is_refused(options: dict[str, Any]) -> None:
    layers = [nn.Flatten(), nn.Linear(16, 8), nn.BatchNorm1d(8), *[nn.Linear(8, 8) for _ in range(3)], nn.Linear(8, 2)]
    with pytest.raises(UserError, match="BatchNorm in training"):
        begin(nn.Sequential(*layers), **options).check()
    layers[2].eval()
    begin(nn.Sequential(*layers), **options).check()


def test_the_fixture_is_a_batch_of_several_parts() -> None:
    assert len(halves().train) >= 2 * SHORT["batch_size"]
