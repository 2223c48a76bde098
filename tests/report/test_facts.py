"""Numbers and words of the page."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advibp.report import facts
from advibp.runs.run_files import RunFiles, read_run
from advibp.verify.radius import Radius


def run(**recipe: object) -> RunFiles:
    return RunFiles(path=Path("runs/some"), recipe=recipe, summary=None, history=[])


def test_keys_that_differ_are_marked_and_those_that_are_missing_are_a_dash() -> None:
    rows = facts.recipes([run(eps=0.1, seed=0, flip=False), run(eps=0.2, seed=0, lr_milestones=["75%", 3.0])])
    told = {row["key"]: (row["values"], row["differ"]) for row in rows}
    assert told == {
        "eps": (["0.1", "0.2"], True),
        "seed": (["0", "0"], False),
        "flip": (["no", "–"], True),
        "lr_milestones": (["–", "75%, 3"], True),
    }


def test_large_whole_numbers_are_shown_to_the_last_digit() -> None:
    (row,) = facts.recipes([run(seed=2**63 - 2), run(seed=2**63 - 1)])
    assert row == {"key": "seed", "values": ["9223372036854775806", "9223372036854775807"], "differ": True}
    assert facts.finite(10**400) is None


@pytest.mark.parametrize(
    ("seconds", "said"), [(4.26, "4.3 s"), (59.97, "60.0 s"), (61, "1 min"), (3599, "1 h 00 min"), (5903, "1 h 38 min")]
)
def test_times_are_formatted(seconds: float, said: str) -> None:
    assert facts.format_seconds(seconds) == said


def test_nan_metrics_are_gaps_and_missing_metrics_are_omitted() -> None:
    history = [{"epoch": 1, "phase": "ramp", "fosc": math.nan, "angle": "x"}, {"epoch": 2, "fosc": 0.25}]
    told = facts.run_facts(RunFiles(path=Path("a"), recipe={}, summary=None, history=history), "a")["history"]
    assert told == {"epoch": [1, 2], "phase": ["ramp", ""], "fosc": [None, 0.25]}


def test_classes_add_up_to_all_images(trained: dict[str, Path]) -> None:
    certified = read_run(trained["first"]).last
    assert certified is not None
    for eps in certified.eps:
        told, errors = facts.at_eps(certified, eps), certified.errors(eps)
        for name, of_all in (("standard", errors.standard), ("attack", errors.attack)):
            assert sum(c["images"] * c[name] for c in told["classes"]) / errors.images == pytest.approx(of_all)
        proved = sum(c["images"] * c["verified"][0][1] for c in told["classes"]) / errors.images
        assert proved == pytest.approx(errors.best)


def _radius(proved: float, broken: float | None, right: bool = True) -> Radius:
    asked = {"provers": "ibp", "attack": "pgd", "model": "", "image": ""}
    return Radius(index=0, label=1, prediction=int(right), proved=proved, broken=broken, **asked)


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1) | st.none()), min_size=1))
def test_every_radius_is_in_one_bin_that_holds_it(pairs: list[tuple[float, float | None]]) -> None:
    entry = {"radii": [list(pair) for pair in pairs]}
    facts.histograms([entry])
    told = entry["histogram"]
    assert isinstance(told, dict)
    assert sum(told["proved"]) == len(pairs)
    assert sum(told["broken"]) + told["never"] == len(pairs)
    largest = max(value for pair in pairs for value in pair if value is not None)
    assert told["width"] * len(told["proved"]) >= largest - 1e-9
    for k, count in enumerate(told["proved"]):
        below, above = k * told["width"] - 1e-9, (k + 1) * told["width"] + 1e-9
        assert count <= sum(below <= proved <= above for proved, _ in pairs)


def test_the_curve_falls_and_proof_never_passes_the_attack() -> None:
    curve = facts._curve([_radius(0.1, 0.2), _radius(0.05, None), _radius(0.0, 0.0, right=False)])
    assert curve is not None
    assert curve["eps"][0] == 0
    assert curve["proved"][0] == curve["unbroken"][0] == pytest.approx(200 / 3, abs=1e-3)
    for name in ("proved", "unbroken"):
        assert curve[name] == sorted(curve[name], reverse=True)
    assert all(proved <= unbroken for proved, unbroken in zip(curve["proved"], curve["unbroken"], strict=True))
    assert facts._curve([]) is None


def test_commands_name_their_folder() -> None:
    for stored, shown in (
        ("advibp train mnist a", "advibp train mnist a --out 'runs/a b'"),
        ("x --out y", "x --out y"),
    ):
        run = RunFiles(path=Path("runs/a b"), recipe={}, summary={"command": stored}, history=[])
        assert facts.run_facts(run, "a")["commands"] == [shown]
