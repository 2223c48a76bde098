"""Build the network of a recipe, and open a finished run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from advibp import nets
from advibp.data import Data
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords
from advibp.execution.modes import preserve_modes
from advibp.execution.own_copy import run_on_copy
from advibp.recipe import Recipe
from advibp.runs.resuming import recipe_of
from advibp.runs.run import Run
from advibp.runs.run_sources import net_option
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.storage.weights import load_weights
from advibp.verify.argument_checks import check_path


def first_net(recipe: Recipe, data: Data, *, weights: bool = True) -> nn.Module:
    """Build the network of a recipe before training.

    Args:
        recipe: names the network, its seed and perhaps a file of weights.
        data: gives the input shape, the classes, and mean and standard deviation.
        weights: load the recipe's file of weights. A resumed run does not need them.
    """
    if nets.is_user_code(recipe.net):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.seed)
            net = nets.from_file(recipe.net)
            if any(isinstance(p, UninitializedParameter) for p in net.parameters()):
                _learn_shapes(net, data)
    else:
        net = _build(recipe, data.input_shape, data.classes, data)
    if recipe.weights and weights:
        load_weights(net, recipe.weights)
    return net


def _learn_shapes(net: nn.Module, data: Data) -> None:
    """Run lazy layers on one image, which creates their parameters."""
    run_once(net, data.validation.x[:1])


def run_once(net: nn.Module, x: Tensor) -> Tensor:
    """Return the logits of images in evaluation mode, which keeps BatchNorm's statistics."""
    try:
        with preserve_modes(net), torch.no_grad():
            return run_on_copy(net.eval(), x)
    except Exception as error:  # user code may raise anything
        raise UserError(f"The network can't run on images of shape {tuple(x.shape[1:])}: {error}") from error


def _build(recipe: Recipe, shape: Sequence[int], classes: int, data: Data | None = None) -> nn.Module:
    # Mean and std are buffers: those of a trained network are loaded with its weights.
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    if recipe.normalize:
        mean, std = (data.mean, _nonzero(data.std)) if data else ([0.0] * shape[0], [1.0] * shape[0])
    init: nets.Init = "ibp" if recipe.init == "ibp" else "default"
    return nets.build(recipe.net, shape, classes, mean=mean, std=std, init=init, seed=recipe.seed)


def _nonzero(std: Sequence[float]) -> list[float]:
    """Return 1 for channels or features that are constant, so that they are only shifted."""
    return [value or 1.0 for value in std]


@known_keywords
def open_run(path: str | Path, net: nn.Module | None = None, stage: int | None = None) -> Run:
    """Open the folder of a finished run.

    Args:
        path: the folder.
        net: the network of the run, if it is the user's own; the weights are loaded into it. Networks from
            `advibp.nets` are built.
        stage: load the weights after this layer-wise stage (0: before the first one); by default the final weights.

    Returns:
        The run, with its network in evaluation mode. For one release it can still be unpacked as (net, recipe), with a
        DeprecationWarning.

    Raises:
        UserError: the folder is not a finished run, a file is damaged, or the weights do not match `net`.

    Examples:
        ```python
        run = advibp.open_run("runs/first")
        cert = advibp.certify(run.net, advibp.data.load("mnist").test.take(10), eps=run.recipe.eps)
        ```
    """
    net, recipe, facts = open_with_facts(path, net, stage)
    folder = RunFolder(Path(path))
    summary = folder.summary() if (folder.path / "summary.json").exists() else {}
    return Run(net, recipe, folder.history(), summary, folder.path, facts)


def open_with_facts(
    path: str | Path, net: nn.Module | None = None, stage: int | None = None
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """Return the network and recipe of a run, and the facts of its weights: input_shape and classes."""
    folder = RunFolder(check_path("path", path))
    recipe = recipe_of(folder)
    tensors, facts = folder.load_model(stage)
    if net is None and not nets.is_known(recipe.net):
        raise UserError(net_option(path, recipe))
    if net is None:
        net = _build(recipe, facts["input_shape"], facts["classes"])
    checkpoint.load_state(net, tensors, folder.model)
    return net.eval(), recipe, facts
