"""Searches in the cascade: they decide what provers leave open, say who did, and keep counterexamples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from verify_problems import QUICK, problem, verdicts

from advibp import UserError, certify
from advibp.storage import checkpoint
from advibp.verify.exact.question import Question
from advibp.verify.radius import largest_proved_eps
from advibp.verify.verifiers import complete_verifiers, in_order, searches

EXACT = [name for name in complete_verifiers() if name in searches()]


@pytest.mark.parametrize("search", EXACT)
def test_a_complete_search_decides_every_image(search: str, tmp_path: Path) -> None:
    net, x, y = problem(7)
    weak = QUICK.__class__(steps=1, step=0.01)  # leaves work to the search
    for eps in (0.02, 0.1, 0.2):
        certificate = certify(net, (x, y), eps, by=["ibp", search], attack=weak, out=tmp_path / f"{eps}")
        counts = certificate.counts(eps)
        assert counts["unknown"] + counts["timeout"] + counts["error"] == 0
        for record in certificate.records:
            if record.verdict == "falsified":
                assert record.counterexample is not None
                name, _, row = record.counterexample.partition("#")
                tensors, _ = checkpoint.load(tmp_path / f"{eps}" / name)
                point = tensors["x_adv"][int(row)]
                i = record.index
                assert (point - x[i]).abs().max() <= eps + 1e-12
                assert int(net(point[None]).argmax()) != int(y[i])


def test_complete_searches_agree_and_no_verifier_contradicts_them() -> None:
    net, x, y = problem(11)
    weak = QUICK.__class__(steps=1, step=0.01)
    for eps in (0.05, 0.15):
        found = [
            {r.index: r.verdict for r in certify(net, (x, y), eps, by=by, attack=weak).records}
            for by in (*([name] for name in EXACT), "complete", ["ibp", "alpha-crown", "refinezono", *EXACT])
        ]
        assert all(verdict == found[0] for verdict in found)
        proved = certify(net, (x, y), eps, by=["alpha-crown", "refinezono"], attack=weak)
        for record in proved.records:
            if record.verdict == "robust":
                assert found[0][record.index] == "robust"


def test_images_that_a_search_breaks_are_not_in_the_attack_error() -> None:
    net, x, y = problem(7)
    weak = QUICK.__class__(steps=1, step=0.01)
    found = certify(net, (x, y), 0.2, by="complete", attack=weak)
    deciders = [r.by for r in found.records if r.verdict == "falsified"]
    assert set(deciders) & set(EXACT)
    errors, wrong = found.errors(0.2), found.counts(0.2)["misclassified"]
    assert errors["attack_error"] == (wrong + deciders.count("pgd")) / len(x)
    assert errors["verified_error"] == (wrong + len(deciders)) / len(x)


def test_workers_decide_the_same() -> None:
    net, x, y = problem(3)
    both = [certify(net, (x, y), 0.1, by="complete", attack=QUICK, workers=n, batch_size=5) for n in (1, 2)]
    # (but for the last digits of their margins: batches differ)
    assert [v[:4] for v in verdicts(both[0])] == [v[:4] for v in verdicts(both[1])]


def test_an_image_times_out_and_a_larger_budget_continues(tmp_path: Path) -> None:
    net, x, y = problem(5)
    weak = QUICK.__class__(steps=1, step=0.01)
    short = certify(net, (x, y), 0.15, by=["milp"], attack=weak, budget=1e-9, out=tmp_path)
    assert short.counts(0.15)["timeout"] > 0
    assert short.counts(0.15)["unknown"] == 0
    again = certify(net, (x, y), 0.15, by=["milp"], attack=weak, budget=600, out=tmp_path)
    assert again.counts(0.15)["timeout"] == 0


def test_complete_stands_for_several_verifiers() -> None:
    assert in_order("complete") == in_order([*complete_verifiers()])
    assert set(in_order(["complete", "deepz"])) == {*complete_verifiers(), "deepz"}


def test_radii_refuse_searches() -> None:
    net, x, y = problem(1)
    with pytest.raises(UserError, match="'milp' bounds one image at a time"):
        largest_proved_eps(net, x[:1], y[:1], by=["milp"])


def test_smooth_activations_are_refused_in_a_sentence() -> None:
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    x = torch.rand(3, 1, 2, 2)
    with pytest.raises(UserError, match="not piecewise linear"):
        certify(net, x, net(x).argmax(1), 0.5, by=["milp"], attack=QUICK)


@pytest.mark.parametrize("by", ["complete", ["bab"]])
def test_smooth_activations_are_searched_by_branch_and_bound(by: str | list[str]) -> None:
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8), torch.nn.Sigmoid(),
        torch.nn.Linear(8, 2),
    )  # fmt: skip
    for p in net.parameters():
        p.data *= 3
    x = torch.rand(8, 1, 2, 2)
    records = list(certify(net, x, net(x).argmax(1), 0.1, by=by, attack=QUICK, budget=20))
    assert {record.verdict for record in records} <= {"robust", "falsified"}
    assert by == "complete" or "bab" in {record.by for record in records}


@pytest.mark.parametrize("search", list(searches()))
def test_numbers_too_large_for_bounds_are_undecided(search: str) -> None:
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 2), torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(2, 2)
    )
    with torch.no_grad():
        net.double()[0].weight.mul_(1e200).mul_(1e120)
    question = Question.robustness(net, torch.rand(1, 1, 3, 3).double(), 0, 0.1, 2)
    answer = searches()[search](question, seconds=5.0)
    assert not answer.robust
    assert answer.counterexample is None


@pytest.mark.parametrize("search", list(searches()))
def test_a_nan_margin_is_no_proof(search: str) -> None:
    """z_2 = c (h_1 - h_2) is 0, but its coefficient at the input is inf - inf; z_0 - z_1 = 1 is known."""
    net = torch.nn.Sequential(torch.nn.Linear(1, 2), torch.nn.ReLU(), torch.nn.Linear(2, 3)).double()
    with torch.no_grad():
        for p in net.parameters():
            p.zero_()
        net[0].weight.fill_(10.0)
        net[2].bias[0] = 1.0
        net[2].weight[2] = torch.tensor([1.7e308, -1.7e308])
    assert not searches()[search](
        Question.robustness(net, torch.full((1, 1), 0.5).double(), 0, 0.1, 3), seconds=5
    ).robust


def test_a_program_that_is_too_large_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, y = problem(7)
    weak = QUICK.__class__(steps=1, step=0.01)
    monkeypatch.setattr("advibp.bounds.linear.kinks.MOST_NUMBERS", 0)
    for search in searches():
        counts = certify(net, (x, y), 0.2, by=["ibp", search], attack=weak).counts(0.2)
        assert counts["unknown"] > 0
        assert counts["timeout"] + counts["error"] == 0
