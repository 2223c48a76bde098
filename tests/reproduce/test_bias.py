"""The paper's central claim, as a statistical test: Algorithm 1's weights leave the expected update unbiased.

The problem and the test statistic are those of results/bias/measure.py, on fewer samples. Seeds are fixed, so nothing
here is random from run to run.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch
from scipy import stats
from torch import Tensor

from advibp.weighting import Moments, Weights, compute_weights

RESULTS = Path(__file__).parents[2] / "results" / "bias"


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bias_measure", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["bias_measure"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


bias = load(RESULTS / "measure.py")
MANY = {"chains": 10_000, "steps": 32, "seed": 0}
ANGLES = pytest.mark.parametrize("angle", [60, 120], ids=["agree", "conflict"])
STRONG = pytest.mark.parametrize("strong", ["always", "never"])  # c_t infinite, c_t = 0


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors: a second thread only gets in the way."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def p_value(rule: object) -> float:
    return float(bias.measure(rule, **MANY)["p"])


# ------------------------------------------------------------------------------------ the problem is what it says


@pytest.mark.parametrize("strong", ["always", "never", "fosc"])
def test_the_chains_are_the_shipped_algorithm_1(strong: str) -> None:
    """What is measured for many chains at once is what `Moments` does to each of them."""
    rule, people = bias.Rule(description="", angle=100, strong=strong), bias.population(100, 64)
    c_t = {"always": torch.inf, "never": 0.0, "fosc": people.c_t}[strong]
    shipped, branches = [Moments(bias.BETA1, bias.BETA2) for _ in range(8)], set()
    for step in bias.walk(rule, people, chains=8, steps=60, seed=0):
        for i, weighting in enumerate(shipped):
            w = weighting.weights(step.fosc[i], c_t)
            assert step.kappa[i].tolist() == pytest.approx(w[:3], rel=1e-9)
            branches.add(w.branch)
            weighting.update(step.gradients[i])
    assert (
        branches == {"start", "agree"} | {"always": {"lower"}, "never": {"upper"}, "fosc": {"lower", "upper"}}[strong]
    )


def of_current(g: Tensor, *, strong: bool) -> Weights:
    gram, norms = g @ g.T, g.norm(dim=1)
    return compute_weights(*map(float, (gram[0, 1], gram[0, 0], gram[1, 1], *norms)), strong=strong)


def test_current_gradient_weights_are_the_same_formulas_with_m_the_gradient_and_v_its_norm() -> None:
    rule = bias.Rule(description="", angle=100, weights_from="current")
    for step in bias.walk(rule, bias.population(100, 64), chains=20, steps=10, seed=0):
        for kappa, g in zip(step.kappa, step.gradients, strict=True):
            assert kappa.tolist() == pytest.approx(of_current(g, strong=True)[:3], rel=1e-9)


@ANGLES
def test_population_gradients_are_those_of_its_losses(angle: float) -> None:
    """The full gradients enclose the angle, and batches drawn with replacement estimate them without bias."""
    people = bias.population(angle, 64)
    full = people.gradients.mean(0)
    cosine = float(full[0] @ full[1] / (full[0].norm() * full[1].norm()))
    assert cosine == pytest.approx(torch.tensor(angle).deg2rad().cos().item(), abs=1e-6)
    (step,) = bias.walk(bias.Rule(description="", angle=angle), people, chains=20_000, steps=1, seed=0)
    assert bias.hotelling((step.gradients - full).flatten(1))[0] > 0.01


# ------------------------------------------------------------------------------------ the claim


@ANGLES
@STRONG
def test_weights_from_current_gradients_bias_the_update(angle: float, strong: str) -> None:
    assert p_value(bias.Rule(description="", angle=angle, strong=strong, weights_from="current")) < 1e-6


@ANGLES
@STRONG
def test_algorithm_1_does_not(angle: float, strong: str) -> None:
    assert p_value(bias.Rule(description="", angle=angle, strong=strong)) > 0.01


@ANGLES
def test_the_test_would_notice_moments_that_hold_the_current_gradient(angle: float) -> None:
    """`update` before `weights`: an error of one line, a tenth of the bias."""
    assert p_value(bias.Rule(description="", angle=angle, weights_from="both")) < 1e-6


@ANGLES
def test_the_test_has_the_right_size(angle: float) -> None:
    """Where nothing is to be found, p is uniform."""
    p = bias.p_values(bias.Rule(description="", angle=angle), repetitions=200, chains=100, steps=16, seed=0)
    assert stats.kstest(p, "uniform").pvalue > 0.01


# ------------------------------------------------------------------------------------ what is left


def test_the_regularizer_adds_the_covariance_of_loss_and_gradient() -> None:
    """2 kappa_reg L_t g_t has the mean of the squared batch loss as its objective: 2 kappa_reg cov(L, g) / batch is all
    that separates it from the square of the mean loss."""
    rule, people = bias.Rule(description="", angle=120, strong="never", regularizer=True), bias.population(120, 256)
    found, _ = bias.chain_means(rule, people, **MANY)
    of_ibp = people.gradients[:, 1]
    covariance = ((people.upper - people.upper.mean())[:, None] * (of_ibp - of_ibp.mean(0))).mean(0) / bias.BATCH
    share = torch.stack([step.kappa[:, 2] for step in bias.walk(rule, people, **MANY)]).mean(0)
    assert bias.hotelling(found)[0] < 1e-6
    assert bias.hotelling(found - 2 * share[:, None] * covariance)[0] > 0.01


def test_kept_results_hold_every_rule_and_the_page_shows_them() -> None:
    kept = json.loads((RESULTS / "bias.json").read_text("utf-8"))
    assert [row["rule"] for row in kept["rows"]] == [rule.description for rule in bias.RULES]
    assert bias.table(kept["rows"]) in (RESULTS / "README.md").read_text("utf-8")
    assert (RESULTS.parents[1] / kept["command"].removeprefix("python ")).exists()
