"""Growth of eps, decay of c_t, learning rate: as functions of time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advibp.schedules import RampShape, Timeline, c_t_share, learning_rate, linear_decay, ramp

shapes: list[RampShape] = ["linear", "smooth"]
times = st.floats(-2, 3)
spans = st.floats(0, 50)


def timelines() -> st.SearchStrategy[Timeline]:
    """Warm-up and ramp of any length, zero included."""
    lengths = st.one_of(st.just(0.0), st.floats(0.1, 20))
    return st.builds(
        Timeline,
        epochs=st.just(100.0),
        natural=lengths,
        adversarial=lengths,
        adversarial_ramp=st.one_of(st.none(), lengths),
        ramp=lengths,
        ramp_shape=st.sampled_from(shapes),
    )


# ------------------------------------------------------------------------------------ ramp


@pytest.mark.parametrize("shape", shapes)
def test_ramp_goes_from_0_to_1_and_stays_there(shape: RampShape) -> None:
    assert ramp(-1, shape) == ramp(0, shape) == 0
    assert ramp(1, shape) == ramp(2, shape) == 1


@given(times, times, st.sampled_from(shapes))
def test_ramp_is_monotone_and_never_leaves_0_to_1(s: float, r: float, shape: RampShape) -> None:
    low, high = sorted((s, r))
    assert 0 <= ramp(low, shape) <= ramp(high, shape) <= 1


@given(st.floats(0, 1))
def test_linear_is_linear_and_smooth_lies_below_it(s: float) -> None:
    assert ramp(s) == s
    assert ramp(s, "smooth") <= s + 1e-15


def slope(s: float, h: float) -> float:
    return (ramp(s + h, "smooth") - ramp(s, "smooth")) / h


def test_smooth_is_c1_at_the_joint() -> None:
    joint, h = 0.25, 1e-6
    assert ramp(joint + 1e-12, "smooth") == pytest.approx(ramp(joint - 1e-12, "smooth"), abs=1e-11)
    assert slope(joint, h) == pytest.approx(slope(joint, -h), rel=1e-4)
    # and the joint is there: the second derivative is 12 a s^2 before it, and 0 after it
    assert (slope(joint, -h) - slope(joint - 0.01, -h)) / 0.01 > 1
    assert slope(joint + 0.01, h) == pytest.approx(slope(joint, h))


@given(st.floats(0, 0.25), st.floats(0.25, 1), st.floats(0.25, 1))
def test_smooth_is_quartic_then_linear(s: float, r: float, q: float) -> None:
    assert ramp(s / 2, "smooth") == pytest.approx(ramp(s, "smooth") / 16)
    assert ramp((r + q) / 2, "smooth") == pytest.approx((ramp(r, "smooth") + ramp(q, "smooth")) / 2)


# ------------------------------------------------------------------------------------ phases


@given(timelines(), st.floats(0, 100))
def test_phases_follow_each_other(line: Timeline, t: float) -> None:
    ends = {
        "natural": (0, line.natural),
        "adversarial": (line.natural, line.joint),
        "ramp": (line.joint, line.joint + line.ramp),
        "full": (line.joint + line.ramp, line.epochs),
    }
    begin, end = ends[line.phase(t)]
    assert begin <= t
    assert t < end or line.phase(t) == "full"
    assert line.joint == line.natural + line.adversarial


@given(timelines(), st.floats(0, 100), st.floats(0, 100))
def test_eps_grows_within_every_phase(line: Timeline, t: float, r: float) -> None:
    low, high = sorted((t, r))
    assert 0 <= line.eps_share(low) <= 1
    if line.phase(low) == line.phase(high):
        assert line.eps_share(low) <= line.eps_share(high)
    if line.phase(low) == "natural":
        assert line.eps_share(low) == 0
    if line.phase(high) == "full":
        assert line.eps_share(high) == 1


@given(st.floats(0, 20), st.floats(0.1, 20), st.floats(0.1, 1))
def test_eps_of_the_adversarial_warm_up_grows_from_0(natural: float, length: float, share: float) -> None:
    line = Timeline(epochs=100, natural=natural, adversarial=length, adversarial_ramp=share * length)
    assert line.eps_share(natural) == 0
    assert line.eps_share(natural + share * length / 2) == pytest.approx(0.5)
    assert line.eps_share(natural + length * (1 - 1e-9)) == pytest.approx(1)
    whole = Timeline(epochs=100, natural=natural, adversarial=length)
    assert whole.eps_share(natural + length / 2) == pytest.approx(0.5)


@given(timelines().filter(lambda line: line.ramp > 0), st.floats(0, 0.999))
def test_eps_of_the_joint_phase_grows_from_0_in_the_chosen_shape(line: Timeline, s: float) -> None:
    assert line.eps_share(line.joint) == 0
    assert line.eps_share(line.joint + s * line.ramp) == pytest.approx(ramp(s, line.ramp_shape), abs=1e-12)
    assert line.eps_share(line.joint + line.ramp * (1 + 1e-12)) == 1


def test_no_ramp_means_full_eps_at_once() -> None:
    assert Timeline(epochs=10).eps_share(0) == 1
    assert Timeline(epochs=10, adversarial=5, adversarial_ramp=0.0).eps_share(0) == 1


# ------------------------------------------------------------------------------------ c_t, learning rate


@given(st.floats(0, 200), st.floats(0, 10), spans, spans, st.floats(0.01, 100))
def test_c_t_is_the_papers_clip(t: float, c_max: float, r: float, extra: float, decay: float) -> None:
    unclipped = c_max - (t - r - extra) * c_max / decay
    clipped = 0.0 if unclipped < 0 else c_max if unclipped > c_max else unclipped
    assert c_max * c_t_share(t, ramp_epochs=r, extra=extra, decay=decay) == pytest.approx(clipped)


@given(st.floats(0, 200), st.floats(0, 200), st.floats(0, 10), spans, spans, st.floats(-1, 100))
def test_c_t_falls_from_c_max_to_0(t: float, s: float, c_max: float, r: float, extra: float, decay: float) -> None:
    def at(time: float) -> float:
        return c_max * c_t_share(time, ramp_epochs=r, extra=extra, decay=decay)

    low, high = sorted((t, s))
    assert 0 <= at(high) <= at(low) <= c_max
    assert at(0 if r + extra > 0 else -1) == c_max
    assert at(r + extra + max(decay, 0) + 1e-6) == pytest.approx(0, abs=1e-9)


@given(st.floats(0, 100), st.floats(-5, 0), spans, spans)
def test_without_a_decay_c_t_is_a_step(t: float, decay: float, r: float, extra: float) -> None:
    expected = 3.0 if t < r + extra else 0.0
    assert 3.0 * c_t_share(t, ramp_epochs=r, extra=extra, decay=decay) == expected


@given(st.lists(spans, max_size=4), st.floats(0, 60), st.floats(0.1, 1))
def test_learning_rate_falls_at_every_milestone(milestones: list[float], t: float, factor: float) -> None:
    expected = 0.5
    for m in milestones:
        expected = expected * factor if m <= t else expected
    assert learning_rate(t, lr=0.5, milestones=milestones, factor=factor) == pytest.approx(expected)


def test_learning_rate_changes_at_the_milestone_not_after_it() -> None:
    assert learning_rate(9.999, lr=1.0, milestones=[10], factor=0.25) == 1
    assert learning_rate(10, lr=1.0, milestones=[10], factor=0.25) == 0.25


@given(lr=st.floats(1e-6, 1), start=st.floats(0, 50), length=st.floats(0.5, 50), t=st.floats(0, 120))
def test_linear_decay_is_flat_then_a_line_to_zero(lr: float, start: float, length: float, t: float) -> None:
    rate = linear_decay(t, lr=lr, start=start, end=start + length)
    if t <= start:
        assert rate == lr
    elif t >= start + length:
        assert rate == 0
    else:
        assert rate == pytest.approx(lr * (start + length - t) / length, rel=1e-6, abs=1e-12)


def test_linear_decay_without_room_stays_flat() -> None:
    assert linear_decay(5, lr=0.1, start=5, end=5) == 0.1
