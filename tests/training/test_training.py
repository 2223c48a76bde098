"""Algorithm 2: its phases, its cost, and one step against a transcription of the paper in plain torch."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small_training import SHORT, begin, fgsm_without_chance, halves, weights_of
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from advibp import UserError, attacks, data, nets, objectives, train
from advibp.data import Data
from advibp.execution.seeds import mix
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.storage import checkpoint
from advibp.training import Training
from advibp.training.metrics import EpochMeans, Step
from advibp.training.step_cost import remaining_cost, step_cost
from advibp.training.training import FOSC_EVERY
from advibp.weighting import Fixed

torch.set_num_threads(1)


JOINT_AT_ONCE = {"warmup_natural": 0, "warmup_adversarial": 0, "ramp": 0}


def all_steps(training: Training) -> list[Step]:
    steps: list[Step] = []
    while not training.finished:
        steps += training.run_epoch()
    return steps


TENSE: dict[str, Any] = {"epochs": 10, "warmup_natural": 2, "ramp": 3, "c_decay": 4, "eps": 0.3, "batch_size": 20}
TENSE |= {"lr": 0.01, "lr_milestones": ["80%"], "beta1": 0.9, "beta2": 0.99}


def tense_net() -> nn.Sequential:
    """Large weights in a deep network: with TENSE its two losses soon pull in opposite directions."""
    net = nets.build("FC 10, FC 10, FC 10", (1, 4, 4), 2, seed=4, init="default")
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    return net


# What a step costs


class Flops(TorchDispatchMode):
    """Floating-point operations of convolutions and matrix products, as torch itself counts them."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def flops(work: Callable[[], Any]) -> int:
    with Flops() as counted:
        work()
    return counted.total


def digits(count: int) -> Data:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.rand(count, 1, 28, 28, generator=generator), torch.arange(count) % 10
    return data.from_tensors(x, y, x[:1], y[:1], validation=1, classes=10)


@pytest.mark.parametrize("net", ["dm-small", "Conv 8 3x3+1, Conv 8 4x4+2, Conv 16 3x3+1, FC 64, FC 32", "FC 10"])
def test_a_joint_step_costs_at_most_eleven_forward_passes(net: str) -> None:
    training = begin(net, digits(33), batch_size=32, **JOINT_AT_ONCE)
    x, y = training.feed.images.x, training.feed.images.y
    with torch.no_grad():
        unit = flops(lambda: training.net(x))
    for _ in range(3):
        assert flops(lambda: training.step(x, y)) <= 11 * unit


@pytest.mark.parametrize(
    ("options", "cost"),
    [
        ({}, 13),
        ({"batchnorm": "clean"}, 16),
        ({"method": "ibp"}, 11),
        ({"method": "shi-ibp"}, 9),
        ({"method": "rs-fgsm"}, 5),
    ],
    ids=["adversarial", "clean", "ibp", "shi-ibp", "rs-fgsm"],
)
def test_what_batchnorm_adds_to_a_step(options: dict[str, Any], cost: int) -> None:
    training = begin(
        "Conv 8 3x3+1 BN, Conv 8 4x4+2 BN, FC 32 BN", digits(33), batch_size=32, **JOINT_AT_ONCE, **options
    )
    x, y = training.feed.example(32)
    with torch.no_grad():
        unit = flops(lambda: training.net(x))
    found = flops(lambda: training.step(x, y)) / unit
    assert cost - 1 < found <= cost
    assert step_cost(training) == cost


def test_three_backward_passes_and_none_for_the_regularizer(monkeypatch: pytest.MonkeyPatch) -> None:
    """One for the attack, one for each loss."""
    calls: list[int] = []
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: calls.append(1) or real(*a, **k))
    monkeypatch.setattr(torch.Tensor, "backward", lambda *_, **__: pytest.fail("a backward pass of another kind"))
    training = begin(tense_net(), **TENSE, c_max=0)
    wanted = {"natural": 1, "adversarial": 2, "ramp": 3, "full": 3}
    regularized = 0
    while not training.finished:
        before = len(calls)
        for step in training.run_epoch():
            assert len(calls) - before == wanted[step.phase]
            regularized += step.weights is not None and step.weights.reg > 0
            before = len(calls)
    assert regularized  # the regularizer was there, and cost nothing


def test_work_left_falls_to_nothing() -> None:
    training = begin()
    left = [remaining_cost(training)]
    while not training.finished:
        left += [remaining_cost(training) for _ in training.run_epoch()]
    assert left == sorted(left, reverse=True)
    assert left[0] == pytest.approx((1 * 3 + 1 * 5 + 4 * 11) * training.steps_per_epoch)
    assert left[-1] == pytest.approx(0, abs=1e-9)


# Phases


@pytest.mark.parametrize("shape", ["linear", "smooth"])
def test_phases_come_in_order_with_the_scheduled_eps(shape: str) -> None:
    training = begin(ramp_shape=shape)
    steps, per_epoch = all_steps(training), training.steps_per_epoch
    names = ["natural"] * per_epoch + ["adversarial"] * per_epoch + ["ramp"] * 2 * per_epoch + ["full"] * 2 * per_epoch
    assert [s.phase for s in steps] == names
    assert [s.eps for s in steps] == [0.2 * training.timeline.eps_share(k / per_epoch) for k in range(len(steps))]
    for phase in ("adversarial", "ramp"):
        radii = [s.eps for s in steps if s.phase == phase]
        assert radii[0] == 0
        assert radii == sorted(radii)
        assert radii[-1] < 0.2
    assert {s.eps for s in steps if s.phase == "natural"} == {0.0}
    assert {s.eps for s in steps if s.phase == "full"} == {0.2}


def test_each_phase_has_its_losses() -> None:
    for number, step in enumerate(all_steps(begin())):
        joint = step.phase in ("ramp", "full")
        assert step.lower is not None
        assert (step.upper is not None) == joint
        assert (step.weights is not None) == joint
        assert (step.fosc is not None) == (step.phase != "natural" and number % FOSC_EVERY == 0)
        if step.upper is not None:
            assert step.lower <= step.upper + 1e-5


@pytest.mark.parametrize(("method", "below", "above"), [("shi-ibp", False, True), ("rs-fgsm", True, False)])
def test_a_method_with_one_objective_minimizes_it_alone(method: str, below: bool, above: bool) -> None:
    last = all_steps(begin(method=method))[-1]
    assert (last.lower is not None, last.upper is not None, last.weights) == (below, above, None)


def test_linear_bounds_are_tried_before_an_epoch_is_spent() -> None:
    begin("FC 6", method="advcrown-ibp").check()
    with pytest.raises(UserError, match="can't bound BatchNorm in training"):
        begin("FC 6 BN", method="advcrown-ibp").check()
    with pytest.raises(UserError, match="no linear bounds"):
        begin(nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ELU(), nn.Linear(4, 2)), method="advcrown-ibp").check()


def test_standard_training_has_no_warm_up_and_no_attack() -> None:
    steps = all_steps(begin(method="standard", **METHODS["standard"].recipe))
    assert {s.phase for s in steps} == {"full"}
    assert all(s.upper is None and s.fosc is None for s in steps)


def test_moments_start_empty_at_the_joint_phase() -> None:
    training = begin()
    joint = 0
    while not training.finished:
        for step in training.run_epoch():
            if step.weights is None:
                assert training.weighting.state_dict() == {}
            else:
                joint += 1
                assert int(training.weighting.state_dict()["t"]) == joint
                assert (step.weights.branch == "start") == (joint == 1)
                if joint == 1:
                    assert step.weights[:3] == (0.5, 0.5, 0.0)


def test_the_fixed_baseline_is_the_same_loop_with_both_weights_one() -> None:
    """Same warm-up, same batches, same attacks: only the weights differ, and they are 1 and 1."""
    fixed, other = begin(method="fixed"), begin(method="advibp")
    other.weighting = Fixed(1.0, 1.0)
    steps, again = all_steps(fixed), all_steps(other)
    assert {s.weights[:3] for s in steps if s.weights is not None} == {(1.0, 1.0, 0.0)}
    assert [(s.lower, s.upper) for s in steps] == [(s.lower, s.upper) for s in again]
    assert torch.equal(weights_of(fixed.net), weights_of(other.net))


def test_an_epoch_sees_each_image_at_most_once_and_never_in_the_same_order() -> None:
    training = begin(batch_size=32)
    orders = [training.feed.order(epoch) for epoch in range(4)]
    assert all(torch.equal(order.sort().values, torch.arange(120)) for order in orders)
    assert len({tuple(order.tolist()) for order in orders}) == 4
    assert torch.equal(orders[2], begin(batch_size=32).feed.order(2))
    assert not torch.equal(orders[2], begin(batch_size=32, seed=1).feed.order(2))
    assert len(list(training.run_epoch())) == 120 // 32


def test_means_of_an_epoch_leave_out_what_was_not_measured() -> None:
    means = EpochMeans()
    training = begin()
    steps = list(training.run_epoch())
    for step in steps:
        means.add(step)
    found = means.means()
    assert "loss_upper" not in found
    assert "kappa_lower" not in found
    assert "c_t" not in found
    assert found["loss_lower"] == pytest.approx(sum(float(s.lower) for s in steps) / len(steps))


def test_the_threshold_of_fosc_is_logged() -> None:
    training = begin(c_max=0.5, c_decay=2.0)
    logged: list[float] = []
    while not training.finished:
        means = EpochMeans()
        for step in training.run_epoch():
            means.add(step)
        logged += [means.means()[key] for key in ("c_t",) if "c_t" in means.means()]
    assert logged[0] == 0.5
    assert logged == sorted(logged, reverse=True)
    assert logged[-1] < 0.5


def test_an_epoch_that_release_0_1_began_goes_on() -> None:
    means = EpochMeans({"sums": {"loss_adv": [3.0, 2], "kappa_ibp": [1.0, 2]}, "branches": {"adv": 2}, "steps": 2})
    metrics = means.means()
    assert (metrics["loss_lower"], metrics["kappa_upper"], metrics["branch_lower"]) == (1.5, 0.5, 1.0)


# One step, transcribed


def bounds_by_hand(net: nn.Sequential, x: Tensor, y: Tensor, eps: float) -> Tensor:
    """IBP as the field writes it, W+ and W-, with each margin bounded by the difference of two rows of the last W."""
    lower, upper = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
    for layer in list(net)[:-1]:
        if isinstance(layer, nn.Linear):
            plus, minus = layer.weight.clamp(min=0), layer.weight.clamp(max=0)
            lower, upper = (
                lower @ plus.T + upper @ minus.T + layer.bias,
                upper @ plus.T + lower @ minus.T + layer.bias,
            )
        else:
            lower, upper = layer(lower), layer(upper)
    last = net[-1]
    margins = []
    for i, label in enumerate(y.tolist()):
        difference = last.weight[label] - last.weight
        least = difference.clamp(min=0) @ lower[i] + difference.clamp(max=0) @ upper[i]
        margins.append(least + last.bias[label] - last.bias)
    return torch.stack(margins)


class ByHand:
    """Algorithms 1 and 2 as the paper prints them, in vectors, with one backward pass through the weighted sum."""

    def __init__(self, net: nn.Sequential, recipe: Recipe, steps_per_epoch: int) -> None:
        self.net, self.recipe, self.steps_per_epoch = net, recipe, steps_per_epoch
        self.params = list(net.parameters())
        self.count = self.t = 0
        size = sum(p.numel() for p in self.params)
        self.m, self.v = torch.zeros(2, size, dtype=torch.float64), [0.0, 0.0]
        self.first, self.second = torch.zeros(size, dtype=torch.float64), torch.zeros(size, dtype=torch.float64)
        self.branches: set[str] = set()

    def attack(self, x: Tensor, y: Tensor, eps: float) -> Tensor:
        lower, upper = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        start = torch.clamp(x + eps * torch.empty_like(x).uniform_(-1, 1), lower, upper).requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(self.net(start), y, reduction="sum"), start)
        return torch.clamp(start.detach() + 1.25 * eps * g.sign(), lower, upper)

    def fosc(self, x: Tensor, x_adv: Tensor, y: Tensor, eps: float) -> float:
        """Mean over the images of max <x' - x_adv, g>, g the gradient of the image's own loss."""
        x_adv = x_adv.clone().requires_grad_()
        (g,) = torch.autograd.grad(F.cross_entropy(self.net(x_adv), y, reduction="sum"), x_adv)
        lower, upper = (x - eps).clamp(min=0), (x + eps).clamp(max=1)
        gain = torch.maximum((lower - x_adv) * g, (upper - x_adv) * g)
        return gain.flatten(1).sum(1).mean().item()

    def kappas(self, fosc: float, c_t: float) -> tuple[float, float, float]:
        if self.t == 0:
            return 0.5, 0.5, 0.0
        m1, m2 = self.m / (1 - self.recipe.beta1**self.t)
        v1, v2 = (v / (1 - self.recipe.beta2**self.t) for v in self.v)
        if m1 @ m2 > 0:
            self.branches.add("agree")
            bisector = m1 / v1 + m2 / v2
            gamma = 0.5 * float((m1 + m2) @ bisector / (bisector @ bisector))
            return gamma / v1, gamma / v2, 0.0
        if fosc <= c_t:
            self.branches.add("lower")
            return 1.0, -float(m1 @ m2) / v2**2, 0.0
        self.branches.add("upper")
        return -float(m1 @ m2) / v1**2, 1.0, 0.5

    def gradient(self, loss: Tensor) -> Tensor:
        return torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, self.params, retain_graph=True)])

    def step(self, x: Tensor, y: Tensor) -> tuple[float, float | None]:
        recipe, t = self.recipe, self.count / self.steps_per_epoch
        torch.manual_seed(mix(recipe.seed, 1, self.count))
        natural, adversarial, ramp = recipe.warmup_natural, recipe.warmup_adversarial, recipe.ramp
        assert isinstance(natural, float)
        assert isinstance(adversarial, float)
        assert isinstance(ramp, float)
        joint = natural + adversarial
        if t < natural:
            low, high, total = F.cross_entropy(self.net(x), y), None, F.cross_entropy(self.net(x), y)
        elif t < joint:
            eps = recipe.eps * (t - natural) / adversarial
            low, high = F.cross_entropy(self.net(self.attack(x, y, eps)), y), None
            total = low
        else:
            eps = recipe.eps * min(1.0, (t - joint) / ramp)
            x_adv = self.attack(x, y, eps)
            low = F.cross_entropy(self.net(x_adv), y)
            high = F.cross_entropy(-bounds_by_hand(self.net, x, y, eps), y)
            c_max, decay = float(recipe.c_max), recipe.in_epochs(recipe.c_decay)
            c_t = min(max(c_max - (t - joint - ramp) * c_max / decay, 0.0), c_max)
            k_adv, k_ibp, k_reg = self.kappas(self.fosc(x, x_adv, y, eps), c_t)
            total = k_adv * low + k_ibp * high + k_reg * high**2
            pair = torch.stack([self.gradient(low), self.gradient(high)])
            self.m = recipe.beta1 * self.m + (1 - recipe.beta1) * pair
            norms = pair.norm(dim=1).tolist()
            self.v = [recipe.beta2 * v + (1 - recipe.beta2) * n for v, n in zip(self.v, norms, strict=True)]
            self.t += 1
        self.descend(total, t)
        self.count += 1
        return low.item(), None if high is None else high.item()

    def descend(self, total: Tensor, t: float) -> None:
        recipe = self.recipe
        g = self.gradient(total + recipe.l1 * sum(p.abs().sum() for p in self.params if p.dim() > 1))
        if recipe.clip and g.norm() > recipe.clip:
            g = g * (recipe.clip / g.norm())
        if recipe.lr_shape == "linear":
            full = sum(
                recipe.in_epochs(span) for span in (recipe.warmup_natural, recipe.warmup_adversarial, recipe.ramp)
            )
            lr = recipe.lr * min(1.0, (recipe.epochs - t) / (recipe.epochs - full))
        else:
            lr = recipe.lr * recipe.lr_factor ** sum(t >= recipe.in_epochs(m) for m in recipe.lr_milestones)
        n = self.count + 1
        self.first = 0.9 * self.first + 0.1 * g
        self.second = 0.999 * self.second + 0.001 * g**2
        change = lr * (self.first / (1 - 0.9**n)) / ((self.second / (1 - 0.999**n)).sqrt() + 1e-8)
        with torch.no_grad():
            for p, part in zip(self.params, change.split([p.numel() for p in self.params]), strict=True):
                p -= part.view_as(p)


@pytest.mark.parametrize(
    ("options", "branches"),
    [
        ({"c_max": 0, "clip": 0.5, "l1": 1e-3, "lr_shape": "steps"}, {"agree", "upper"}),
        ({"c_max": 1e3, "clip": "none", "lr_shape": "linear"}, {"agree", "lower"}),
        ({"c_max": 0.3, "clip": 10, "lr_shape": "steps"}, {"agree", "lower", "upper"}),
    ],
    ids=["ibp wins", "adversarial wins", "both"],
)
def test_a_step_is_what_the_paper_prints(options: dict[str, Any], branches: set[str]) -> None:
    net = tense_net().double()
    copied = copy.deepcopy(net)
    training = begin(net, halves(120, validation=20), **TENSE, **options)
    by_hand = ByHand(copied, training.recipe, training.steps_per_epoch)
    for k in range(training.course.total):
        rows = training.feed.order(k)[:20]
        xs, ys = training.feed.images.x[rows].double(), training.feed.images.y[rows]
        step, (low, high) = training.step(xs, ys), by_hand.step(xs, ys)
        assert float(step.lower) == pytest.approx(low, rel=1e-7, abs=1e-10)
        assert (step.upper is None) == (high is None)
        if high is not None:
            assert float(step.upper) == pytest.approx(high, rel=1e-7, abs=1e-10)
        torch.testing.assert_close(weights_of(net), weights_of(copied), rtol=1e-7, atol=1e-9)
    assert by_hand.branches == branches


# FOSC and its threshold


def test_fosc_does_not_depend_on_the_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    fgsm_without_chance(monkeypatch)
    once, twice = begin(**JOINT_AT_ONCE), begin(**JOINT_AT_ONCE)
    x, y = once.feed.example(16)
    one, two = once.step(x, y), twice.step(torch.cat([x, x]), torch.cat([y, y]))
    assert float(one.fosc) > 0
    assert float(two.fosc) == pytest.approx(float(one.fosc), rel=1e-5)


@pytest.mark.parametrize(("scale", "factor"), [("sample", 1), ("batch", 30)])
def test_c_max_in_the_scale_of_the_batch_mean(scale: str, factor: int) -> None:
    training = begin(c_max=1e-4, fosc_scale=scale, **JOINT_AT_ONCE)
    assert training.gate.level is None
    next(training.run_epoch())
    assert training.gate.level == pytest.approx(1e-4 * factor)


@pytest.mark.parametrize("scale", ["sample", "batch"])
def test_automatic_c_max_is_the_fosc_of_the_warmed_up_network(scale: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fgsm_without_chance(monkeypatch)
    training = begin(c_max="auto", fosc_scale=scale)
    for _ in range(2):
        assert all(training.gate.level is None for _ in training.run_epoch())
    x, y = training.feed.images.x[training.feed.order(2)[:30]], training.feed.images.y[training.feed.order(2)[:30]]
    x_adv = attacks.linf_fgsm(training.net, x, y, 0.2, rel_stepsize=0.5).requires_grad_()
    (g,) = torch.autograd.grad(F.cross_entropy(training.net(x_adv), y, reduction="sum"), x_adv)
    want = float(attacks.fosc(x_adv.detach(), g, *attacks.feasible(x, 0.2)).mean())
    assert want > 0
    values = {training.gate.level for _ in training.run_epoch()}
    assert len(values) == 1
    assert values.pop() == pytest.approx(want, rel=1e-5)


@pytest.mark.parametrize("c_max", [0.0, 1e-4, "auto", "50%"])
def test_a_dead_network_does_not_count_as_attacked_strongly(c_max: float | str) -> None:
    """Its FOSC by the formula is 0, at or below any c_t, and the adversarial loss would win every conflict."""
    net = nets.build("FC 6", (1, 4, 4), 2, seed=0)
    with torch.no_grad():
        net[1].weight.zero_()
        net[1].bias.fill_(-1.0)
    training = begin(net, **JOINT_AT_ONCE, c_max=c_max)
    steps = [training.step(*training.feed.example(30)) for _ in range(3)]
    assert [math.isinf(float(step.fosc)) for step in steps if step.fosc is not None] == [True]
    assert not any(step.weights and step.weights.branch == "lower" for step in steps)


def test_a_share_of_the_conflicts_puts_the_adversarial_loss_first() -> None:
    found = []
    for share in ("0%", "30%", "100%"):
        training = begin(tense_net(), **{**TENSE, "epochs": 40, "c_extra": 30, "c_decay": 3}, c_max=share)
        branches = Counter(step.weights.branch for step in all_steps(training) if step.weights)
        assert branches["lower"] + branches["upper"] > 10
        found.append(branches["lower"] / (branches["lower"] + branches["upper"]))
    assert found[0] == 0 < found[1] < found[2]
    assert found[2] > 0.9


@pytest.mark.parametrize("fosc_set", ["clipped", "ball"])
def test_the_set_of_fosc_is_the_clipped_ball_or_the_one_the_paper_prints(fosc_set: str) -> None:
    """The printed FOSC is eps |g|_1 - <x_adv - x, g>, without the clipping to [0, 1]."""
    inputs = begin(fosc_set=fosc_set, **JOINT_AT_ONCE).stages.inputs(torch.rand(4, 1, 28, 28), 0.3)
    generator = torch.Generator().manual_seed(0)
    x_adv = (inputs.ball.x + 0.3 * (2 * torch.rand(inputs.ball.x.shape, generator=generator) - 1)).clamp(0, 1)
    g = torch.randn(inputs.ball.x.shape, generator=generator)
    printed = (0.3 * g.abs().flatten(1).sum(1) - ((x_adv - inputs.ball.x) * g).flatten(1).sum(1)).mean() * 4
    ours = inputs.fosc(x_adv, g)
    if fosc_set == "ball":
        torch.testing.assert_close(ours, printed)
    else:
        assert ours < printed


# The caller's world


@pytest.mark.parametrize("lr", [1e-3, 1e6])
def test_training_leaves_random_state_and_threads_alone(lr: float) -> None:
    """Whether it ends well or diverges."""
    torch.manual_seed(123)
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    net = nets.build(", ".join(["FC 8"] * 8), (1, 4, 4), 2, seed=0)
    with pytest.raises(UserError, match="diverged") if lr > 1 else nullcontext():
        train(net, halves(), threads=threads + 1, lr=lr, **SHORT)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads


def test_training_does_not_depend_on_the_callers_random_state() -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        training = begin()
        all_steps(training)
        found.append(weights_of(training.net))
    assert torch.equal(*found)


@pytest.mark.parametrize("method", ["advibp", "fixed", "ibp"])
def test_a_separable_problem_is_learned_and_proved(method: str) -> None:
    """Both halves differ by 0.7 - 0.25 at least; eps 0.15 leaves room."""
    net = nets.build("FC 8", (1, 4, 4), 2, seed=1, init="ibp")
    options = {"epochs": 16, "ramp": "40%", "lr": 0.02, "batch_size": 40, "eps": 0.15}
    run = train(net, halves(400, validation=100), method=method, **options)
    last = run.history[-1]
    assert last["standard_error"] <= 0.01
    assert last["verified_error"] <= 0.02
    assert run.summary["validation"]["verified_error"] == last["verified_error"]


def test_divergence_stops_with_one_sentence(tmp_path: Path) -> None:
    net = nets.build(", ".join(["FC 8"] * 8), (1, 4, 4), 2, seed=1)
    with pytest.raises(UserError, match="diverged") as raised:
        train(net, halves(), out=tmp_path / "run", lr=1e6, **SHORT)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("explodes_at", [2.0, 2.7])
def test_divergence_keeps_the_last_checkpoint(
    explodes_at: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the losses of its own epoch show it, or the explosion comes with the very last step (of four)."""
    monkeypatch.setattr(Training, "_learning_rate", lambda self, t: 1e-3 if t < explodes_at else math.inf)
    with pytest.raises(UserError, match="diverged"):
        train(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), out=tmp_path, **SHORT)
    newest, *_ = checkpoint.newest(tmp_path / "checkpoints")
    tensors, facts = checkpoint.load(newest)
    assert facts["steps"] == 2 * 4
    assert all(v.isfinite().all() for v in tensors.values())
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("method", ["advibp", "standard"])
def test_a_network_that_cannot_be_bounded_is_refused_before_the_first_step(method: str) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2), nn.Softmax(1))
    with pytest.raises(UserError, match="softmax"):
        begin(net, method=method).check()


def test_looking_at_a_network_does_not_change_it() -> None:
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(16, 2))
    before = copy.deepcopy(net.state_dict())
    begin(net, method="standard").check()
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())


@pytest.mark.parametrize(
    "net",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(9, 2)),
        nn.Sequential(nn.Flatten(), nn.Linear(16, 1)),
        nn.Linear(4, 2),
        nn.LSTM(4, 2),
    ],
    ids=["other input", "too few classes", "no logits", "tuple"],
)
def test_a_network_that_does_not_fit_the_data_is_refused(net: nn.Module) -> None:
    with pytest.raises(UserError, match=r"can't take images|returns"):
        begin(net).check()


def test_a_network_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(UserError, match="no trainable parameter"):
        begin(nets.build("FC 3", (1, 4, 4), 2).requires_grad_(False))


def test_frozen_parameters_stay() -> None:
    net = nets.build("FC 6", (1, 4, 4), 2, seed=0)
    net[1].requires_grad_(False)
    frozen = net[1].weight.clone()
    all_steps(begin(net))
    assert torch.equal(net[1].weight, frozen)


@pytest.mark.parametrize("count", [3, 30, 31, 59])
def test_small_data_and_odd_batches_train(count: int) -> None:
    training = begin(
        data=halves(count + 5, validation=5), epochs=2.5, warmup_natural=0.5, warmup_adversarial=0.5, ramp=1
    )
    steps = all_steps(training)
    assert len(steps) == max(1, round(2.5 * (count // min(30, count))))
    assert all(math.isfinite(float(s.lower)) for s in steps)


def test_objectives_are_those_of_the_method() -> None:
    training = begin()
    assert training._objectives("natural") == (objectives.regular, None)
    assert training._objectives("adversarial") == (objectives.adversarial, None)
    assert training._objectives("full") == (objectives.adversarial, objectives.ibp)
