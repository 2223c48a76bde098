"""What can be found out before an epoch is spent: a network that can't be bounded, data that do not fit it, options
that do not go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advibp.bounds import Box
from advibp.bounds.graph.relu_inputs import entering_relus
from advibp.errors import UserError
from advibp.execution import batchnorm, recompute
from advibp.execution.own_copy import run_on_copy
from advibp.objectives import Evaluation, Now
from advibp.training.stages import Inputs
from advibp.verify import ibp_margins

if TYPE_CHECKING:
    from advibp.training import Training


@torch.no_grad()
def check(training: Training) -> None:
    """Refuse, in one sentence, what would fail later."""
    _check_options(training)
    x, y = training.feed.example(2)
    training.net.eval()
    _check_logits(training, x)
    if len(training.data.validation) == 0:
        raise UserError("There are no validation images; hold some out: data.load(..., validation=1000).")
    try:
        ibp_margins.errors(training.net, x, y, training.recipe.eps)  # what every epoch ends with, whatever the method
        with training.stages.traceless(), batchnorm.step(training.net, training.trains_batchnorm) as statistics:
            if statistics:
                statistics.capture(training.net, x)
            _check_objectives(training, x, y)
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"The network can't be run on a set of images: {error!r}") from error


def _check_options(training: Training) -> None:
    recipe, method = training.recipe, training.method
    chooses = "domain" in method.reads
    if training.trains_batchnorm and not (method.batchnorm or (chooses and recipe.domain == "box")):
        raise UserError(
            f"{recipe.method} can't bound BatchNorm in training; use advibp, or call .eval() on the BatchNorm layers."
        )
    in_parts = 0 < recipe.at_once < training.batch_size
    if in_parts and not (method.per_image or (chooses and recipe.domain != "hybrid")):
        raise UserError(
            f"at_once can't keep the weights the same for {recipe.method}, whose loss depends on a whole batch; use a "
            f"smaller batch_size."
        )
    if training.trains_batchnorm and (recipe.recompute or in_parts):
        raise UserError(
            "at_once and recompute can't keep the weights the same where BatchNorm is trained, as its statistics are "
            "those of a whole batch; use a smaller batch_size, or call .eval() on the BatchNorm layers."
        )
    if recipe.recompute and not recompute.chains(training.net):
        raise UserError(
            "recompute works on an nn.Sequential with at least four layers that hold weights, and this network has "
            "none; set at_once instead."
        )


def _check_logits(training: Training, x: Tensor) -> None:
    try:
        logits = run_on_copy(training.net, x)
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take images of shape {tuple(x.shape[1:])}: {error}") from error
    if not isinstance(logits, Tensor) or logits.dim() != 2 or logits.shape[1] < training.data.classes:
        found = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
        raise UserError(
            f"The network returns {found} for two images, but (2, {training.data.classes}) was expected: one logit per "
            f"class."
        )


def _check_objectives(training: Training, x: Tensor, y: Tensor) -> None:
    """Each objective once, on images and on what every stage will have in their place: it may be one's own."""
    recipe, settings = training.recipe, training.settings
    with entering_relus() as entering:
        _run(training, Inputs(training.net, x, recipe.eps), y, Now(ramped=0.0, settings=settings))
    if "regulariser" in training.method.reads and recipe.regulariser and not _sets(entering):
        raise UserError(
            f"{recipe.method} adds a term for ReLUs, and the network has none; set regulariser to 0, or train by "
            f"another method."
        )
    for inputs in training.stages.latent(training.course.stages, x, recipe.eps):
        _run(training, inputs, y, Now(latent=True, settings=settings))


def _sets(entering: list[object]) -> list[Box]:
    return [value for value in entering if isinstance(value, Box)]


def _run(training: Training, inputs: Inputs, y: Tensor, now: Now) -> None:
    for objective in (training.method.lower, training.method.upper):
        if objective is not None:
            found = objective(inputs.net, inputs.x, y, inputs.eps, inputs.within, now)
            if not isinstance(found, Evaluation):
                kind = type(found).__name__
                raise UserError(f"An objective returned {kind}, but must return an objectives.Evaluation(loss).")
