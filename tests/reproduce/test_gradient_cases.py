"""What the three cases promise, for any two gradients in the plane."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from advibp.reproduce.gradient_cases import CASES, Case, _over_training, solve
from advibp.runs.run_files import RunFiles

coordinate = st.floats(-10, 10)
vector = st.tuples(coordinate, coordinate)


def inner(case: Case) -> tuple[float, float]:
    _, (adv, ibp), final = solve(case)
    return float(final @ adv), float(final @ ibp)


def long_enough(*vectors: tuple[float, float]) -> bool:
    return all(abs(x) + abs(y) > 0.1 for x, y in vectors)


@given(vector, vector, st.booleans())
def test_a_step_never_ascends_what_it_promises(
    adv: tuple[float, float], ibp: tuple[float, float], strong: bool
) -> None:
    product = adv[0] * ibp[0] + adv[1] * ibp[1]
    assume(long_enough(adv, ibp) and abs(product) > 0.01)
    to_adv, to_ibp = inner(Case("", adv, ibp, strong))
    if product > 0:
        assert to_adv > 0
        assert to_ibp > 0
    else:
        first, other = (to_adv, to_ibp) if strong else (to_ibp, to_adv)
        assert first >= -1e-6  # 0 if they are opposite
        assert other == pytest.approx(0, abs=1e-6)


@given(vector, vector, st.floats(0.1, 5))
def test_the_regularizer_ascends_the_adversarial_loss(
    adv: tuple[float, float], ibp: tuple[float, float], loss: float
) -> None:
    product = adv[0] * ibp[0] + adv[1] * ibp[1]
    assume(long_enough(adv, ibp) and product < -0.01)
    to_adv, to_ibp = inner(Case("", adv, ibp, strong=False, ibp_loss=loss))
    assert to_adv == pytest.approx(loss * product, rel=1e-5, abs=1e-6)
    assert to_ibp > 0


def test_the_figure_shows_each_branch() -> None:
    branches = [solve(case)[0].branch for case in CASES]
    assert branches == ["agree", "lower", "upper", "upper"]
    weights, (adv, ibp), final = solve(CASES[0])
    # In agreement g_final lies on the bisector.
    assert float(final @ adv / adv.norm()) == pytest.approx(float(final @ ibp / ibp.norm()))
    assert weights.reg == 0


def test_cases_over_training_are_drawn_for_runs_with_moments(tmp_path: Path) -> None:
    shares = {"branch_agree": 0.25, "branch_lower": 0.5, "branch_upper": 0.25}
    epochs = [{"epoch": 1, "phase": "natural"}, {"epoch": 2, "phase": "ramp", **shares}]
    run = RunFiles(tmp_path / "mine", {"seed": 0}, {}, epochs)
    chart = _over_training(run)
    assert chart
    assert [(list(s.x), list(s.y)) for s in chart.series] == [([2.0], [25.0]), ([2.0], [50.0]), ([2.0], [25.0])]
    assert _over_training(dataclasses.replace(run, history=epochs[:1])) is None
    assert _over_training(dataclasses.replace(run, recipe={"seed": 1})) is None
