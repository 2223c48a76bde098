"""Checks before training: can the network be bounded, do the data fit it, do the options fit each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advibp.bounds import Box
from advibp.bounds.compiling import compiled_relus
from advibp.bounds.graph.pre_activations import record_pre_activations
from advibp.errors import UserError
from advibp.execution import batchnorm, recompute
from advibp.execution.own_copy import run_on_copy
from advibp.objectives import Ball, Context, Evaluation
from advibp.training.stages import Inputs
from advibp.verify import ibp_margins

if TYPE_CHECKING:
    from advibp.training import Training


@torch.no_grad()
def check(training: Training) -> None:
    """Raise a UserError for what would fail later."""
    _check_options(training)
    x, y = training.feed.example(2)
    training.net.eval()
    _check_logits(training, x)
    if len(training.data.validation) == 0:
        raise UserError("There are no validation images; hold some out: data.load(..., validation=1000).")
    try:
        ibp_margins.evaluate(
            training.net, x, y, training.recipe.eps, training.perturbation
        )  # every epoch ends with this
        with (
            training.stages.with_buffers_restored(),
            batchnorm.step(training.net, training.trains_batchnorm) as statistics,
        ):
            if statistics:
                statistics.capture(training.net, x)
            _check_objectives(training, x, y)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The network can't be run on a set of images: {error!r}") from error


def _check_options(training: Training) -> None:
    recipe, method = training.recipe, training.method
    with compiled_relus(recipe.compile):  # raises if there is no compiler
        pass
    if (recipe.flip or recipe.crop) and len(training.data.input_shape) != 3:
        raise UserError(
            f"flip and crop augment images, and the inputs have the shape {training.data.input_shape}; set flip to "
            "false and crop to 0."
        )
    has_domain = "domain" in method.recipe_keys
    if training.trains_batchnorm and not (method.batchnorm or (has_domain and recipe.domain == "box")):
        raise UserError(
            f"{recipe.method} can't bound BatchNorm in training; use advibp, or call .eval() on the BatchNorm layers."
        )
    if (
        training.trains_batchnorm
        and "taps_layers" in method.recipe_keys
        and method.lower
        and recipe.batchnorm != "clean"
    ):
        raise UserError(f"{recipe.method} needs BatchNorm statistics of a clean pass; set batchnorm to clean.")
    in_parts = 0 < recipe.at_once < training.batch_size
    if in_parts and recipe.shi:
        raise UserError("at_once would change Shi's regularizers, which depend on the whole batch; set shi to 0.")
    if recipe.recompute and ("relu_shrink" in method.recipe_keys and recipe.relu_shrink != 1):
        raise UserError("recompute can't be combined with relu_shrink; set recompute to false, or relu_shrink to 1.")
    if in_parts and not (method.per_image or (has_domain and recipe.domain != "hybrid")):
        raise UserError(
            f"at_once would change the result of {recipe.method}, whose loss depends on the whole batch; use a "
            f"smaller batch_size."
        )
    if training.trains_batchnorm and (recipe.recompute or in_parts):
        raise UserError(
            "at_once and recompute would change the result of BatchNorm in training, which depends on the whole batch; "
            "use a smaller batch_size, or call .eval() on the BatchNorm layers."
        )
    if recipe.recompute and not recompute.chains(training.net):
        raise UserError(
            "recompute works on an nn.Sequential with at least four layers that hold weights, and this network has "
            "none; set at_once instead."
        )


def _check_logits(training: Training, x: Tensor) -> None:
    others = {p.dtype for p in training.params if p.dtype != x.dtype}
    if others:
        raise UserError(
            f"The images are {x.dtype}, the network is {others.pop()}; convert it, for example net.float()."
        )
    try:
        logits = run_on_copy(training.net, x)
    except Exception as error:  # a user's network may raise anything
        raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < training.data.classes:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(
            f"The network returns {found} for two images, but (2, {training.data.classes}) was expected: one logit per "
            f"class."
        )


def _check_objectives(training: Training, x: Tensor, y: Tensor) -> None:
    """Run each objective once, on images and on the latent inputs of every stage. It may be the user's."""
    recipe, settings = training.recipe, training.settings
    with record_pre_activations() as entering:
        ball = Ball.of(x, training.eps, training.perturbation)
        _run(training, Inputs(training.net, ball), y, Context(ramped=0.0, settings=settings))
    if "taps_layers" in training.method.recipe_keys:  # which does something else after the ramp
        _run(training, Inputs(training.net, ball), y, Context(settings=settings))
    if "regularizer" in training.method.recipe_keys and recipe.regularizer and not _sets(entering):
        raise UserError(
            f"{recipe.method} has a regularizer for ReLUs, and the network has none; set regularizer to 0, or train by "
            f"another method."
        )
    if recipe.shi:
        with record_pre_activations() as entering:
            run_on_copy(training.net, ball.box())
        if not _sets(entering):
            raise UserError("shi is the weight of regularizers for ReLUs, and the network has none; set shi to 0.")
    for inputs in training.stages.latent(training.course.stages, x, training.eps):
        _run(training, inputs, y, Context(latent=True, settings=settings))


def _sets(entering: list[object]) -> list[Box]:
    return [value for value in entering if isinstance(value, Box)]


def _run(training: Training, inputs: Inputs, y: Tensor, context: Context) -> None:
    for objective in (training.method.lower, training.method.upper):
        if objective is not None:
            result = objective(inputs.net, inputs.ball, y, context)
            if not isinstance(result, Evaluation):
                kind = type(result).__name__
                raise UserError(f"An objective returned {kind}, but must return an objectives.Evaluation(loss).")
