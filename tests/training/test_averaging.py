"""Stochastic weight averaging against a mean by hand, and population statistics against those of all images."""

from __future__ import annotations

import torch
from small_runs import halves
from torch import nn

from advibp import Recipe, nets
from advibp.training import Training
from advibp.training.averaging import WeightAverage, population_statistics

OPTIONS = {"eps": 0.1, "epochs": 3, "batch_size": 20, "ramp": 1, "method": "mtl-ibp", "shi": 0.0}


def trained(**options: object) -> tuple[Training, list[list[torch.Tensor]]]:
    """Train, and return the weights after every step."""
    net = nets.build("Conv 3 2x2+1 BN, FC 8 BN", (1, 4, 4), 2, seed=1)
    training = Training(net, halves(), Recipe.load(**{**OPTIONS, **options}))
    weights = []
    while not training.finished:
        for _ in training.run_epoch():
            weights.append([p.detach().clone() for p in net.parameters()])
    return training, weights


def test_averaged_weights_are_the_mean_by_hand() -> None:
    training, weights = trained(swa_start=1, swa_every=2)
    chosen = [w for step, w in enumerate(weights, 1) if step > training.steps_per_epoch and step % 2 == 0]
    assert len(chosen) == 3
    own = [p.detach().clone() for p in training.net.parameters()]
    with training.evaluation_weights():
        for k, p in enumerate(training.net.parameters()):
            torch.testing.assert_close(p.detach(), torch.stack([w[k] for w in chosen]).mean(0))
    assert all(torch.equal(a, b) for a, b in zip(training.net.parameters(), own, strict=True))
    training.adopt_evaluation_weights()
    torch.testing.assert_close(next(training.net.parameters()).detach(), torch.stack([w[0] for w in chosen]).mean(0))


def test_averaging_does_not_change_the_training() -> None:
    averaged, plain = trained(swa_start=1)[1], trained()[1]
    assert all(torch.equal(a, b) for a, b in zip(averaged[-1], plain[-1], strict=True))


def test_averaged_weights_get_their_own_statistics() -> None:
    """Those of the first BatchNorm are the mean and variance of its inputs over the training images."""
    training, _ = trained(swa_start=1, swa_every=1, batch_size=30)  # two batches of the same size
    before = {name: b.clone() for name, b in training.net.named_buffers()}
    with training.evaluation_weights():
        conv, norm = training.net[0], training.net[1]
        inputs = [conv(x).detach() for x in training.feed.plain_batches()]
        torch.testing.assert_close(norm.running_mean, torch.stack([z.mean((0, 2, 3)) for z in inputs]).mean(0))
        torch.testing.assert_close(norm.running_var, torch.stack([z.var((0, 2, 3)) for z in inputs]).mean(0))
    assert all(torch.equal(b, before[name]) for name, b in training.net.named_buffers())


def test_frozen_statistics_are_kept() -> None:
    net = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2), nn.BatchNorm1d(2))
    net[0].eval()
    kept = net[0].running_mean.clone()
    x = torch.rand(8, 2) + 3
    with population_statistics(net, [net[2]], lambda: iter([x])):
        assert torch.equal(net[0].running_mean, kept)
        torch.testing.assert_close(net[2].running_mean, net[1](net[0](x)).mean(0).detach())
        assert not net[0].training
    assert net[2].training
    assert net[2].momentum == 0.1


def test_population_statistics_without_averaging() -> None:
    training, _ = trained(batchnorm_evaluation="population")
    running = training.net[1].running_mean.clone()
    with training.evaluation_weights():
        assert not torch.equal(training.net[1].running_mean, running)
    assert torch.equal(training.net[1].running_mean, running)


def test_the_state_of_an_average() -> None:
    net = nn.Linear(1, 1)
    average, again = WeightAverage(net, 0, 1), WeightAverage(net, 0, 1)
    assert average.state_dict() == {}
    for step in (1, 2):
        nn.init.constant_(net.weight, step)
        average.observe(step)
    again.load_state_dict(average.state_dict())
    nn.init.constant_(net.weight, 6)
    again.observe(3)
    with again.applied():
        assert net.weight.item() == 3
