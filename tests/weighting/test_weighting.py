"""Algorithm 1: against the paper's pseudo-code, the geometry of its figure, and what a loop of one's own gets."""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp.errors import UserError
from advibp.recipe import Recipe
from advibp.weighting import (
    BETA1,
    BETA2,
    BaseWeighting,
    Fixed,
    Moments,
    Scheduled,
    Weighting,
    Weights,
    combine,
    compute_weights,
    joint_backward,
    with_state_dict,
)
from advibp.weighting.surgery import TorchJDWeighting

# Coordinates on a grid of 1/8: moments of ordinary size, and inner products that are exact.
coordinates = st.integers(-80, 80).map(lambda k: k / 8)
vectors = st.lists(coordinates, min_size=3, max_size=3).map(lambda c: torch.tensor(c, dtype=torch.float64))
moments = vectors.filter(lambda m: bool(m.norm() > 0))
pairs = st.tuples(moments, moments)
factors = st.floats(0.1, 10)
seeds = st.integers(0, 2**32 - 1)


def weights_of(m: tuple[Tensor, Tensor], v: tuple[float, float], *, strong: bool) -> Weights:
    five = float(m[0] @ m[1]), float(m[0] @ m[0]), float(m[1] @ m[1]), *v
    return compute_weights(*five, strong=strong)


def combined(w: Weights, m: tuple[Tensor, Tensor]) -> Tensor:
    return w.lower * m[0] + w.upper * m[1]


def norms(m: tuple[Tensor, Tensor]) -> tuple[float, float]:
    return float(m[0].norm()), float(m[1].norm())


# ------------------------------------------------------------------------------------ the paper's pseudo-code


class PseudoCode:
    """Algorithm 1 line by line, on whole vectors."""

    def __init__(self, n: int, beta1: float, beta2: float) -> None:
        self.beta1, self.beta2, self.t = beta1, beta2, 0
        self.m1 = self.m2 = torch.zeros(n, dtype=torch.float64)
        self.v1 = self.v2 = 0.0

    def compute_weights(self, g_adv: Tensor, g_ibp: Tensor, c: float, c_t: float) -> tuple[float, float, float]:
        b1, b2 = self.beta1, self.beta2
        self.t += 1
        self.m1 = b1 * self.m1 + (1 - b1) * g_adv
        self.m2 = b1 * self.m2 + (1 - b1) * g_ibp
        self.v1 = b2 * self.v1 + (1 - b2) * float((g_adv**2).sum().sqrt())
        self.v2 = b2 * self.v2 + (1 - b2) * float((g_ibp**2).sum().sqrt())
        m1, m2 = self.m1 / (1 - b1**self.t), self.m2 / (1 - b1**self.t)
        v1, v2 = self.v1 / (1 - b2**self.t), self.v2 / (1 - b2**self.t)
        inner = float((m1 * m2).sum())
        if inner > 0:
            bisector = m1 / v1 + m2 / v2
            gamma = 0.5 * float(((m1 + m2) * bisector).sum()) / float((bisector**2).sum())
            return gamma / v1, gamma / v2, 0.0
        if c <= c_t:
            return 1.0, -inner / v2**2, 0.0
        return -inner / v1**2, 1.0, 0.5


@pytest.mark.parametrize("betas", [(0.9, 0.99), (0.0, 0.0), (0.99, 0.5)])
def test_a_thousand_steps_of_the_pseudo_code(betas: tuple[float, float]) -> None:
    random = torch.Generator().manual_seed(0)
    ours, theirs, branches = Moments(*betas), PseudoCode(5, *betas), Counter[str]()
    past: Tensor | None = None
    for t in range(1000):
        c, c_t = torch.rand(2, generator=random, dtype=torch.float64).tolist()
        w = ours.weights(c, c_t)
        if past is None:
            assert (w.lower, w.upper, w.reg) == (0.5, 0.5, 0.0)
        else:
            expected = theirs.compute_weights(past[0], past[1], c, c_t)
            assert (w.lower, w.upper, w.reg) == pytest.approx(expected, rel=1e-9)
        branches[w.branch] += 1
        # The two losses drift from agreement to conflict and back, and their scales drift apart.
        g = torch.randn(2, 5, generator=random, dtype=torch.float64)
        g[0, 0] += 2
        g[1, 0] += 2 * math.cos(t / 50)
        past = g * torch.tensor([[1.0], [10 ** math.sin(t / 30)]], dtype=torch.float64)
        ours.update(past)
    assert branches["start"] == 1
    assert min(branches[b] for b in ("agree", "lower", "upper")) > 100


# ------------------------------------------------------------------------------------ what the moments are


def test_before_any_gradient_both_weigh_one_half() -> None:
    w = Moments().weights(fosc=1.0, c_t=0.0)
    assert (w.lower, w.upper, w.reg, w.branch) == (0.5, 0.5, 0.0, "start")


@given(pairs, st.floats(0, 0.999), st.floats(0, 0.999), st.booleans())
def test_corrected_moments_of_one_gradient_are_that_gradient(
    g: tuple[Tensor, Tensor], beta1: float, beta2: float, strong: bool
) -> None:
    weighting = Moments(beta1, beta2)
    weighting.update(torch.stack(g))
    w, expected = weighting.weights(0.0 if strong else 1.0, 0.5), weights_of(g, norms(g), strong=strong)
    assert w.branch == expected.branch
    assert (w.lower, w.upper, w.reg) == pytest.approx(
        (expected.lower, expected.upper, expected.reg), rel=1e-9, abs=1e-12
    )


@given(pairs, st.integers(1, 200))
def test_constant_gradients_are_their_own_moments(g: tuple[Tensor, Tensor], steps: int) -> None:
    weighting = Moments()
    for _ in range(steps):
        weighting.update(torch.stack(g))
    torch.testing.assert_close(weighting.m, torch.stack(g) * (1 - BETA1**steps))
    assert weighting.weights(fosc=0)[:3] == pytest.approx(weights_of(g, norms(g), strong=True)[:3], rel=1e-9, abs=1e-12)
    assert weighting.weights()[:3] == pytest.approx(weights_of(g, norms(g), strong=False)[:3], rel=1e-9, abs=1e-12)


@given(seeds, st.integers(0, 8), st.tuples(pairs, pairs))
def test_the_current_gradient_does_not_touch_the_current_weights(
    seed: int, steps: int, current: tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Two runs of one past and different last batches: the same weights, to the bit. The losses are linear, <g, theta>,
    so their gradients are exactly what the test says."""
    past = torch.randn(steps, 2, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    returned = []
    for last in current:
        weighting, theta = Moments(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        for g in [*past, torch.stack(last)]:
            w = joint_backward(weighting, g[0] @ theta, g[1] @ theta, [theta], fosc=1.0, c_t=0.5)
        returned.append((w.lower, w.upper, w.reg, w.branch))
        torch.testing.assert_close(theta.grad, combine(w, torch.stack(last), last[1].sum()))
    assert returned[0] == returned[1]


# ------------------------------------------------------------------------------------ the three cases of the figure


@given(pairs, factors, factors)
def test_agreement_averages_the_projections_on_the_bisector(m: tuple[Tensor, Tensor], k1: float, k2: float) -> None:
    """Whatever positive norm moments v there are: the step descends both."""
    if float(m[0] @ m[1]) <= 0:
        m = m[0], -m[1]
    if float(m[0] @ m[1]) == 0:
        return
    v = k1 * norms(m)[0], k2 * norms(m)[1]
    w = weights_of(m, v, strong=False)
    assert w.branch == "agree"
    assert w.reg == 0
    step, bisector = combined(w, m), m[0] / v[0] + m[1] / v[1]
    torch.testing.assert_close(step, w.lower * v[0] * bisector)
    assert w.lower * v[0] == pytest.approx(w.upper * v[1])
    projections = [(m_i @ bisector) / (bisector @ bisector) * bisector for m_i in m]
    torch.testing.assert_close(step, (projections[0] + projections[1]) / 2)
    assert step @ m[0] > 0
    assert step @ m[1] > 0


@given(pairs)
def test_the_bisector_halves_the_angle_when_v_is_the_norm(m: tuple[Tensor, Tensor]) -> None:
    if float(m[0] @ m[1]) <= 0:
        return
    w = weights_of(m, norms(m), strong=True)
    step = combined(w, m)
    cosines = [float(step @ m_i / (step.norm() * m_i.norm())) for m_i in m]
    assert cosines[0] == pytest.approx(cosines[1])
    assert cosines[0] == pytest.approx(math.cos(math.radians(w.angle / 2)), abs=1e-7)


def in_conflict(m: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return (m[0], -m[1]) if float(m[0] @ m[1]) > 0 else m


@given(pairs, factors, st.floats(1, 10), st.booleans())
def test_conflict_never_ascends_the_prioritised_moment(
    m: tuple[Tensor, Tensor], k: float, at_least_1: float, strong: bool
) -> None:
    """<m1 - <m1, m2> / v2^2 m2, m1> = |m1|^2 - <m1, m2>^2 / v2^2 >= 0 by Cauchy-Schwarz when |m2| <= v2: the norm
    moment of the projected one is what counts, that of the prioritised one plays no part."""
    m = in_conflict(m)
    first, other = (0, 1) if strong else (1, 0)
    v = [k * n for n in norms(m)]
    v[other] = at_least_1 * norms(m)[other]
    w = weights_of(m, (v[0], v[1]), strong=strong)
    assert w.branch == ("lower" if strong else "upper")
    assert w[first] == 1
    assert w[other] >= 0
    assert w.reg == (0 if strong else 0.5)
    step, size = combined(w, m), float(m[first] @ m[first])
    assert float(step @ m[first]) >= -1e-12 * size
    # The other loss may rise, but never faster than under the prioritised gradient alone.
    alone = float(m[first] @ m[other])
    assert alone - 1e-12 * abs(alone) <= float(step @ m[other]) <= 1e-12 * abs(alone)


@given(pairs, factors, st.booleans())
def test_conflict_is_orthogonal_to_the_other_moment_when_v_is_its_norm(
    m: tuple[Tensor, Tensor], k: float, strong: bool
) -> None:
    m = in_conflict(m)
    other = 1 if strong else 0
    v = [k * n for n in norms(m)]
    v[other] = norms(m)[other]
    step = combined(weights_of(m, (v[0], v[1]), strong=strong), m)
    assert float(step @ m[other]) == pytest.approx(0, abs=1e-12 * norms(m)[0] * norms(m)[1])


def moments_of(weighting: Moments) -> tuple[tuple[Tensor, Tensor], tuple[float, float]]:
    """Bias-corrected m and v."""
    assert weighting.m is not None
    assert weighting.v is not None
    m = weighting.m / (1 - weighting.beta1**weighting.t)
    v = weighting.v / (1 - weighting.beta2**weighting.t)
    return (m[0], m[1]), (float(v[0]), float(v[1]))


def test_a_norm_moment_can_lag_behind_and_then_the_prioritised_loss_ascends() -> None:
    """Why |m| <= v is a condition: with the paper's decays the norms forget ten times more slowly, so after a jump of
    the gradient |m| > v, the projection takes away too much, and the step turns against the prioritised loss."""
    weighting = Moments(0.9, 0.99)
    for t in range(210):
        abstract = -0.1 if t < 200 else -10.0
        weighting.update(torch.tensor([[1.0, 0.0], [abstract, 0.0]], dtype=torch.float64))
    m, v = moments_of(weighting)
    assert m[1].norm() > v[1]
    w = weighting.weights(fosc=0)
    assert w.branch == "lower"
    assert float(combined(w, m) @ m[0]) < 0


@given(st.lists(pairs, min_size=1, max_size=20), st.floats(0, 0.99))
def test_with_equal_decays_the_norm_moment_never_lags(past: list[tuple[Tensor, Tensor]], beta: float) -> None:
    weighting = Moments(beta, beta)
    for g in past:
        weighting.update(torch.stack(g))
    m, v = moments_of(weighting)
    assert norms(m)[0] <= v[0] * (1 + 1e-12)
    assert norms(m)[1] <= v[1] * (1 + 1e-12)


# ------------------------------------------------------------------------------------ FOSC, floors, state


class Untouchable(float):
    def __le__(self, other: object) -> bool:
        raise AssertionError("FOSC was looked at")


@given(pairs)
def test_fosc_is_looked_at_only_in_conflict(m: tuple[Tensor, Tensor]) -> None:
    weighting = Moments()
    assert weighting.weights(fosc=Untouchable()).branch == "start"
    weighting.update(torch.stack(m))
    if float(m[0] @ m[1]) > 0:
        assert weighting.weights(fosc=Untouchable()).branch == "agree"
    else:
        with pytest.raises(AssertionError):
            weighting.weights(fosc=Untouchable())
        assert weighting.weights(fosc=0.5, c_t=0.5).branch == "lower"
        assert weighting.weights(fosc=torch.tensor(0.6), c_t=0.5).branch == "upper"


@given(
    st.lists(st.tuples(st.integers(-50, 18), st.integers(-50, 18)), min_size=1, max_size=12),
    seeds,
    st.booleans(),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_vanished_and_huge_gradients_give_finite_weights(
    exponents: Sequence[tuple[int, int]], seed: int, strong: bool, dtype: torch.dtype
) -> None:
    """10^-50 is zero in single precision."""
    weighting, random = Moments(), torch.Generator().manual_seed(seed)
    for scale in exponents:
        scales = torch.tensor([[10.0**e] for e in scale], dtype=torch.float64)
        weighting.update((scales * torch.randn(2, 3, generator=random, dtype=torch.float64)).to(dtype))
        w = weighting.weights(0.0 if strong else 1.0, 0.5)
        assert all(math.isfinite(k) and k >= 0 for k in w[:3])


def test_gradients_that_are_zero_leave_the_prioritised_loss_alone() -> None:
    weighting = Moments()
    weighting.update(torch.zeros(2, 4))
    assert weighting.weights(fosc=0)[:3] == (1, 0, 0)
    assert weighting.weights(fosc=1.0)[:3] == weighting.weights()[:3] == (0, 1, 0.5)


@given(seeds, st.integers(0, 6))
def test_a_saved_state_goes_on_to_the_same_weights(seed: int, steps: int) -> None:
    past = torch.randn(steps, 2, 4, generator=torch.Generator().manual_seed(seed))
    future = torch.randn(6, 2, 4, generator=torch.Generator().manual_seed(seed + 1))
    straight, saved, resumed = Moments(), Moments(), Moments()
    for g in past:
        straight.update(g)
        saved.update(g)
    resumed.update(future[0])  # something to forget
    resumed.load_state_dict(saved.state_dict())
    for g in future:
        # Weights with nan in them differ from themselves, hence repr.
        assert repr(straight.weights(0.3, 0.5)) == repr(resumed.weights(0.3, 0.5))
        for weighting in (straight, saved, resumed):  # the one that was saved goes on too: they share nothing
            weighting.update(g)


def test_fixed_weights_stay_fixed() -> None:
    weighting = Fixed(0.3, 0.7)
    weighting.update(torch.ones(2, 3))
    weighting.load_state_dict(weighting.state_dict())
    assert weighting.weights(fosc=1.0)[:4] == (0.3, 0.7, 0.0, "fixed")


# ------------------------------------------------------------------------------------ a loop of one's own


def small_problem(seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    return net, torch.randn(8, 3, dtype=torch.float64), torch.randn(8, 1, dtype=torch.float64)


@pytest.mark.parametrize("strong", [True, False])
def test_joint_backward_is_autograd_of_the_weighted_losses(strong: bool) -> None:
    """And the regularizer's 2 kappa_reg L g is autograd's gradient of kappa_reg L^2."""
    net, x, y = small_problem()
    params, branches = list(net.parameters()), Counter[str]()
    weighting, optimizer = Moments(), torch.optim.SGD(params, lr=0.05)
    for t in range(60):
        target = y if t < 20 else -y  # the second loss turns against the first
        lower, upper = (net(x) - y).square().mean(), (net(x) - target).square().mean() + 0.3
        again = (net(x) - y).square().mean(), (net(x) - target).square().mean() + 0.3
        w = joint_backward(weighting, lower, upper, params, fosc=0.0 if strong else 1.0, c_t=0.5)
        weighted = w.lower * again[0] + w.upper * again[1] + w.reg * again[1] ** 2
        for p, g in zip(params, torch.autograd.grad(weighted, params), strict=True):
            torch.testing.assert_close(p.grad, g)
        branches[w.branch] += 1
        optimizer.step()
    assert set(branches) == {"start", "agree", "lower" if strong else "upper"}


def conflicts(**options: float) -> Counter[str]:
    """Branches of steps in which the second loss is against the first, with weights by default and by `options`."""
    net, x, y = small_problem()
    weighting, branches = Moments(), Counter[str]()
    for _ in range(4):
        lower = (net(x) - y).square().mean()
        branches[joint_backward(weighting, lower, 5 - lower, net.parameters(), **options).branch] += 1
    return branches


def test_the_simple_call_prioritizes_the_upper_loss_as_training_does() -> None:
    """Without FOSC the attack counts as weak, whatever c_t is: `advibp.train` does the same when there is no attack."""
    assert conflicts() == conflicts(c_t=0.5) == {"start": 1, "upper": 3}
    assert conflicts(fosc=0) == conflicts(fosc=0.2, c_t=0.5) == {"start": 1, "lower": 3}
    assert conflicts(fosc=0.7, c_t=0.5) == {"start": 1, "upper": 3}


def test_moments_and_recipes_have_the_same_decays() -> None:
    by_default, recipe = Moments(), Recipe()
    assert (by_default.beta1, by_default.beta2) == (recipe.beta1, recipe.beta2) == (BETA1, BETA2)


def test_every_weighting_takes_no_fosc_for_a_weak_attack() -> None:
    for weighting in (Moments, Fixed, Scheduled, TorchJDWeighting, Weighting):
        assert inspect.signature(weighting.weights).parameters["fosc"].default == math.inf
    assert inspect.signature(joint_backward).parameters["fosc"].default == math.inf


def test_joint_backward_is_two_backward_passes_and_no_third() -> None:
    net, x, y = small_problem()
    weighting, passes = Moments(), Counter[str]()
    for t in range(3):
        lower, upper = (net(x) - y).square().mean(), 5 - (net(x) - y).square().mean()
        lower.register_hook(lambda g: passes.update(["lower"]))
        upper.register_hook(lambda g: passes.update(["upper"]))
        w = joint_backward(weighting, lower, upper, net.parameters(), fosc=1.0)  # weak: the regularizer is on
        assert passes == {"lower": t + 1, "upper": t + 1}
    assert w.reg > 0


def test_both_losses_may_come_from_one_forward_pass() -> None:
    net, x, y = small_problem()
    outputs = net(x)
    lower, upper = (outputs - y).square().mean(), (outputs + y).square().mean()
    joint_backward(Moments(), lower, upper, net.parameters())
    half = 0.5 * (net(x) - y).square().mean() + 0.5 * (net(x) + y).square().mean()
    for p, g in zip(net.parameters(), torch.autograd.grad(half, list(net.parameters())), strict=True):
        torch.testing.assert_close(p.grad, g)


def test_frozen_and_unused_parameters() -> None:
    net, x, y = small_problem()
    net[0].weight.requires_grad_(False)
    unused = nn.Parameter(torch.ones(2, dtype=torch.float64))
    loss = (net(x) - y).square().mean()
    joint_backward(Moments(), loss, 2 * loss, [*net.parameters(), unused])
    assert net[0].weight.grad is None
    assert torch.equal(unused.grad, torch.zeros(2, dtype=torch.float64))


def test_a_used_up_iterator_of_parameters_is_a_user_error() -> None:
    net, x, y = small_problem()
    params = net.parameters()
    list(params)
    loss = (net(x) - y).square().mean()
    with pytest.raises(UserError, match="no trainable parameter"):
        joint_backward(Moments(), loss, 2 * loss, params)


def test_names_of_release_0_1_work_and_warn() -> None:
    weights = Weights(0.25, 0.75, 0.0, "fixed", math.nan)
    with pytest.warns(DeprecationWarning, match="Weights.lower"):
        assert weights.adv == 0.25
    with pytest.warns(DeprecationWarning, match="Weights.upper"):
        assert weights.ibp == 0.75
    saved = Moments()
    saved.update(torch.rand(2, 5))
    restored = Moments()
    restored.load_state_dict({{"m": "m_hat", "v": "v_hat"}.get(k, k): v for k, v in saved.state_dict().items()})
    assert restored.weights() == saved.weights()

    class Old(BaseWeighting):
        def state(self) -> dict[str, Tensor]:
            return {"a": torch.ones(1)}

        def load_state(self, state: dict[str, Tensor]) -> None:
            self.loaded = state

    class Inherits(Old):
        pass

    for cls in (Old, Inherits):
        with pytest.warns(DeprecationWarning, match="state_dict and load_state_dict"):
            weighting = with_state_dict(cls())
        weighting.load_state_dict(weighting.state_dict())
        assert weighting.loaded == {"a": torch.ones(1)}  # type: ignore[attr-defined]

    class OldMoments(Moments):
        def state(self) -> dict[str, Tensor]:
            return {**super().state(), "more": torch.ones(1)}

        def load_state(self, state: dict[str, Tensor]) -> None:
            super().load_state({k: v for k, v in state.items() if k != "more"})

    with pytest.warns(DeprecationWarning, match="state_dict"):
        moments = with_state_dict(OldMoments())
    moments.update(torch.rand(2, 5))
    with pytest.warns(DeprecationWarning, match="load_state is now load_state_dict"):
        moments.load_state_dict(moments.state_dict())
    assert moments.t == 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match="no state_dict"):
        with_state_dict(object())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Moments(2.0, 0.9), "beta1 is 2.0"),
        (lambda: Moments(0.9, math.nan), "beta2 is nan"),
        (lambda: Moments("a"), "beta1 is 'a'"),  # type: ignore[arg-type]
        (lambda: Fixed(math.nan, 1.0), "lower is nan"),
        (lambda: Fixed(1.0, "a"), "upper is 'a'"),  # type: ignore[arg-type]
        (lambda: Moments().load_state_dict(None), "dictionary of tensors"),  # type: ignore[arg-type]
        (lambda: Moments().load_state_dict({"m": torch.ones(1)}), "keys t, m and v, not m"),
    ],
)
def test_bad_arguments_of_weightings_are_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()
