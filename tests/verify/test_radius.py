"""The largest radius that is proved: proved there, not proved a little further."""

from __future__ import annotations

import math
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import UserError, attacks, nets
from advibp.data import Split
from advibp.storage.json_lines import read_lines, to_line
from advibp.verify import Attack, ibp_margins, largest_proved_eps
from advibp.verify.radius import Radius, curve, radii, smallest_broken_eps

torch.set_num_threads(1)

SPECS = ("FC 6", "FC 8, FC 6", "Conv 3 2x2+1, FC 6")


def problem(seed: int, spec: str) -> tuple[nn.Module, Tensor, Tensor]:
    net = nets.build(spec, (1, 4, 4), 3, seed=seed, init="default").eval()
    x = torch.rand(8, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    return net, x, net(x).argmax(1)


def proved(net: nn.Module, x: Tensor, y: Tensor, radius: Tensor) -> list[bool]:
    """Image by image, each at its own radius."""
    return [
        bool(ibp_margins.lower_margin(net, x[i : i + 1], y[i : i + 1], float(radius[i])) > 0) for i in range(len(x))
    ]


@settings(max_examples=15)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), tolerance=st.sampled_from([1e-2, 1e-3]))
def test_the_largest_proved_eps_is_proved_and_tight(seed: int, spec: str, tolerance: float) -> None:
    net, x, y = problem(seed, spec)
    radius = largest_proved_eps(net, x, y, tolerance=tolerance)
    assert radius.shape == (8,)
    # A hair inside, because batches of other sizes round differently.
    assert all(proved(net, x, y, radius * (1 - 1e-4)))
    further = [r < 1 - 2 * tolerance for r in radius.tolist()]
    assert not any(p and f for p, f in zip(proved(net, x, y, radius + 2 * tolerance), further, strict=True))


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS))
def test_no_attack_breaks_a_proved_image(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec)
    radius = largest_proved_eps(net, x, y)
    torch.manual_seed(seed)
    attacked = attacks.linf_pgd(
        net, x, y, radius.view(-1, 1, 1, 1), steps=20, rel_stepsize=0.2, restarts=2, loss="margin"
    )
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


def test_the_radius_of_a_linear_network_is_its_distance_to_the_boundary() -> None:
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
def test_a_tighter_verifier_proves_larger_radii(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec)
    weak, strong = (largest_proved_eps(net, x, y, by=by, tolerance=1e-3) for by in (("ibp",), BETTER))
    assert bool((strong >= weak - 1e-3).all())


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), kind=st.sampled_from(["pgd", "apgd"]))
def test_broken_radii_are_above_proved_radii(seed: int, spec: str, kind: str) -> None:
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


def test_the_smallest_broken_radius_of_a_linear_network_is_its_distance() -> None:
    """|z_0 - z_1| / |w_0 - w_1|_1 to the border, where no pixel is clipped on the way."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 2))
    x = 0.5 + 0.01 * torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = net(x)
        distance = (logits[:, 0] - logits[:, 1]).abs() / (net[1].weight[0] - net[1].weight[1]).abs().sum()
    assert distance.max() < 0.45
    nearest = smallest_broken_eps(net, x, logits.argmax(1), Attack(steps=25), tolerance=1e-3)
    assert bool((nearest >= distance - 1e-6).all())
    assert bool((nearest <= distance + 2e-3).all())


def test_the_curve_falls_and_starts_at_the_clean_accuracy(tmp_path: Path) -> None:
    net, test = images(3, "FC 8, FC 6")
    found = radii(net, test, attack=Attack(steps=10), out=tmp_path, batch_size=3)
    assert radii(net, test, attack=Attack(steps=10), batch_size=5) == found  # chance is each image's own
    assert read_lines(tmp_path / "radii.jsonl", Radius.of) == found
    points = curve(found, [0.0, 0.01, 0.05, 0.1, 0.5, 1.0])
    assert points[0] == (0.0, 0.75, 0.75)
    for (_, proved_here, unbroken_here), (_, proved_next, unbroken_next) in pairwise(points):
        assert proved_next <= proved_here <= 0.75
        assert unbroken_next <= unbroken_here
    assert all(proved <= unbroken for _, proved, unbroken in points)


def test_radii_are_kept_and_measured_again_with_other_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net, test = images(3, "FC 8, FC 6")
    whole = radii(net, test, attack=Attack(steps=5), batch_size=3)
    asked: list[int] = []

    def stop(eps: float, done: int, total: int, counts: object = None) -> None:
        asked.append(done)
        if done == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        radii(net, test, attack=Attack(steps=5), out=tmp_path, batch_size=3, progress=stop)
    assert len((tmp_path / "radii.jsonl").read_text().splitlines()) == 6
    assert radii(net, test, attack=Attack(steps=5), out=tmp_path, batch_size=3) == whole
    other = radii(net, test, attack=Attack(steps=6), out=tmp_path, batch_size=3)
    assert {r.attack for r in other} == {f"{Attack(steps=6)} seed=0"}
    (tmp_path / "radii.jsonl").write_text("nonsense\n")
    with pytest.raises(UserError, match="damaged in line 1"):
        radii(net, test, out=tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("index", -1), ("index", True), ("label", "0"), ("prediction", -2), ("proved", -0.1), ("proved", 1.1),
        ("proved", math.nan), ("proved", None), ("broken", 2), ("broken", 0.1), ("broken", "no"), ("model", 3),
        ("attack", None), ("label", 1), ("weights", 1), ("surprise", 0),
    ],
)  # fmt: skip
def test_every_field_is_checked(name: str, value: object, tmp_path: Path) -> None:
    good = Radius(
        index=0, label=0, prediction=0, proved=0.2, broken=0.3, provers="ibp", attack="a", model="m", image="i"
    )
    path = tmp_path / "radii.jsonl"
    path.write_text(to_line(asdict(good)) + to_line({**asdict(good), name: value}))
    with pytest.raises(UserError, match=r"radii.jsonl is damaged in line 2") as raised:
        read_lines(path, Radius.of)
    assert "\n" not in str(raised.value)
    path.write_text(to_line(asdict(good)).replace("0.2", "0.25"))
    with pytest.raises(UserError, match="was changed after it was written"):
        read_lines(path, Radius.of)


def test_logits_that_are_not_finite_have_no_prediction() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    with torch.no_grad():
        net[1].weight.fill_(math.nan)
    x = torch.rand(2, 1, 4, 4)
    (one, two) = radii(net, Split(x, torch.tensor([0, 1])), attack=Attack(steps=2))
    assert (one.prediction, one.proved, one.broken) == (-1, 0, 0) == (two.prediction, two.proved, two.broken)


def test_a_double_network() -> None:
    net, test = images(3, "FC 8, FC 6")
    found = radii(net.double(), Split(test.x.double(), test.y), attack=Attack(steps=5))
    assert len(found) == 8
    assert len(largest_proved_eps(net, test.x[:0].double(), test.y[:0])) == 0


WRONG = {
    "inputs": ({"x": [1.0]}, "must be tensors"),
    "no labels": ({"y": None}, "must be tensors"),
    "float labels": ({"y": torch.zeros(2)}, "give integers"),
    "too few labels": ({"y": torch.zeros(1, dtype=torch.int64)}, "of shape (2,)"),
    "integers": ({"x": torch.zeros(2, 4, dtype=torch.int64)}, "torch.int64"),
    "double": ({"x": torch.zeros(2, 4, dtype=torch.float64)}, "torch.float64"),
    "tolerance": ({"tolerance": "fine"}, "tolerance is 'fine'"),
    "most": ({"most": "1"}, "most is '1'"),
    "negative most": ({"most": -1.0}, "above 0"),
    "length of most": ({"most": torch.ones(3)}, "shape (2,)"),
    "perturbation": ({"perturbation": 0.1}, "advibp.Perturbation"),
    "range": ({"x": torch.full((2, 4), 3.0)}, "[0, 1]"),
    "verifier": ({"by": 3}, ""),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_have_one_sentence(kind: str) -> None:
    changes, word = WRONG[kind]
    arguments = {"x": torch.rand(2, 4), "y": torch.zeros(2, dtype=torch.int64)} | changes
    with pytest.raises(UserError) as raised:
        largest_proved_eps(nn.Linear(4, 3), arguments.pop("x"), arguments.pop("y"), **arguments)
    assert word in str(raised.value)
    assert "\n" not in str(raised.value)
