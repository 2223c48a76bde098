"""The largest radius that is proved: proved there, not proved a little further."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import attacks, nets
from advibp.data import Split
from advibp.verify import Attack, ibp, largest_proved_eps
from advibp.verify.radius import Radius, curve, radii, smallest_broken_eps

torch.set_num_threads(1)

SPECS = ("FC 6", "FC 8, FC 6", "Conv 3 2x2+1, FC 6")


def problem(seed: int, spec: str) -> tuple[nn.Module, Tensor, Tensor]:
    net = nets.build(spec, (1, 4, 4), 3, seed=seed, init="default").eval()
    x = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return net, x, net(x).argmax(1)


def proved(net: nn.Module, x: Tensor, y: Tensor, radius: Tensor) -> list[bool]:
    """Image by image, each at its own radius."""
    return [bool(ibp.lower_margin(net, x[i : i + 1], y[i : i + 1], float(radius[i])) > 0) for i in range(len(x))]


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), tolerance=st.sampled_from([1e-2, 1e-3]))
def test_proved_where_it_says_and_not_much_further(seed: int, spec: str, tolerance: float) -> None:
    net, x, y = problem(seed, spec)
    radius = largest_proved_eps(net, x, y, tolerance=tolerance)
    assert radius.shape == (8,)
    # A hair inside, because batches of other sizes round differently.
    assert all(proved(net, x, y, radius * (1 - 1e-4)))
    further = [r < 1 - 2 * tolerance for r in radius.tolist()]
    assert not any(p and f for p, f in zip(proved(net, x, y, radius + 2 * tolerance), further, strict=True))


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS))
def test_no_attack_breaks_what_is_proved(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec)
    radius = largest_proved_eps(net, x, y)
    torch.manual_seed(seed)
    attacked = attacks.pgd(net, x, y, radius.view(-1, 1, 1, 1), steps=20, step=0.2, restarts=2, loss="margin")
    assert not attacked.broken.any()


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS))
def test_a_misclassified_image_has_radius_zero(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec)
    assert (largest_proved_eps(net, x, (y + 1) % 3) == 0).all()


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_network_proves_no_radius(value: float) -> None:
    net, x, y = problem(0, "FC 6")
    with torch.no_grad():
        net[-1].bias.fill_(value)
    assert (largest_proved_eps(net, x, y) == 0).all()


def test_a_linear_network_has_the_radius_of_geometry() -> None:
    """z = (s, -s), s the sum of w x: the margin 2 s vanishes when eps times the sum of |w| reaches |s|."""
    w = torch.tensor([0.5, -0.25, 0.1, 0.4])
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    with torch.no_grad():
        net[1].weight.copy_(torch.stack([w, -w]))
    x = torch.full((1, 1, 2, 2), 0.5)
    want = float((w * 0.5).sum() / w.abs().sum())
    found = largest_proved_eps(net, x, torch.tensor([0]), tolerance=1e-5)
    assert float(found) == pytest.approx(want, abs=2e-5)


BETTER = ("ibp", "crown-ibp", "crown")


def images(seed: int, spec: str) -> tuple[nn.Module, Split]:
    net, x, y = problem(seed, spec)
    y[:2] = (y[:2] + 1) % 3  # two that are misclassified
    return net, Split(x, y)


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS))
def test_a_better_prover_proves_further(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec)
    weak, strong = (largest_proved_eps(net, x, y, by=by, tolerance=1e-3) for by in (("ibp",), BETTER))
    assert bool((strong >= weak - 1e-3).all())


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), kind=st.sampled_from(["pgd", "apgd"]))
def test_nothing_is_broken_where_it_is_proved(seed: int, spec: str, kind: str) -> None:
    net, test = images(seed, spec)
    attack = Attack(kind=kind, steps=10, loss="margin")  # type: ignore[arg-type]
    found = radii(net, test, by=BETTER, attack=attack)
    assert [r.index for r in found] == list(range(8))
    for radius in found:
        assert 0 <= radius.proved <= 1
        if radius.prediction != radius.label:
            assert (radius.proved, radius.broken) == (0, 0)
        elif radius.broken is not None:
            assert radius.proved < radius.broken <= 1


def test_a_counterexample_lies_where_it_is_said_to() -> None:
    net, x, y = problem(0, "FC 6")
    nearest = smallest_broken_eps(net, x, y, Attack(steps=20), torch.zeros(len(x)), tolerance=1e-2)
    for i in torch.nonzero(nearest.isfinite()).flatten().tolist():
        found = attacks.pgd(net, x[i : i + 1], y[i : i + 1], float(nearest[i]) + 2e-2, steps=100, restarts=3)
        assert bool(found.broken)


def test_the_curve_falls_and_starts_at_the_clean_accuracy(tmp_path: Path) -> None:
    net, test = images(3, "FC 8, FC 6")
    found = radii(net, test, attack=Attack(steps=10), out=tmp_path / "radii.jsonl", batch_size=3)
    lines = [json.loads(line) for line in (tmp_path / "radii.jsonl").read_text().splitlines()]
    assert [Radius(**line) for line in lines] == found
    points = curve(found, [0.0, 0.01, 0.05, 0.1, 0.5, 1.0])
    assert points[0] == (0.0, 0.75, 0.75)
    for (_, proved_here, unbroken_here), (_, proved_next, unbroken_next) in pairwise(points):
        assert proved_next <= proved_here <= 0.75
        assert unbroken_next <= unbroken_here
    assert all(proved <= unbroken for _, proved, unbroken in points)
