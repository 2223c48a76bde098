"""Verifiers and attacks on tables: radii per feature, and ranges other than [0, 1]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from advibp import Attack, Perturbation, Predictor, UserError, certify, largest_proved_eps, nets, smallest_broken_eps
from advibp.attacks import linf_pgd
from advibp.data import Split
from advibp.storage import checkpoint
from advibp.verify.radius import radii
from advibp.verify.verifiers import VERIFIERS

SETS = {
    "unbounded": (Perturbation(None, None, [1.0, 0.5, 0.0, 0.1]), 1.0, 0.3),
    "negative": (Perturbation(-3.0, -0.5, [0.3, 1.0, 0.7, 0.0]), 1.0, 1.0),
    "one-sided": (Perturbation([0.0, -1e9, 0.0, 0.0], [1e9, 2.0, 1.0, 1e9], [1.0, 1.0, 0.2, 0.3]), 1.0, 0.3),
    "large": (Perturbation(-1e7, 1e7, [1.0, 1 / 3, 0.0, 0.1]), 1e6, 3e5),
    "one radius": (Perturbation(None, 5.0), 1.0, 0.3),
}


def problem(name: str) -> tuple[nn.Module, Tensor, Tensor, Perturbation, float]:
    """A network on four features, inputs with the predicted labels, a set, and a radius that breaks some inputs."""
    around, unit, radius = SETS[name]
    generator = torch.Generator().manual_seed(3)
    x = unit * torch.randn(5, 4, generator=generator)
    own = around.on(x)
    x = torch.minimum(torch.maximum(x, torch.as_tensor(own.low)), torch.as_tensor(own.high))
    net = nets.build("FC 6, FC 6", (4,), 3, mean=0.0, std=unit, init="default", seed=1).eval()
    with torch.no_grad():
        for layer in net:
            if isinstance(layer, nn.Linear):  # weights with which the classes differ
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=generator))
                layer.bias.zero_()
        return net, x, net(x).argmax(1), around, radius


@pytest.mark.parametrize("name", SETS)
def test_verifiers_agree_with_each_other_and_with_attacks(name: str) -> None:
    net, x, y, around, eps = problem(name)
    attack = Attack(kind="apgd", steps=10)
    verdicts: dict[str, list[str]] = {}
    for by, arithmetic in (
        *((by, "float32") for by in VERIFIERS if by not in ("refinezono", "crown-ibp", "alpha-crown")),
        ("ibp", "real"),
        ("milp", "real"),
    ):
        certificate = certify(net, x, y, eps, by=[by], arithmetic=arithmetic, attack=attack, perturbation=around)
        verdicts[f"{by} {arithmetic}"] = [r.verdict for r in certificate.records]
    for k in range(len(x)):
        assert len({verdict[k] for verdict in verdicts.values()} - {"unknown", "timeout"}) <= 1
    for complete in ("bab float32", "milp float32"):
        assert not {"unknown", "timeout"} & {*verdicts[complete]}
    assert {*verdicts["milp float32"]} & {"robust", "falsified"}
    # No sampled point of a proved set has another label.
    proved = [k for k, verdict in enumerate(verdicts["milp float32"]) if verdict == "robust"]
    lower, upper = around.inner_ends(x[proved], eps)
    share = torch.rand(200, *lower.shape, generator=torch.Generator().manual_seed(0)).round()
    with torch.no_grad():
        predicted = net(torch.lerp(lower, upper, share).flatten(0, 1)).argmax(1)
    assert (predicted.view(len(share), -1) == y[proved]).all()


@pytest.mark.parametrize("name", SETS)
def test_counterexamples_are_exactly_in_the_set(name: str, tmp_path: Path) -> None:
    net, x, y, around, eps = problem(name)
    certify(net, x, y, eps, by=["bab", "milp"], out=tmp_path, attack=Attack(steps=3), perturbation=around)
    files = list(tmp_path.glob("counterexamples/*"))
    assert files or name == "negative"
    for file in files:
        tensors, _ = checkpoint.load(file)
        rows = tensors["index"]
        assert around.contains(x[rows], tensors["x_adv"], eps).all()
        with torch.no_grad():
            assert (net(tensors["x_adv"]).argmax(1) != y[rows]).all()


@pytest.mark.parametrize("name", SETS)
def test_radii_are_between_proof_and_attack(name: str) -> None:
    net, x, y, around, eps = problem(name)
    most = torch.full((len(x),), 4 * eps)
    proved = largest_proved_eps(net, x, y, by=["ibp", "crown"], perturbation=around, most=most, tolerance=1e-2 * eps)
    broken = smallest_broken_eps(net, x, y, Attack(steps=10), perturbation=around, most=4 * eps, tolerance=1e-1 * eps)
    assert (proved <= broken).all()
    assert (proved > 0).any()


def test_radii_of_a_set_without_limits() -> None:
    net, x, y, around, _ = problem("unbounded")
    measured = radii(net, Split(x, y), perturbation=around, attack=Attack(steps=10))
    width = (x.amax(0) - x.amin(0)) / torch.tensor([1.0, 0.5, 0.0, 0.1])
    assert {r.most for r in measured} == {measured[0].most}
    assert measured[0].most == pytest.approx(float(width.min()))
    assert all(r.broken is None or r.proved <= r.broken <= r.most for r in measured)


def test_a_feature_with_scale_zero_never_changes() -> None:
    net, x, y, around, eps = problem("unbounded")
    within, radius = around.within, around.inner_radius(eps, x)
    result = linf_pgd(net, x, y, radius, steps=10, within=within, stop_on_success=False)
    assert torch.equal(result.x_adv[:, 2], x[:, 2])
    assert not torch.equal(result.x_adv[:, 0], x[:, 0])


def test_results_of_another_set_are_not_reused(tmp_path: Path) -> None:
    net, x, y, around, eps = problem("unbounded")
    first = certify(net, x, y, eps, out=tmp_path, perturbation=around)
    again = certify(net, x, y, eps, out=tmp_path, perturbation=around)
    assert [r.seconds for r in again.records] == [r.seconds for r in first.records]
    before, scaled = (tmp_path / "records.jsonl").read_text(), Perturbation(None, None, [1.0, 0.5, 0.0, 0.2])
    with pytest.raises(UserError, match="other radii of the features, and they would be replaced"):
        certify(net, x, y, eps, out=tmp_path, perturbation=scaled)
    assert (tmp_path / "records.jsonl").read_text() == before
    other = certify(net, x, y, eps, out=tmp_path / "other", perturbation=scaled)
    assert {r.perturbation for r in other.records}.isdisjoint({r.perturbation for r in first.records})
    summary = json.loads((tmp_path / "other/summary.json").read_text())["perturbation"]
    assert summary["scale"] == [1.0, 0.5, 0.0, 0.2]
    assert summary["low"] is None
    assert summary["fingerprint"] == other.perturbation


def test_records_of_images_have_no_new_field(tmp_path: Path) -> None:
    net = nets.build("FC 4", (1, 2, 2), 2, seed=0)
    certify(net, torch.rand(3, 1, 2, 2), torch.tensor([0, 1, 0]), 0.1, out=tmp_path)
    assert all("perturbation" not in line for line in (tmp_path / "records.jsonl").read_text().splitlines())
    assert "perturbation" not in json.loads((tmp_path / "summary.json").read_text())


def test_eps_by_name_of_the_feature() -> None:
    net, x, y, _, _ = problem("unbounded")
    split = Split(x, y, input_range=None, feature_names=("a", "b", "c", "d"))
    by_name = certify(net, split, {"a": 0.1, "c": "1/20"})
    by_scale = certify(net, x, y, 0.1, perturbation=Perturbation(None, None, [1.0, 0.0, 0.5, 0.0]))
    assert by_name.eps == [0.1]
    assert [r.lower_margin for r in by_name.records] == [r.lower_margin for r in by_scale.records]
    with pytest.raises(UserError, match="did you mean"):
        certify(net, Split(x, y, input_range=None, feature_names=("age", "b", "c", "d")), {"agee": 0.1})
    with pytest.raises(UserError, match="has no such names"):
        certify(net, Split(x, y, input_range=None), {"a": 0.1})


def test_inputs_outside_of_the_range_are_refused() -> None:
    net, x, y, around, eps = problem("unbounded")
    with pytest.raises(UserError, match=r"give the range of valid inputs: perturbation="):
        certify(net, x, y, 0.1)
    with pytest.raises(UserError, match="leave the range"):
        certify(net, x, y, eps, perturbation=Perturbation(-0.1, 0.1))
    with pytest.raises(UserError, match="shape"):
        certify(net, x, y, eps, perturbation=Perturbation(None, None, [1.0, 1.0]))
    with pytest.raises(UserError, match="above 0"):
        certify(net, x, y, -1.0, perturbation=around)
    with pytest.raises(UserError, match="no limit"):
        largest_proved_eps(net, x, y, perturbation=around)


@pytest.mark.parametrize("kind", ["dataset", "loader"])
def test_late_inputs_outside_of_the_range_are_refused(kind: str) -> None:
    """The ball of such an input would be clipped to a set that does not contain the input."""
    net = torch.nn.Linear(2, 2).requires_grad_(False)
    net.weight.copy_(torch.tensor([[0.0, 0.0], [1.0, 0.0]]))
    net.bias.copy_(torch.tensor([1.02, 0.0]))
    x = torch.cat([torch.zeros(60, 2), torch.tensor([[1.01, 0.0]])])
    data: Any = TensorDataset(x, net(x).argmax(1))
    images = data if kind == "dataset" else DataLoader(data, batch_size=1)
    with pytest.raises(UserError, match="range of valid inputs"):
        certify(net, images, 0.05, perturbation=Perturbation(-1, 1))
    with pytest.raises(UserError, match="range of valid inputs"):
        radii(net, images, perturbation=Perturbation(-1, 1), attack=Attack(steps=2))


def test_a_predictor_refuses_two_scales() -> None:
    around = Perturbation(0.0, 1.0, scale=[1.0, 500.0])
    with pytest.raises(UserError, match="give one of them"):
        Predictor(torch.nn.Linear(2, 2), eps={"a": 0.1}, feature_names=["a", "b"], perturbation=around)
    with pytest.raises(UserError, match=r"advibp\.Perturbation"):
        Predictor(torch.nn.Linear(2, 2), eps=0.1, perturbation=(0, 1))  # type: ignore[arg-type]
