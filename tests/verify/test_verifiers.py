"""The table of verifiers; tighter verifiers keep the proofs of cheaper ones, and records name the deciding stage."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from verify_problems import QUICK, problem, verdicts

from advibp import Box, UserError, attacks, certify
from advibp.verify import Record, largest_proved_eps
from advibp.verify.precision import ARITHMETICS
from advibp.verify.records import RecordFile
from advibp.verify.verifiers import VERIFIERS, Proof, Verifier, bounding_verifiers, in_order, labels_of_checks

torch.set_num_threads(1)

SPECS = ("FC 6", "FC 10, FC 8", "Conv 3 2x2+1, FC 6")
ALL = list(bounding_verifiers())


# ---- the table

SOURCES = Path(__file__).parents[2] / "src" / "advibp"


def test_the_table_is_ordered_and_complete() -> None:
    before = [row.before_attack for row in VERIFIERS.values()]
    assert before == sorted(before, reverse=True)
    assert list(labels_of_checks()) == ["clean", "ibp", "crown-ibp", "pgd", "apgd", *list(VERIFIERS)[2:]]
    for row in VERIFIERS.values():
        assert (row.search is None) != (row.tighten is None)
        assert (row.cost == "search") == (row.search is not None)
        assert set(row.arithmetics) <= set(ARITHMETICS)


def test_no_other_file_lists_the_verifiers() -> None:
    names = VERIFIERS.keys() - {"ibp", "crown-ibp"}  # those are also training methods
    files = [path for path in SOURCES.rglob("*") if path.suffix in (".py", ".js", ".html")]
    lists = []
    for path in files:
        text = path.read_text("utf-8")
        quoted = {name for name in names if f'"{name}"' in text} | set(re.findall(r"^ *(\w+):", text, re.M)) & names
        if len(quoted) > 2:
            lists.append(path.relative_to(SOURCES).as_posix())
    # Others name the verifier of each method, those of a table of the paper, and the searches that share a time limit.
    others = ["methods.py", "reproduce/post_verification.py", "vnncomp/properties.py"]
    assert sorted(lists) == sorted([*others, "verify/verifiers.py"])


def test_a_row_of_the_table_is_all_that_a_new_verifier_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    net, x, y = problem(3)
    row = Verifier(label="Twin of CROWN", tighten=Proof.crown, arithmetics=("real",))
    monkeypatch.setitem(VERIFIERS, "twin", row)
    known = {r.index: r.verdict for r in certify(net, x, y, 0.04, by="crown", arithmetic="real", attack=QUICK).records}
    new = certify(net, x, y, 0.04, by=["twin", "ibp"], arithmetic="real", attack=QUICK, out=tmp_path)
    assert {r.index: r.verdict for r in new.records} == known
    assert "twin" in {r.by for r in new.records}
    assert RecordFile.open(tmp_path / "records.jsonl").records
    assert new.verifiers(0.04) == ["ibp", "twin"]
    with pytest.raises(UserError, match="'twin' proves in real arithmetic, not in float64"):
        certify(net, x, y, 0.04, by="twin", attack=QUICK)
    with pytest.raises(UserError, match="'twin' proves in real arithmetic, not in float64"):
        largest_proved_eps(net, x, y, by=["twin"])


# ---- provers


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), eps=st.floats(0.005, 0.2))
@torch.no_grad()
def test_margins_are_never_below_those_of_cheaper_verifiers(seed: int, spec: str, eps: float) -> None:
    net, x, y = problem(seed, spec, 4)
    proof = Proof(net, Box.ball(x, eps), y)
    corners = (x + eps * (torch.rand(200, *x.shape, dtype=x.dtype) * 2 - 1).sign()).clamp(0, 1)
    output = net(corners.flatten(0, 1)).unflatten(0, (200, 4))
    margins = output.gather(2, y.view(1, -1, 1).expand(200, -1, 1)) - output
    before = proof.margins
    for name in ALL:
        smallest = proof.tighten(name)
        assert (proof.margins >= before).all()
        assert (proof.margins <= margins.amin(0) + 1e-9).all()
        assert (proof.margins[torch.arange(4), y] == 0).all()
        assert torch.equal(smallest, proof.margins.scatter(1, y[:, None], torch.inf).amin(1))
        alone = Proof(net, Box.ball(x, eps), y)
        assert (alone.tighten(name) <= smallest + 1e-9).all()
        before = proof.margins


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS))
@torch.no_grad()
def test_a_proof_of_some_images_continues_as_one_of_all(seed: int, spec: str) -> None:
    net, x, y = problem(seed, spec, 4)
    keep = torch.tensor([3, 1])
    for before, after in (("ibp", "crown"), ("crown-ibp", "crown"), ("crown", "alpha-crown"), ("crown", "deepz")):
        whole = Proof(net, Box.ball(x, 0.05), y)
        whole.tighten(before)
        taken = whole.take(keep)
        assert torch.equal(taken.margins, whole.margins[keep])
        assert torch.equal(taken.y, y[keep])
        torch.testing.assert_close(taken.tighten(after), whole.tighten(after)[keep], rtol=1e-9, atol=1e-9)
    nobody = whole.take(torch.tensor([], dtype=torch.int64))
    assert nobody.margins.shape == (0, 3)


@torch.no_grad()
def test_a_nan_never_replaces_a_margin() -> None:
    net, x, y = problem(0)
    proof = Proof(net, Box.ball(x, 0.01), y)
    before = proof.margins
    proof._improve(torch.full_like(before, torch.nan))
    assert torch.equal(proof.margins, before)


def test_verifiers_run_cheapest_first() -> None:
    assert in_order(["alpha-crown", "ibp", "crown"]) == ["ibp", "crown", "alpha-crown"]
    assert in_order(ALL[::-1]) == ALL
    net, x, y = problem(0)
    with pytest.raises(UserError, match="no verifier 'nobody'; choose from ibp, crown-ibp, crown, deepz, alpha-crown"):
        certify(net, x, y, 0.1, by=["ibp", "nobody"])


# ---- the cascade


@settings(max_examples=8)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), eps=st.floats(0.01, 0.1))
def test_no_verdict_is_contradicted(seed: int, spec: str, eps: float) -> None:
    net, x, y = problem(seed, spec)
    certificate = certify(net, x, y, eps, by=ALL, attack=QUICK)
    wrong = net(x).argmax(1) != y
    torch.manual_seed(seed)
    broken = attacks.linf_pgd(net, x, y, eps, steps=20, rel_stepsize=0.2, restarts=3, loss="margin").broken
    for record, misclassified, fell in zip(certificate.records, wrong.tolist(), broken.tolist(), strict=True):
        assert (record.verdict == "misclassified") == misclassified
        who = {"misclassified": ["clean"], "falsified": ["pgd"], "robust": ALL, "unknown": [None]}
        assert record.by in who[record.verdict]
        if record.verdict == "robust":
            assert not fell
            assert record.lower_margin is not None
            assert record.lower_margin > 0
        elif record.verdict == "unknown":
            assert record.lower_margin is not None
            assert record.lower_margin <= 0
        assert record.provers == " ".join(ALL)
    counts = certificate.counts(eps)
    assert counts.total() == len(x)
    errors = certificate.errors(eps)
    assert errors["verified_error"] == pytest.approx(1 - counts["robust"] / len(x))
    assert errors["attack_error"] == pytest.approx((counts["misclassified"] + counts["falsified"]) / len(x))


@settings(max_examples=6)
@given(seed=st.integers(0, 10_000))
def test_more_verifiers_prove_more_and_the_cheapest_is_recorded(seed: int) -> None:
    net, x, y = problem(seed)
    eps, proved = 0.04, set[int]()
    for count in range(1, len(ALL) + 1):
        records = certify(net, x, y, eps, by=ALL[:count], attack=QUICK).records
        robust = {r.index: r.by for r in records if r.verdict == "robust"}
        assert proved <= robust.keys()
        assert all(robust[i] == ALL[count - 1] for i in robust.keys() - proved)
        proved = set(robust)


def test_every_way_to_give_images_gives_the_same_records() -> None:
    net, x, y = problem(3)
    wanted = verdicts(certify(net, x, y, 0.04, by=["ibp", "crown"], attack=QUICK))
    assert verdicts(certify(net, (x, y), 0.04, by=["crown", "ibp"], attack=QUICK)) == wanted
    assert verdicts(certify(net, (x, y), eps=[0.04], by=["ibp", "crown"], attack=QUICK)) == wanted
    for given_images in ((x, 0.04), (x, y), ((x, y), 0.04, 0.1)):
        with pytest.raises(UserError):
            certify(net, *given_images)


def test_a_sample_is_the_same_every_time_and_has_the_records_of_the_whole() -> None:
    net, x, y = problem(4)
    whole = {r.index: (r.verdict, r.by) for r in certify(net, x, y, 0.04, by=["ibp", "crown"], attack=QUICK).records}
    found = [certify(net, x, y, 0.04, by=["ibp", "crown"], attack=QUICK, sample=7, seed=0) for _ in range(2)]
    assert verdicts(found[0]) == verdicts(found[1])
    assert len({r.index for r in found[0].records}) == 7
    assert all(whole[r.index] == (r.verdict, r.by) for r in found[0].records)
    other = certify(net, x, y, 0.04, by=["ibp"], attack=QUICK, sample=7, seed=1)
    assert [r.index for r in other.records] != [r.index for r in found[0].records]
    assert len(certify(net, x, y, 0.04, attack=QUICK, sample=1000).records) == len(x)
    with pytest.raises(UserError, match="at least 1"):
        certify(net, x, y, 0.04, sample=0)


def test_a_tiny_budget_times_out_and_a_later_call_goes_on(tmp_path: Path) -> None:
    net, x, y = problem(5)
    options = {"by": ["ibp", "crown", "alpha-crown"], "attack": QUICK}
    wanted = {r.index: (r.verdict, r.by) for r in certify(net, x, y, 0.06, **options).records}
    short = certify(net, x, y, 0.06, **options, budget=1e-9, out=tmp_path)
    assert short.counts(0.06)["timeout"] > 0
    assert short.counts(0.06)["unknown"] == 0
    for record in short.records:
        assert record.verdict == "timeout" or wanted[record.index] == (record.verdict, record.by)
        assert record.by is None or record.verdict != "timeout"
    again = certify(net, x, y, 0.06, **options, budget=1e-9, out=tmp_path)
    assert verdicts(again) == verdicts(short)
    whole = certify(net, x, y, 0.06, **options, out=tmp_path)
    assert {r.index: (r.verdict, r.by) for r in whole.records} == wanted
    kept = {r.index: r.seconds for r in short.records if r.verdict != "timeout"}
    assert all(r.seconds == kept[r.index] for r in whole.records if r.index in kept)  # not decided again
    with pytest.raises(UserError, match="above 0"):
        certify(net, x, y, 0.06, budget=0)


def test_workers_come_to_the_same_verdicts(tmp_path: Path) -> None:
    net, x, y = problem(6)
    options = {"by": ["ibp", "crown", "deepz"], "attack": QUICK, "batch_size": 5}
    alone = certify(net, x, y, [0.02, 0.05], **options)
    together = certify(net, x, y, [0.02, 0.05], **options, workers=2, out=tmp_path)
    assert [v[:4] for v in verdicts(together)] == [v[:4] for v in verdicts(alone)]
    for ours, theirs in zip(alone.records, together.records, strict=True):
        assert ours.lower_margin == pytest.approx(theirs.lower_margin, abs=1e-9)


def test_records_of_workers_are_continued_at_once(tmp_path: Path) -> None:
    net, x, y = problem(6)
    options = {"by": ["ibp", "crown"], "attack": QUICK, "batch_size": 5, "out": tmp_path}
    assert certify(net, x, y, 0.05, **options, workers=2).records == certify(net, x, y, 0.05, **options).records


def test_a_network_that_linear_bounds_refuse_is_refused_by_name() -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Softplus(), nn.Linear(5, 3)).double()
    _, x, _ = problem(0)
    y = net(x).argmax(1)
    assert Counter(r.verdict for r in certify(net, x, y, 1e-6, by=["ibp"], attack=QUICK).records)["robust"] > 0
    with pytest.raises(UserError, match=r"layer '2' \(softplus\) has no linear bounds"):
        certify(net, x, y, 1e-3, by=["crown"], attack=QUICK)


def test_a_record_is_about_one_image() -> None:
    net, x, y = problem(7)
    records = certify(net, x, y, 0.03, by=ALL, attack=QUICK).records
    for record in records[:4]:
        alone: Record = certify(
            net, x[record.index : record.index + 1], y[record.index : record.index + 1], 0.03, by=ALL, attack=QUICK
        ).records[0]
        if record.verdict in ("robust", "misclassified"):  # an attack's chance belongs to the image's number
            assert (alone.verdict, alone.by) == (record.verdict, record.by)
