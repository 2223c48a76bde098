"""Terms beside the losses of a method: Shi's regularizers, a share of the regular loss, and the radius of training."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_runs import halves
from torch import Tensor

from advibp import Box, Recipe, nets
from advibp.bounds.graph.pre_activations import record_pre_activations
from advibp.objectives import regularizers
from advibp.training import Training

torch.set_num_threads(1)


def _gradient(method: str, **options: Any) -> Tensor:
    """Return the gradient of the first step in the ramp, without clipping."""
    warm_up = {"warmup_natural": 0, "warmup_adversarial": 0}
    shared = {
        "eps": 0.1,
        "epochs": 4,
        "batch_size": 60,
        "ramp": 2,
        "ramp_shape": "linear",
        "clip": None,
        "shi": 0,
        **warm_up,
    }
    recipe = Recipe.load(**{**shared, "method": method, **options})
    training = Training(nets.build("Conv 3 2x2+1, FC 8", (1, 4, 4), 2, seed=1), halves(), recipe)
    training.steps = training.steps_per_epoch  # eps is half of its final value
    training.step(*training.feed.example(60))
    return training.gradients.final.clone()


@pytest.mark.parametrize("method", ["mtl-ibp", "cc-ibp", "exp-ibp"])
def test_shis_regularizers_have_the_same_size_whatever_alpha_is(method: str) -> None:
    """And they are those of a hand-made IBP pass with the weight shi (1 - eps_t / eps)."""
    net, (x, _) = nets.build("Conv 3 2x2+1, FC 8", (1, 4, 4), 2, seed=1), _example()
    box = Box.ball(x, 0.05)
    with record_pre_activations() as boxes:
        net(box)
    terms = 0.5 * 0.5 * (regularizers.tightness(box, boxes) + regularizers.balance(boxes))
    wanted = torch.cat(
        [g.flatten() for g in torch.autograd.grad(terms, list(net.parameters()), materialize_grads=True)]
    )
    assert bool(wanted.any())
    for alpha in (0.0, 0.01, 0.5, 1.0):
        difference = _gradient(method, alpha=alpha, shi=0.5) - _gradient(method, alpha=alpha, shi=0.0)
        torch.testing.assert_close(difference, wanted, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["ibp", "advibp", "fixed", "pgd", "advsabr", "diffai"])
def test_every_row_takes_shis_regularizers_outside_of_its_weights(method: str) -> None:
    options = {"domain": "box"} if method == "diffai" else {"sabr_lambda": 1.0} if method == "advsabr" else {}
    with_terms, without = (_gradient(method, shi=shi, **options) for shi in (0.5, 0.0))
    alone = _gradient("mtl-ibp", alpha=1.0, shi=0.5) - _gradient("mtl-ibp", alpha=1.0, shi=0.0)
    torch.testing.assert_close(with_terms - without, alone, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("method", ["mtl-ibp", "sabr", "fixed", "advibp", "rs-fgsm"])
def test_the_clean_share_is_a_convex_combination(method: str) -> None:
    plain, mixed = (_gradient(method, clean_share=share) for share in (0.0, 0.3))
    clean = _gradient("standard", ramp=2)
    torch.testing.assert_close(mixed, 0.7 * plain + 0.3 * clean, rtol=1e-4, atol=1e-6)


def test_the_clean_share_costs_no_pass_if_batchnorm_needs_it_anyway() -> None:
    calls = []
    for share in (0.0, 0.3):
        net = nets.build("FC 8 BN", (1, 4, 4), 2, seed=1)
        training = Training(
            net, halves(), Recipe.load(method="sabr", eps=0.1, epochs=4, batch_size=60, clean_share=share)
        )
        training.steps = 3 * training.steps_per_epoch
        x, y = training.feed.example(60)
        training.stages.resume_modes()
        count = 0

        def note(*_: object) -> None:
            nonlocal count
            count += 1

        handle = net.register_forward_hook(note)
        training.step(x, y)
        handle.remove()
        calls.append(count)
    assert calls[0] == calls[1] == 1 + 8 + 1  # clean, eight steps of PGD, one box


def test_the_radius_of_training_has_a_factor() -> None:
    recipe = Recipe.load(method="ibp", eps=0.1, epochs=4, batch_size=60, train_eps_factor=2)
    training = Training(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), recipe)
    training.steps = 3 * training.steps_per_epoch
    assert training.step(*training.feed.example(60)).eps == pytest.approx(0.2)


def _example() -> tuple[Tensor, Tensor]:
    training = Training(nets.build("FC 8", (1, 4, 4), 2, seed=1), halves(), Recipe.load(eps=0.1, batch_size=60))
    return training.feed.example(60)
