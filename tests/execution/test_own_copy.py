"""A network that writes to its input gives bit-identical results to one that does not, and the data do not change."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advibp import Recipe, attacks, certify, data
from advibp.attacks import linf_apgd
from advibp.bounds import Box, Zonotope
from advibp.data import Data, Split
from advibp.execution.own_copy import run_on_copy
from advibp.methods import METHODS
from advibp.training import Training
from advibp.verify import Attack, largest_proved_eps
from advibp.verify.attack_all import attack_all
from advibp.verify.radius import radii

torch.set_num_threads(1)

MEAN, STD = 0.4, 0.5


class InPlace(nn.Module):
    """(x - mean) / std in place."""

    def forward(self, x: Any) -> Any:
        x -= MEAN
        x /= STD
        return x


class OutOfPlace(nn.Module):
    """(x - mean) / std out of place."""

    def forward(self, x: Any) -> Any:
        x = x - MEAN
        return x / STD


class Wrapped(nn.Module):
    """Not a plain nn.Sequential, so it must be recorded to be cut."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Any) -> Any:
        return self.layers(x)


def twins(batchnorm: bool = False, wrapped: bool = False) -> tuple[nn.Module, nn.Module]:
    """Two networks with the same weights. The first writes to its input."""
    torch.manual_seed(0)
    middle = [nn.BatchNorm2d(3)] if batchnorm else []
    layers = [nn.Conv2d(1, 3, 3, padding=1), *middle, nn.ReLU(), nn.Flatten(), nn.Linear(48, 6), nn.ReLU()]
    plain = nn.Sequential(OutOfPlace(), *layers, nn.Linear(6, 2))
    writing = nn.Sequential(InPlace(), *copy.deepcopy(list(plain)[1:]))
    return (Wrapped(writing), Wrapped(plain)) if wrapped else (writing, plain)


def halves(count: int = 60) -> Data:
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = 0.25 * torch.rand(count, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 0.7
    x[y == 1, :, :, 2:] += 0.7
    return data.from_tensors(x, y, x[:20], y[:20], validation=20, name="halves")


def images_of(source: Data) -> list[Tensor]:
    assert isinstance(source.train, Split)
    assert isinstance(source.test, Split)
    return [source.train.x, source.validation.x, source.test.x]


def trained(net: nn.Module, **options: Any) -> tuple[list[Tensor], tuple[float, float]]:
    """Return weights and statistics after all phases, and the errors on the validation images."""
    source = halves()
    before = [x.clone() for x in images_of(source)]
    said = {"epochs": 4, "warmup_natural": 1, "warmup_adversarial": 1, "ramp": 1, "batch_size": 20, "eps": 0.1}
    training = Training(net, source, Recipe.load(**{**said, **options}))
    training.check()
    while not training.finished:
        for _ in training.run_epoch():
            pass
    validated = training.validate()
    assert all(torch.equal(now, then) for now, then in zip(images_of(source), before, strict=True))
    return [t.clone() for t in net.state_dict().values()], (validated.standard_error, validated.verified_error)


CASES: list[dict[str, Any]] = [{"method": name} for name in METHODS if name != "colt"] + [
    {"method": "colt", "stages": 1, "stage_epochs": 1},
    {"method": "colt", "stages": 1, "stage_epochs": 1, "wrapped": True},
    {"method": "advibp", "stages": 1, "stage_epochs": 1},
    {"method": "advibp", "stages": 1, "stage_epochs": 1, "wrapped": True},
    {"method": "diffai", "domain": "deepz"},
    {"method": "advibp", "batchnorm": True},
    {"method": "ibp", "batchnorm": True},
    {"method": "advibp", "at_once": 7},
    {"method": "advibp", "c_max": "auto"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_training_equals_twin_and_keeps_the_data(case: dict[str, Any]) -> None:
    shape = {key: case[key] for key in ("batchnorm", "wrapped") if key in case}
    options = {key: value for key, value in case.items() if key not in shape}
    writing, plain = twins(**shape)
    (found, errors), (expected, expected_errors) = trained(writing, **options), trained(plain, **options)
    assert errors == expected_errors
    assert len(found) == len(expected)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(found, expected, strict=True))


def problem() -> tuple[nn.Module, nn.Module, Tensor, Tensor]:
    writing, plain = twins()
    x = torch.rand(12, 1, 4, 4, generator=torch.Generator().manual_seed(3))
    y = plain(x).argmax(1)
    y[0] = 1 - y[0]
    return writing.eval(), plain.eval(), x, y


def records(net: nn.Module, x: Tensor, y: Tensor, by: str) -> list[tuple[Any, ...]]:
    given = x.clone()
    found = certify(net, given, y, [0.01, 0.05], by=[by], attack=Attack(steps=5))
    assert torch.equal(given, x)
    return [(r.index, r.eps, r.prediction, r.verdict, r.by, r.lower_margin, r.image) for r in found.records]


@pytest.mark.parametrize("by", ["ibp", "crown-ibp", "crown", "deepz", "alpha-crown", "refinezono", "complete"])
def test_records_equal_twin(by: str) -> None:
    writing, plain, x, y = problem()
    found = records(writing, x, y, by)
    assert found == records(plain, x, y, by)
    assert {"robust", "misclassified", "falsified"} <= {verdict for _, _, _, verdict, *_ in found}


def test_in_place_write_does_not_move_the_box() -> None:
    """The ball around the halved image is robust; the ball around the image itself is not."""

    class Halving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(1.0))

        def forward(self, x: Any) -> Any:
            x *= 0.5
            x = x.flatten(1).sum(1, keepdim=True) * self.scale
            return torch.cat([x, 0.45 - x], 1)

    x, y = torch.full((1, 1, 1, 1), 0.46), torch.tensor([0])
    for by in ("ibp", "complete"):
        (record,) = certify(Halving(), x, y, 0.02, by=[by], attack=Attack(steps=1)).records
        assert record.verdict in ("falsified", "unknown")
    assert x.item() == pytest.approx(0.46)


@pytest.mark.parametrize("attack", [attacks.linf_pgd, linf_apgd])
def test_attacks_equal_twin(attack: Any) -> None:
    writing, plain, x, y = problem()
    given, found = x.clone(), []
    for net in (writing, plain):
        torch.manual_seed(0)
        found.append(attack(net, given, y, 0.1, steps=6, restarts=2))
        assert torch.equal(given, x)
    assert torch.equal(found[0].x_adv, found[1].x_adv)
    assert torch.equal(found[0].broken, found[1].broken)
    assert found[0].broken.any()


@pytest.mark.parametrize("attack", [attacks.linf_fgsm, attacks.linf_fgsm_random])
def test_single_steps_equal_twin(attack: Any) -> None:
    writing, plain, x, y = problem()
    found = []
    for net in (writing, plain):
        torch.manual_seed(0)
        found.append(attack(net, x, y, 0.1))
    assert torch.equal(*found)


def test_attack_all_and_radii_equal_twin() -> None:
    writing, plain, x, y = problem()
    given = x.clone()
    found = [attack_all(net, Split(given, y), 0.1, Attack(steps=5)) for net in (writing, plain)]
    assert torch.equal(found[0].x_adv, found[1].x_adv)
    assert torch.equal(found[0].wrong, found[1].wrong)
    attack = Attack(steps=3)
    ours, theirs = ([(r.proved, r.broken) for r in radii(n, Split(given, y), attack=attack)] for n in (writing, plain))
    assert ours == theirs
    assert torch.equal(largest_proved_eps(writing, given, y), largest_proved_eps(plain, given, y))
    assert torch.equal(given, x)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: Box.ball(x, 0.1), lambda x: Zonotope.ball(x, 0.1)])
def test_copy_shares_no_mutable_state(wrap: Any) -> None:
    writing, plain, x, _ = problem()
    given = wrap(x)
    before = [x.clone()] if isinstance(given, Tensor) else [given.center, given.radius]
    outputs = run_on_copy(writing, given), run_on_copy(writing, given), plain(given)
    after = [given] if isinstance(given, Tensor) else [given.center, given.radius]
    assert all(torch.equal(now, then) for now, then in zip(after, before, strict=True))
    ends = [(o, o) if isinstance(o, Tensor) else (o.lower, o.upper) for o in outputs]
    assert all(torch.equal(a, b) for found in ends[:2] for a, b in zip(found, ends[2], strict=True))


def test_gradients_flow_through_the_copy() -> None:
    writing, plain, x, _ = problem()
    x.requires_grad_()
    found = [torch.autograd.grad(run_on_copy(net, x).sum(), x)[0] for net in (writing, plain)]
    assert torch.equal(*found)
