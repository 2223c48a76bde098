"""RefineZono: margins between linear bounds and the exact margin for any budget; refined bounds are sound."""

from __future__ import annotations

import torch
from exact_questions import question
from hypothesis import given, settings
from hypothesis import strategies as st

from advibp.bounds.box import Box
from advibp.bounds.linear.crown import crown
from advibp.bounds.zonotope import Zonotope
from advibp.verify.exact.milp import milp
from advibp.verify.exact.refinezono import refinezono


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10_000),
    kind=st.sampled_from(["fc", "conv", "residual", "pooling", "few relus"]),
    eps=st.floats(0.02, 0.3),
    seconds=st.sampled_from([0.0, 0.2, 5.0]),
    exact_layers=st.integers(0, 2),
)
def test_refinezono_is_sound_and_no_looser_than_linear_bounds(
    seed: int, kind: str, eps: float, seconds: float, exact_layers: int
) -> None:
    asked, label = question(seed, eps, kind)
    answer = refinezono(asked, seconds=seconds, exact_layers=exact_layers)
    box = Box.from_bounds(asked.lower, asked.upper)
    points = asked.lower + (asked.upper - asked.lower) * torch.rand(300, *asked.lower.shape[1:]).double()
    with torch.no_grad():
        for point in points[:20].split(1):
            values = {i: v.clone() for i, v in asked.bounds.tape.trace(point.clone()) if isinstance(v, torch.Tensor)}
            for index, (lower, upper) in asked.bounds.intermediate_bounds.items():
                if index:
                    assert (values[index] >= lower - 1e-6).all()
                    assert (values[index] <= upper + 1e-6).all()
        output = asked.net(points)
        others = [k for k in range(3) if k != label]
        sampled = (output[:, label : label + 1] - output)[:, others].min()
        by_lines = crown(asked.net, box).margins(torch.tensor([label]))[0, others].min()
        by_zonotope = asked.net(Zonotope.from_box(box)).lower_margins(torch.tensor([label]))[0, others].min()
    assert answer.margin <= sampled + 1e-6
    assert answer.margin >= max(float(by_lines), float(by_zonotope)) - 1e-6


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.05, 0.4))
def test_it_never_proves_what_milp_breaks(seed: int, eps: float) -> None:
    asked, _ = question(seed, eps)
    exact = milp(asked)
    assert not (refinezono(asked).robust and exact.counterexample is not None)


def test_an_undecided_image_is_reported_as_timed_out() -> None:
    late = 0
    for seed in range(10):
        asked, _ = question(seed, 0.3, "fc")
        answer = refinezono(asked, seconds=0.0)
        assert answer.in_time == answer.robust
        late += not answer.in_time
    assert late > 0


def test_refined_bounds_prove_more_than_deepz() -> None:
    """Somewhere among these networks there must be one; else nothing is refined."""
    more = 0
    for seed in range(30):
        asked, label = question(seed, 0.15, "fc")
        with torch.no_grad():
            deepz = asked.net(Zonotope.from_box(asked.bounds.box)).lower_margins(torch.tensor([label]))
        others = [k for k in range(3) if k != label]
        more += refinezono(asked).margin > float(deepz[0, others].min()) + 1e-3
    assert more > 0
