"""Verdicts agree with each other and with the network, and decided images are not computed again."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from advibp import Box, UserError, attacks, certify, data, nets, open_run, train
from advibp.recipe import Recipe
from advibp.runs.training_display import Silent
from advibp.storage import checkpoint
from advibp.verify import Attack, Certificate, Record

torch.set_num_threads(1)

QUICK = Attack(steps=15, step=0.25)
SPECS = ("FC 6", "FC 8, FC 6", "Conv 3 2x2+1, FC 6")


def problem(seed: int, spec: str = "FC 8, FC 6", count: int = 24) -> tuple[nn.Sequential, Tensor, Tensor]:
    """A random network, images, and labels it predicts, but for every sixth."""
    net = nets.build(spec, (1, 4, 4), 3, seed=seed, init="default").eval()
    with torch.no_grad():
        for p in net.parameters():
            p.mul_(2)
    x = torch.rand(count, 1, 4, 4, generator=torch.Generator().manual_seed(seed)).clamp(0.05, 0.9)
    y = net(x).argmax(1)
    y[::6] = (y[::6] + 1) % 3
    return net, x, y


def counterexample(folder: Path, record: Record) -> Tensor:
    assert record.counterexample is not None
    name, row = record.counterexample.split("#")
    tensors, facts = checkpoint.load(folder / name)
    assert facts["eps"] == record.eps
    assert tensors["index"][int(row)] == record.index
    return tensors["x_adv"][int(row)]


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), spec=st.sampled_from(SPECS), eps=st.floats(0.001, 0.3))
def test_no_verdict_is_contradicted(seed: int, spec: str, eps: float) -> None:
    net, x, y = problem(seed, spec)
    certificate = certify(net, (x, y), eps, attack=QUICK)
    assert [r.index for r in certificate.records] == list(range(len(x)))
    wrong = net(x).argmax(1) != y
    clean = (net(x).gather(1, y[:, None]) - net(x)).scatter(1, y[:, None], torch.inf).amin(1)
    torch.manual_seed(seed)
    broken = attacks.linf_pgd(net, x, y, eps, steps=20, rel_stepsize=0.2, restarts=3, loss="margin").broken
    anyone = (x + eps * (2 * torch.rand(20, *x.shape) - 1).sign()).clamp(0, 1)
    stray = (net(anyone.flatten(0, 1)).argmax(1).view(20, -1) != y).any(0)
    for i, record in enumerate(certificate.records):
        assert (record.label, record.eps) == (int(y[i]), eps)
        assert (record.verdict == "misclassified") == bool(wrong[i])
        assert (record.prediction != record.label) == bool(wrong[i])
        if record.lower_margin is not None:
            assert record.lower_margin <= clean[i] + 1e-4
            assert (record.verdict == "robust") == (record.lower_margin > 0)
        if record.verdict == "robust":
            assert not broken[i]
            assert not stray[i]
    errors = certificate.errors(eps)
    assert errors["standard_error"] <= errors["attack_error"] <= errors["verified_error"]
    assert errors["standard_error"] == pytest.approx(wrong.float().mean().item())


@settings(max_examples=10)
@given(seed=st.integers(0, 10_000), eps=st.floats(0.01, 0.1))
def test_a_larger_radius_never_helps(seed: int, eps: float) -> None:
    net, x, y = problem(seed)
    certificate = certify(net, (x, y), [eps, 2 * eps], attack=QUICK)
    assert certificate.errors(eps)["verified_error"] <= certificate.errors(2 * eps)["verified_error"]
    proved = [{r.index for r in certificate.records if r.eps == e and r.verdict == "robust"} for e in (eps, 2 * eps)]
    assert proved[1] <= proved[0]


def test_counterexamples_are_kept_and_break_the_reopened_network(tmp_path: Path) -> None:
    _, x, y = problem(3, count=60)
    images = data.from_tensors(x, y, x, y, validation=20)
    options = {"epochs": 30, "ramp": 1, "batch_size": 20, "lr": 0.05, "init": "default"}
    recipe = Recipe.load(net="FC 8", method="standard", eps=0.05, **options)
    net = nets.build("FC 8", (1, 4, 4), 3, seed=0, init="default")
    train(net, images, recipe=recipe, out=tmp_path / "run", show=Silent())
    eps = 0.1
    certificate = certify(net, images.test, eps, attack=QUICK, out=tmp_path / "run" / "certify", batch_size=16)
    falsified = [r for r in certificate.records if r.verdict == "falsified"]
    assert len(falsified) > 5
    reopened = open_run(tmp_path / "run").net
    for record in falsified:
        x_adv = counterexample(tmp_path / "run" / "certify", record)
        assert (x_adv - x[record.index]).abs().max() <= eps + 1e-6
        assert x_adv.min() >= 0
        assert x_adv.max() <= 1
        assert int(reopened(x_adv[None]).argmax(1)) != record.label
    assert all(r.counterexample is None for r in certificate.records if r.verdict != "falsified")


# What may never count as proved


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("layer", [1, 3, 5])
def test_a_broken_network_gives_errors_and_never_proofs(value: float, layer: int) -> None:
    net, x, y = problem(1)
    with torch.no_grad():
        net[layer].bias.fill_(value)
    certificate = certify(net, (x, y), 1e-6, attack=QUICK)
    assert {r.verdict for r in certificate.records} == {"error"}
    assert certificate.errors(1e-6)["verified_error"] == 1


def test_an_infinite_logit_gives_no_margin() -> None:
    """The right class wins by infinity, at the image and over the box."""
    net, x, _ = problem(1)
    with torch.no_grad():
        net[-1].bias[0] = torch.inf
    certificate = certify(net, (x, torch.zeros(len(x), dtype=torch.int64)), 0.01, attack=QUICK)
    assert {r.verdict for r in certificate.records} == {"error"}


@pytest.mark.parametrize("pixel", [0.0, 0.5])
def test_bounds_that_overflow_prove_nothing(pixel: float) -> None:
    """Logits are finite at the image, bounds are not: -inf where the radius overflows, NaN where the center does."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Linear(4, 3))
    x, y = torch.full((5, 1, 4, 4), pixel), torch.zeros(5, dtype=torch.int64)
    with torch.no_grad():
        for layer in (net[1], net[2]):
            layer.weight.fill_(2.0**100)
            layer.bias.zero_()
        if pixel:
            net[1].weight[:, 8:] *= -1  # cancels exactly at the image
        net[2].weight[1:] *= -1
        net[2].bias[0] = 1.0
    assert torch.equal(net(x)[0], torch.tensor([1.0, 0.0, 0.0]))
    margin = net(Box.ball(x, 0.1)).lower_margins(y)[0, 1]
    assert margin == -torch.inf if pixel else margin.isnan()
    certificate = certify(net, (x, y), 0.1, attack=QUICK)
    assert "robust" not in {r.verdict for r in certificate.records}


# Going on where it stopped


class Seen:
    """What a network is given: images (not boxes), row by row."""

    def __init__(self, net: nn.Module) -> None:
        self.rows: list[Tensor] = []
        self.calls = 0
        net.register_forward_pre_hook(self.note)

    def note(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.calls += 1
        if isinstance(inputs[0], Tensor):
            self.rows += list(inputs[0])

    def indices(self, x: Tensor) -> set[int]:
        """Images that were looked at as they are."""
        return {i for i in range(len(x)) if any(torch.equal(row, x[i]) for row in self.rows)}

    def forget(self) -> None:
        self.rows, self.calls = [], 0


def told(certificate: Certificate) -> list[tuple[Any, ...]]:
    return [(r.index, r.eps, r.label, r.prediction, r.verdict, r.by) for r in certificate.records]


@pytest.fixture
def kept(tmp_path: Path) -> tuple[nn.Sequential, Tensor, Tensor, Path, Certificate]:
    net, x, y = problem(5)
    certificate = certify(net, (x, y), [0.02, 0.1], attack=QUICK, out=tmp_path, batch_size=10)
    verdicts = {r.verdict for r in certificate.records}
    assert verdicts == {"robust", "falsified", "misclassified", "unknown"}  # all four, or the tests below say little
    return net, x, y, tmp_path, certificate


Kept = tuple[nn.Sequential, Tensor, Tensor, Path, Certificate]


def test_what_is_decided_is_not_computed_again(kept: Kept) -> None:
    net, x, y, folder, first = kept
    content, seen = (folder / "records.jsonl").read_bytes(), Seen(net)
    again = certify(net, (x, y), [0.02, 0.1], attack=QUICK, out=folder, batch_size=7)
    assert again == first
    assert seen.calls == 1  # the probe that tells one network from another
    assert (folder / "records.jsonl").read_bytes() == content


@pytest.mark.parametrize("lines", [0, 1, 13, 24, 40])
def test_records_cut_anywhere_are_completed(lines: int, kept: Kept) -> None:
    """The second part of the records is gone, and the last line that is left is cut in its middle."""
    net, x, y, folder, first = kept
    file = folder / "records.jsonl"
    all_lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(all_lines[:lines]) + all_lines[lines][:50])
    seen = Seen(net)
    again = certify(net, (x, y), [0.02, 0.1], attack=QUICK, out=folder, batch_size=10)
    assert told(again) == told(first)
    assert again.records[:lines] == first.records[:lines]
    assert seen.indices(x) == {r.index for r in first.records[lines:]}
    assert len(file.read_text().splitlines()) == 48


def test_other_attack_options_try_only_the_unknown_again(kept: Kept) -> None:
    net, x, y, folder, first = kept
    unknown = {r.index for r in first.records if r.eps == 0.02 and r.verdict == "unknown"}
    seen = Seen(net)
    stronger = Attack(steps=40, step=0.1, restarts=2, loss="margin")
    again = certify(net, (x, y), 0.02, attack=stronger, out=folder, batch_size=10)
    assert seen.indices(x) == unknown
    for before, after in zip((r for r in first.records if r.eps == 0.02), again.records, strict=True):
        assert before == after or before.index in unknown
        assert after.attack == f"{stronger if before.index in unknown else QUICK} seed=0"


def test_counterexamples_survive_a_second_attack(tmp_path: Path) -> None:
    """Images that are tried again, the first of a batch among them, must not overwrite what earlier records name."""
    net, x, y = problem(5, count=60)
    weak, strong = Attack(steps=1, step=0.01), Attack(steps=40)
    found = [certify(net, (x, y), 0.1, attack=attack).records for attack in (weak, strong)]
    late = [a.index for a, b in zip(*found, strict=True) if (a.verdict, b.verdict) == ("unknown", "falsified")]
    early = [a.index for a in found[0] if a.verdict == "falsified"]
    order = [*late, *early]
    assert late
    assert early
    x, y = x[order], y[order]
    first = certify(net, (x, y), 0.1, attack=weak, out=tmp_path)
    again = certify(net, (x, y), 0.1, attack=strong, out=tmp_path)
    assert first.records[0].verdict == "unknown"
    assert again.records[0].verdict == "falsified"
    for record in (*first.records, *again.records):
        if record.verdict == "falsified":
            x_adv = counterexample(tmp_path, record)
            assert (x_adv - x[record.index]).abs().max() <= record.eps + 1e-6
            assert int(net(x_adv[None]).argmax(1)) != record.label


def test_other_weights_or_other_images_start_anew(kept: Kept) -> None:
    net, x, y, folder, _ = kept
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[1].weight[0, 0] += 1e-3
    seen = Seen(other)
    certify(other, (x, y), [0.02, 0.1], attack=QUICK, out=folder, batch_size=10)
    assert seen.indices(x) == set(range(24))
    seen.forget()
    shifted, labels = x.clone(), y.clone()
    shifted[3] += 0.01
    labels[5] = (labels[5] + 1) % 3
    again = certify(other, (shifted, labels), [0.02, 0.1], attack=QUICK, out=folder, batch_size=10)
    assert seen.indices(shifted) == {3, 5}
    assert told(again) == told(certify(other, (shifted, labels), [0.02, 0.1], attack=QUICK, batch_size=10))


@pytest.mark.parametrize("batch_size", [1, 5, 24])
def test_verdicts_do_not_depend_on_the_batch(batch_size: int, kept: Kept) -> None:
    """Not on the size of the batches, and not on which images come before."""
    net, x, y, _, first = kept
    assert told(certify(net, (x, y), [0.02, 0.1], attack=QUICK, batch_size=batch_size)) == told(first)
    few = certify(net, (x[:batch_size], y[:batch_size]), [0.02, 0.1], attack=QUICK)
    assert set(told(few)) <= set(told(first))


def test_the_random_state_of_the_caller_is_unchanged() -> None:
    net, x, y = problem(5)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    one = certify(net, (x, y), 0.1, attack=QUICK)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert told(certify(net, (x, y), 0.1, attack=QUICK)) == told(one)


# Mistakes


@pytest.mark.parametrize(
    "options",
    [{"steps": 0}, {"steps": -3}, {"restarts": 0}, {"step": 0.0}, {"step": -1.0}, {"step": torch.nan}, {"loss": "l2"}],
)
def test_an_attack_that_does_nothing_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        Attack(**options)


@pytest.mark.parametrize("eps", [0.0, -1.0, 1.5, torch.nan])
def test_a_radius_outside_of_the_images_is_refused(eps: float, tmp_path: Path) -> None:
    net, x, y = problem(0)
    with pytest.raises(UserError, match="eps is"):
        certify(net, (x, y), [0.1, eps], out=tmp_path)
    assert not (tmp_path / "records.jsonl").exists()


def test_images_that_do_not_fit_are_refused() -> None:
    net, x, y = problem(0)
    bad = x.clone()
    bad[0, 0, 0, 0] = torch.nan
    for images, by in (((x, y[:-1]), ["ibp"]), ((x[:0], y[:0]), ["ibp"]), ((x + 1, y), ["ibp"]), ((bad, y), ["ibp"])):
        with pytest.raises(UserError):
            certify(net, images, 0.1, by=by)
    with pytest.raises(UserError, match="no verifier"):
        certify(net, (x, y), 0.1, by=["magic"])
    with pytest.raises(UserError, match="no parameters"):
        certify(nn.Flatten(), (x, y), 0.1)


class Turned(nn.Module):
    """The same weights, another function."""

    def __init__(self, net: nn.Module, sign: float) -> None:
        super().__init__()
        self.net, self.sign = net, sign

    def forward(self, x: Tensor) -> Tensor:
        return self.sign * self.net(x)


def test_records_are_about_a_function_and_not_about_weights(tmp_path: Path) -> None:
    net, x, y = problem(3)
    first = certify(Turned(net, 1.0), (x, y), 0.01, attack=QUICK, out=tmp_path)
    turned = certify(Turned(net, -1.0), (x, y), 0.01, attack=QUICK, out=tmp_path)
    assert first != turned
    assert turned == certify(Turned(net, -1.0), (x, y), 0.01, attack=QUICK, out=tmp_path)
    fresh = certify(Turned(net, -1.0), (x, y), 0.01, attack=QUICK)
    assert [r.verdict for r in turned.records] == [r.verdict for r in fresh.records]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda net, x, y: (net, x, y + 7), "labels"),
        (lambda net, x, y: (net, x, y.float()), "labels"),
        (lambda net, x, y: (net, x, y[:, None]), "label"),
        (lambda net, x, y: (net, x.double(), y), "float64"),
        (lambda net, x, y: (net, x[:, :, :2], y), "can't take images"),
        (lambda net, x, y: (nn.Sequential(net, nn.Linear(3, 1)), x, y), "two classes"),
        (lambda net, x, y: (nn.Sequential(net, nn.Unflatten(1, (3, 1))), x, y), "logits"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, says: str) -> None:
    net, x, y = change(*problem(1))
    with pytest.raises(UserError, match=says):
        certify(net, (x, y), 0.01, attack=QUICK)


def test_each_radius_counts_once_and_the_mode_of_the_network_stays() -> None:
    net, x, y = problem(2)
    net.train()
    certificate = certify(net, (x, y), [0.01, 0.01], attack=QUICK)
    assert certificate.counts(0.01).total() == len(x)
    assert net.training


@pytest.mark.parametrize(
    "options",
    [{"attack": "pgd"}, {"batch_size": -1}, {"workers": 0}, {"sample": 0}, {"budget": 0.0}, {"by": "magic"}],
    ids=str,
)
def test_options_that_make_no_sense_are_user_errors(options: dict[str, Any]) -> None:
    net = nets.build("FC 6", (1, 4, 4), 3, seed=0)
    x = torch.rand(4, 1, 4, 4)
    with pytest.raises(UserError):
        certify(net, x, net(x).argmax(1), 0.01, **options)


def test_other_types_of_arguments() -> None:
    """A radius as a tensor, a prover as a word, any seed, in inference mode: the same verdicts."""
    net = nets.build("FC 6", (1, 4, 4), 3, seed=0)
    x = torch.rand(4, 1, 4, 4)
    y = net(x).argmax(1)
    want = [r.verdict for r in certify(net, x, y, 0.01, attack=QUICK).records]
    asked = certify(net, x, y, torch.tensor(0.01), by="ibp", attack=QUICK)
    with torch.inference_mode():
        quiet = certify(net, x, y, 0.01, attack=QUICK)
    assert [r.verdict for r in asked.records] == [r.verdict for r in quiet.records] == want
    assert len(certify(net, x, y, 0.01, sample=2, seed=10**25, attack=QUICK).records) == 2


def test_certify_writes_a_summary_beside_its_records(tmp_path: Path) -> None:
    net, x, y = problem(1)
    options = {"by": ["ibp", "crown"], "attack": QUICK, "sample": 9, "seed": 3, "budget": np.float32(600)}
    certificate = certify(net, (x, y), [0.02, 0.05], **options, out=tmp_path, command="advibp certify run")
    assert {path.name for path in tmp_path.iterdir()} >= {"records.jsonl", "summary.json"}
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["command"], summary["by"]) == ("advibp certify run", ["ibp", "crown"])
    assert (summary["attack"], summary["arithmetic"]) == (str(QUICK), "float32")
    assert [summary[key] for key in ("images", "sample", "seed", "budget")] == [9, 9, 3, 600.0]
    assert summary["verdicts"] == {f"{eps:g}": dict(certificate.counts(eps)) for eps in certificate.eps}
    assert summary["hardware"]["torch"] == torch.__version__
    with pytest.raises(UserError, match="command"):
        certify(net, (x, y), 0.02, command="advibp certify run")
