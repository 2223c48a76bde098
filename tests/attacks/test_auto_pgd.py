"""APGD: inside the set, exact where theory gives the optimum, and stronger than PGD where it does not."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import get_args

import pytest
import torch
from attack_problems import Spy, problem, wrong
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import UserError
from advibp.attacks import LossName as Loss
from advibp.attacks import attack_loss, feasible, linf_apgd, linf_pgd
from advibp.attacks.attack_loss import targeted_loss
from advibp.attacks.auto_pgd import _AdaptiveIterates, checkpoints
from advibp.attacks.restarts import Iterates

LOSSES = get_args(Loss)

seeds = st.integers(0, 2**32 - 1)
radii = st.one_of(st.just(0.0), st.floats(1e-3, 1.5))
ranges = st.sampled_from([(0.0, 1.0), None, (-0.5, 2.0)])
losses = st.sampled_from(LOSSES)


def value(net: nn.Module, x: Tensor, y: Tensor, loss: Loss = "margin") -> Tensor:
    with torch.no_grad():
        return attack_loss(net(x), y, loss=loss)


def battery(seed: int, n: int = 30) -> tuple[nn.Module, Tensor, Tensor]:
    """A ReLU network with two hidden layers and 5 classes, and images (n, 8) that it classifies as y."""
    torch.manual_seed(seed)
    layers = [nn.Linear(8, 24), nn.ReLU(), nn.Linear(24, 24), nn.ReLU(), nn.Linear(24, 5)]
    net = nn.Sequential(*layers).double()
    for p in net.parameters():
        p.data *= 3  # far from linear, and confident
    x = torch.rand(n, 8, dtype=torch.float64)
    return net, x, net(x).argmax(1)


# ------------------------------------------------------------------------------------ the feasible set


@given(seeds, radii, ranges, losses, st.booleans(), st.integers(1, 12))
def test_every_iterate_is_in_the_set(
    seed: int, eps: float, within: tuple[float, float] | None, loss: Loss, start: bool, steps: int
) -> None:
    net, x, y = problem(seed)
    spy, (lower, upper) = Spy(net), feasible(x, eps, within)
    found = linf_apgd(
        spy, x, y, eps, steps=steps, restarts=2, loss=loss, random_start=start, stop_on_success=False, within=within
    )
    assert len(spy.seen) == 2 * (steps + 1)  # one look per step, and one at the last iterate
    for iterate in (*spy.seen, found.x_adv):
        assert bool(((lower <= iterate) & (iterate <= upper)).all())


@given(seeds, losses)
def test_a_latent_box_is_a_tensor_of_radii_and_no_range(seed: int, loss: Loss) -> None:
    net, _, y = problem(seed)
    center, radius = 3 * torch.randn(6, 4, dtype=torch.float64), torch.rand(6, 4, dtype=torch.float64)
    radius[:, 0] = 0  # a neuron that is known exactly
    found = linf_apgd(net, center, y, radius, steps=6, restarts=2, loss=loss, within=None)
    lower, upper = feasible(center, radius, None)
    assert bool(((lower <= found.x_adv) & (found.x_adv <= upper)).all())
    assert torch.equal(found.x_adv[:, 0], center[:, 0])
    assert torch.equal(found.broken, wrong(net, found.x_adv, y))


def test_images_keep_their_shape() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3))
    x = torch.rand(5, 1, 6, 6)
    found = linf_apgd(net, x, net(x).argmax(1), 0.3, steps=10, restarts=2)
    assert found.x_adv.shape == x.shape
    assert torch.equal(found.broken, wrong(net, found.x_adv, net(x).argmax(1)))


# ------------------------------------------------------------------------------------ what is found


@given(seeds, st.floats(0.01, 0.5), losses, st.booleans(), st.booleans(), st.integers(1, 3))
def test_broken_is_to_return_a_misclassified_point(
    seed: int, eps: float, loss: Loss, stop: bool, targeted: bool, restarts: int
) -> None:
    net, x, y = problem(seed)
    options = {"steps": 5, "restarts": restarts, "loss": loss, "stop_on_success": stop, "targeted": targeted}
    found = linf_apgd(net, x, y, eps, **options)
    assert torch.equal(found.broken, wrong(net, found.x_adv, y) if restarts else torch.zeros(len(x), dtype=torch.bool))


@given(seeds, st.floats(0.05, 0.5), losses, st.integers(1, 3))
def test_the_best_of_all_iterates_is_returned(seed: int, eps: float, loss: Loss, restarts: int) -> None:
    """So it is never weaker than its start."""
    net, x, y = problem(seed)
    spy = Spy(net)
    found = linf_apgd(spy, x, y, eps, steps=6, restarts=restarts, loss=loss, stop_on_success=False)
    values = torch.stack([value(net, s, y, loss) for s in spy.seen])
    hits = torch.stack([wrong(net, s, y) for s in spy.seen])
    assert torch.equal(found.broken, hits.any(0))
    among = torch.where(hits == hits.any(0), values, -torch.inf)
    torch.testing.assert_close(value(net, found.x_adv, y, loss), among.amax(0))


@pytest.mark.parametrize("loss", ["margin", "ce"])
@given(seed=seeds, eps=st.floats(0.01, 0.5), within=ranges)
def test_two_classes_of_a_linear_model_end_in_the_worst_vertex(
    loss: Loss, seed: int, eps: float, within: tuple[float, float] | None
) -> None:
    """The first step crosses the ball, and the second leaves no rounding behind."""
    net, x, y = problem(seed, classes=2, linear=True)
    found = linf_apgd(net, x, y, eps, steps=2, loss=loss, stop_on_success=False, within=within)
    torch.testing.assert_close(value(net, found.x_adv, y), optimum(net, x, y, eps, within))


@given(seed=seeds, eps=st.floats(0.01, 0.5), within=ranges)
def test_one_restart_per_class_is_exact_on_a_linear_model(
    seed: int, eps: float, within: tuple[float, float] | None
) -> None:
    net, x, y = problem(seed, classes=5, linear=True)
    found = linf_apgd(net, x, y, eps, steps=2, restarts=5, stop_on_success=False, within=within)
    torch.testing.assert_close(value(net, found.x_adv, y), optimum(net, x, y, eps, within))
    assert torch.equal(found.broken, wrong(net, found.x_adv, y))


def optimum(net: nn.Module, x: Tensor, y: Tensor, eps: float, within: tuple[float, float] | None) -> Tensor:
    """The largest margin (B,) of a linear model on the set: each class's, element by element, then the best class's."""
    lower, upper = (end[:, None] for end in feasible(x, eps, within))
    w, b = net.weight.detach() - net.weight.detach()[y][:, None], net.bias.detach() - net.bias.detach()[y][:, None]
    margins = torch.maximum(w * lower, w * upper).sum(2) + b
    return margins.scatter(1, y[:, None], -torch.inf).amax(1)


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("eps", [0.03, 0.06])
def test_it_breaks_what_pgd_breaks_and_more(eps: float, loss: Loss) -> None:
    ours = theirs = 0
    for seed in range(12):
        net, x, y = battery(seed)
        torch.manual_seed(seed)
        theirs += int(linf_pgd(net, x, y, eps, steps=20, restarts=3).broken.sum())
        torch.manual_seed(seed)
        ours += int(linf_apgd(net, x, y, eps, steps=20, restarts=3, loss=loss).broken.sum())
    assert ours >= theirs > 0


def test_a_restart_aims_at_a_class_that_the_gradient_hides() -> None:
    """Class 1 is ahead of class 2 everywhere near x and cannot win; class 2 can, in the other direction."""

    def net(x: Tensor) -> Tensor:
        return torch.cat([0 * x, -0.5 + 0.1 * x, -1 - 2 * x], 1)

    x, y = torch.tensor([[0.0]]), torch.tensor([0])
    options = {"steps": 10, "restarts": 3, "random_start": False, "within": None}
    assert not bool(linf_apgd(net, x, y, 0.6, targeted=False, **options).broken)
    found = linf_apgd(net, x, y, 0.6, **options)
    assert bool(found.broken)
    assert float(found.x_adv) < -0.5


@given(seeds)
def test_restarts_aim_at_the_wrong_classes_from_the_likeliest_on(seed: int) -> None:
    """One step on a linear model ends in the vertex of the class it aims at; after the last class comes the first."""
    net, x, y = problem(seed, classes=4, linear=True)
    spy = Spy(net)
    linf_apgd(spy, x, y, 0.1, steps=1, restarts=5, random_start=False, stop_on_success=False, within=None)
    order = [
        [k for k in row if k != label] for row, label in zip((-net(x)).argsort(1).tolist(), y.tolist(), strict=True)
    ]
    for restart in range(1, 5):
        target = torch.tensor([classes[(restart - 1) % 3] for classes in order])
        uphill = (net.weight[target] - net.weight[y]).sign()
        torch.testing.assert_close(spy.seen[2 * restart + 1], (x + 0.1 * uphill).detach())


def test_a_saturated_cross_entropy_hides_what_the_margin_sees() -> None:
    """Logits so far apart that the cross-entropy is 0 in float32 have no gradient to follow."""

    def net(x: Tensor) -> Tensor:
        return 1000 * torch.cat([0 * x, x - 0.5], 1)

    x, y = torch.tensor([[0.1]]), torch.tensor([0])
    assert not bool(linf_apgd(net, x, y, 0.6, loss="ce", random_start=False).broken)
    assert bool(linf_apgd(net, x, y, 0.6, loss="margin", random_start=False).broken)


@given(seeds, st.floats(0.01, 0.5), st.booleans(), losses)
def test_more_restarts_never_find_less(seed: int, eps: float, stop: bool, loss: Loss) -> None:
    net, x, y = problem(seed)
    found = []
    for restarts in (1, 2, 4):
        torch.manual_seed(seed)  # the first restarts are then the same
        found.append(linf_apgd(net, x, y, eps, steps=3, restarts=restarts, stop_on_success=stop, loss=loss))
    for fewer, more in pairwise(found):
        assert not bool((fewer.broken & ~more.broken).any())
        same = fewer.broken == more.broken
        gain = value(net, more.x_adv, y, loss) - value(net, fewer.x_adv, y, loss)
        assert bool((gain >= -1e-12)[same].all())


@given(seeds, st.floats(0.05, 0.5), losses)
def test_broken_images_leave_the_batch_and_else_their_loss_rises_further(seed: int, eps: float, loss: Loss) -> None:
    net, x, y = problem(seed)
    stopping, going = Spy(net), Spy(net)
    torch.manual_seed(seed)
    found = linf_apgd(stopping, x, y, eps, steps=8, loss=loss)
    torch.manual_seed(seed)
    searched = linf_apgd(going, x, y, eps, steps=8, loss=loss, stop_on_success=False)
    assert torch.equal(found.broken, searched.broken)
    assert bool((value(net, searched.x_adv, y, loss) >= value(net, found.x_adv, y, loss) - 1e-12).all())
    broken = torch.zeros(len(x), dtype=torch.bool)
    for k, iterates in enumerate(going.seen):  # at each step those are left that no earlier iterate has broken
        shown = stopping.seen[k] if k < len(stopping.seen) else torch.empty(0, 4)
        torch.testing.assert_close(shown.double(), iterates[~broken])
        broken |= wrong(net, iterates, y)


def test_without_stopping_the_loss_of_most_broken_images_is_higher() -> None:
    net, x, y = battery(0)
    ends = [linf_apgd(net, x, y, 0.1, steps=20, random_start=False, stop_on_success=stop) for stop in (True, False)]
    gain = (value(net, ends[1].x_adv, y) - value(net, ends[0].x_adv, y))[ends[0].broken]
    assert float((gain > 0).double().mean()) > 0.5


# ------------------------------------------------------------------------------------ the step rule


def test_checkpoints_of_a_hundred_steps_are_the_papers() -> None:
    assert list(checkpoints(100)) == [0, 22, 41, 57, 70, 80, 87, 93, 99]


@given(st.integers(0, 300))
def test_checkpoints_partition_the_steps(steps: int) -> None:
    found = checkpoints(steps)
    assert found[0] == 0
    assert all(
        moves == after - before > 0
        for (before, after), moves in zip(pairwise(found), [*found.values()][1:], strict=True)
    )
    assert max(found) <= steps


def test_the_step_is_halved_until_a_narrow_peak_is_found() -> None:
    """In a valley turned upside down every long step overshoots; PGD's tenths of eps never come nearer than 0.05."""

    def net(x: Tensor) -> Tensor:
        return torch.cat([0 * x, -(x - 0.4321).abs()], 1)

    x, y = torch.tensor([[0.0]], dtype=torch.float64), torch.tensor([0])
    spy = Spy(nn.Identity())
    found = linf_apgd(lambda x: net(spy(x)), x, y, 1.0, steps=100, random_start=False, within=None)
    assert float((found.x_adv - 0.4321).abs()) < 0.01
    walk = torch.cat(spy.seen).flatten()
    assert float(walk[1]) == 1.0  # the first step is 2 eps long, and projected
    assert float(walk[-8:].diff().abs().max()) < 0.1


def test_an_image_that_is_stuck_returns_to_its_peak() -> None:
    """The loss is highest at the start: from there each checkpoint begins again, with half the step. A first move
    without momentum is 0.75 of the step."""

    def net(x: Tensor) -> Tensor:
        return torch.cat([0 * x, -1 - x.abs() - 0.1 * x], 1)

    x, y = torch.tensor([[0.0]], dtype=torch.float64), torch.tensor([0])
    spy = Spy(nn.Identity())
    found = linf_apgd(lambda x: net(spy(x)), x, y, 1.0, steps=100, random_start=False, within=None)
    walk = torch.cat(spy.seen).flatten().tolist()
    assert [walk[w + 1] for w in (0, 22, 41, 57)] == [-1, -0.75, -0.375, -0.1875]
    assert float(found.x_adv) == 0.0
    assert not bool(found.broken)


@pytest.mark.parametrize(
    ("rises", "halved", "top", "stuck"),
    [(8, False, 1.0, False), (7, False, 1.0, True), (8, False, 0.0, True), (8, True, 0.0, False), (7, True, 1.0, True)],
)
def test_the_two_conditions(rises: int, halved: bool, top: float, stuck: bool) -> None:
    """Ten moves: 8 rises are enough and 7 are not; a top that stays is too little, unless the step is new."""
    x, row = torch.zeros(1, 4), torch.zeros(1, dtype=torch.long)
    at = _AdaptiveIterates.begin(Iterates(row, row, x - 1, x + 1, torch.ones_like(x), x), row)
    at.rises, at.halved = row + rises, torch.tensor([halved])
    at.best_value, at.best_at_checkpoint = x[:, 0] + top, x[:, 0]
    at.check_progress(10, torch.zeros_like(x))
    assert bool(at.halved) == stuck
    assert torch.equal(at.stepsize, torch.full_like(x, 1.0 if stuck else 2.0))


@given(seeds, st.floats(0.1, 0.6), losses, st.integers(1, 40))
def test_each_image_walks_as_the_paper_says(seed: int, eps: float, loss: Loss, steps: int) -> None:
    net, x, y = battery(seed, n=3)
    spy = Spy(net)
    linf_apgd(spy, x, y, eps, steps=steps, loss=loss, random_start=False, stop_on_success=False)
    for i in range(len(x)):
        expected = torch.cat(walk(net, x[i : i + 1], y[i : i + 1], eps, loss, steps))
        torch.testing.assert_close(torch.stack([s[i] for s in spy.seen]), expected)


def walk(net: nn.Module, x: Tensor, y: Tensor, eps: float, loss: Loss, steps: int) -> list[Tensor]:
    """The iterates of one image (1, ...), written down from the description, one step after the other."""
    lower, upper = feasible(x, eps)
    points, values, tops, etas, last, eta = [x], [], [], {0: 2 * eps}, 0, 2 * eps
    now, before, peak = x, x, x
    for k in range(steps):
        values.append(float(value(net, points[k], y, loss)))
        tops.append(max(values))
        peak = points[k] if values[k] == tops[k] and values.count(tops[k]) == 1 else peak
        if k in checkpoints(steps) and k > 0:
            # What went back to the peak began there, not where the last interval had ended.
            begins = [tops[last] if etas[last] != eta else values[last], *values[last + 1 : k + 1]]
            few = sum(b > a for a, b in pairwise(begins)) < 0.75 * (k - last)
            etas[k] = eta
            if few or (etas[last] == eta and tops[last] == tops[k]):
                eta, now, before = eta / 2, peak, peak
            last = k
        at = now.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(attack_loss(net(at), y, loss=loss).sum(), at)
        z = torch.clamp(now + eta * gradient.sign(), lower, upper)
        alpha = 0.75 if k else 1.0
        x_next = torch.clamp(now + alpha * (z - now) + (1 - alpha) * (now - before), lower, upper)
        now, before = x_next, now
        points.append(x_next)
    return points


# ------------------------------------------------------------------------------------ no trace, no surprise


@settings(max_examples=20)
@given(seeds, losses)
def test_an_image_with_its_own_generator_does_not_know_its_batch(seed: int, loss: Loss) -> None:
    net, x, y = problem(seed)

    def generators(rows: list[int]) -> list[torch.Generator]:
        return [torch.Generator().manual_seed(100 + i) for i in rows]

    options = {"steps": 8, "restarts": 3, "loss": loss}
    everything = linf_apgd(net, x, y, 0.1, generators=generators([*range(6)]), **options)
    for rows in ([0], [3], [5, 1, 2]):
        alone = linf_apgd(net, x[rows], y[rows], 0.1, generators=generators(rows), **options)
        assert torch.equal(alone.broken, everything.broken[rows])
        torch.testing.assert_close(alone.x_adv, everything.x_adv[rows])


def test_the_global_seed_determines_an_attack() -> None:
    net, x, y = problem(0)
    found = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        found.append(linf_apgd(net, x, y, 0.05, steps=2, restarts=2).x_adv)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_without_a_random_start_no_randomness_is_used() -> None:
    net, x, y = problem(0)
    state, spy = torch.random.get_rng_state(), Spy(net)
    linf_apgd(spy, x, y, 0.1, steps=3, restarts=2, random_start=False)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(spy.seen[0], x)


def test_network_and_images_are_left_alone() -> None:
    net, x, y = problem(0)
    before, weights = x.clone(), [p.clone() for p in net.parameters()]
    found = linf_apgd(net, x, y, 0.2, steps=10, restarts=2)
    assert all(p.grad is None and torch.equal(p, w) for p, w in zip(net.parameters(), weights, strict=True))
    assert torch.equal(x, before)
    assert not found.x_adv.requires_grad
    assert found.x_adv.data_ptr() != x.data_ptr()


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_point_at_which_the_network_overflows_is_no_counterexample(bad: float, loss: Loss) -> None:
    """Uphill the network breaks down; the walk stays in the set, and finds its way back from there."""

    def net(x: Tensor) -> Tensor:
        hill = x + torch.where(x > 0.6, bad, 0.0)
        return torch.cat([torch.ones_like(x), hill, -x], 1)

    x, y, spy = torch.tensor([[0.5], [0.1]]), torch.tensor([0, 0]), Spy(nn.Identity())
    found = linf_apgd(lambda x: net(spy(x)), x, y, 0.3, steps=40, restarts=3, loss=loss)
    assert not bool(found.broken.any())
    assert bool(net(found.x_adv).isfinite().all())
    assert all(bool(((s - x).abs() <= 0.3 + 1e-6).all()) for s in spy.seen)
    everywhere = linf_apgd(lambda x: bad * net(x), x, y, 0.3, steps=5, restarts=2, loss=loss)
    assert not bool(everywhere.broken.any())
    assert bool(everywhere.x_adv.isfinite().all())


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_overflow_is_nowhere_to_go_back_to(bad: float) -> None:
    """The first step goes too far; only the way back to the start, and shorter steps, meet the counterexamples."""

    def net(x: Tensor) -> Tensor:
        return torch.cat([torch.full_like(x, 0.4), x + torch.where(x > 0.6, bad, 0.0)], 1)

    found = linf_apgd(net, torch.tensor([[0.3]]), torch.tensor([0]), 0.5, random_start=False)
    assert bool(found.broken)
    assert 0.4 < float(found.x_adv) <= 0.6


@pytest.mark.parametrize("stop", [True, False])
def test_no_images(stop: bool) -> None:
    net, x, y = problem(0)
    found = linf_apgd(net, x[:0], y[:0], 0.1, steps=3, restarts=2, stop_on_success=stop, generators=[])
    assert found.x_adv.shape == (0, 4)
    assert found.broken.shape == (0,)


# ------------------------------------------------------------------------------------ losses


@given(seeds, st.floats(0.01, 100))
def test_dlr_is_the_margin_without_its_scale(seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    logits, y = torch.randn(5, 4, dtype=torch.float64), torch.randint(4, (5,))
    found = attack_loss(logits, y, loss="dlr")
    torch.testing.assert_close(attack_loss(scale * logits + 7, y, loss="dlr"), found)
    for row, label, ratio in zip(logits.tolist(), y.tolist(), found.tolist(), strict=True):
        first, _, third, _ = sorted(row, reverse=True)
        margin = max(z for k, z in enumerate(row) if k != label) - row[label]
        assert ratio == pytest.approx(margin / (first - third))


def test_dlr_of_two_classes_is_refused() -> None:
    net, x, y = problem(0, classes=2)
    with pytest.raises(UserError, match=r"dlr needs 3 classes.*2.*margin"):
        linf_apgd(net, x, y, 0.1, loss="dlr")


@given(seeds)
def test_the_targeted_loss_of_the_best_target_is_the_margin(seed: int) -> None:
    torch.manual_seed(seed)
    logits, y = torch.randn(5, 4), torch.randint(4, (5,))
    each = torch.stack([targeted_loss(logits, y, (y + k) % 4) for k in (1, 2, 3)])
    torch.testing.assert_close(each.amax(0), attack_loss(logits, y, loss="margin"))
