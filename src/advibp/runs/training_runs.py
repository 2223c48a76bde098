"""Train a network, into a folder if one is given."""

from __future__ import annotations

import dataclasses
import logging
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from advibp import nets
from advibp.callbacks import CallbackGroup
from advibp.data import Data, Split, as_data
from advibp.display.terminal import printable
from advibp.errors import UserError
from advibp.execution.memory_format import preserve_layout
from advibp.execution.modes import mode_warnings, preserve_modes
from advibp.execution.seeds import mix, preserve_global_state
from advibp.methods import METHODS, Method
from advibp.recipe import Recipe
from advibp.runs.notebook_display import default_display
from advibp.runs.opening import run_once
from advibp.runs.resuming import (
    check_same_run,
    continued,
    recipe_of,
    refuse_fewer_epochs,
    restore,
    should_resume,
    with_stored_split,
)
from advibp.runs.run import Run
from advibp.runs.run_sources import continued_names, named_by_sources, sources_of
from advibp.runs.runner import Runner
from advibp.runs.stopping import StopRequest
from advibp.runs.training_display import Display
from advibp.storage.run_folder import RunFolder
from advibp.training import Training
from advibp.verify.argument_checks import check_folder, check_net, check_path, named, shortened
from advibp.verify.collapse import CollapseWarning

_log = logging.getLogger(__name__)

_USAGE = "train(net, data, eps=0.3)"


def train(
    net: nn.Module,
    data: Data | Split | Dataset[Any] | DataLoader[Any] | Sequence[Any],
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: Recipe | str | Path | None = None,
    show: Display | None = None,
    callbacks: Sequence[object] | None = None,
    method: str | Method | None = None,
    **options: Any,
) -> Run:
    """Train a network in place.

    Args:
        net: the network (B, *input_shape) -> (B, K). Each layer is trained in the mode (training or evaluation) that it
            has, and keeps that mode. Dropout is off in training. A warning is given for dropout, and for a network
            with BatchNorm that is in evaluation mode as a whole.
        data: the data set, from `advibp.data`; or images with labels to train on: a pair (x, y) of tensors or arrays,
            (x_train, y_train, x_test, y_test), a Dataset, a DataLoader, or a tuple (train, test) or (train, validation,
            test) of such sets. `validation` of the training images are held out, by default one in ten, at most 1000.
        out: folder of the run; by default nothing is saved.
        resume: continue the run in `out` if there is one. The result is bit by bit that of an uninterrupted run. With a
            larger number of `epochs`, the run is extended: its phases stay where they are, and training continues at
            full eps. A linear learning rate decays again, on the line of the longer run; a learning rate by steps stays
            at its last value.
        recipe: name of a shipped recipe, a YAML file or a `Recipe`; by default the default recipe.
        show: the display; by default a progress bar. `advibp.Silent()` shows nothing.
        callbacks: objects with methods of `advibp.callbacks.Callback`, which get the metrics of each epoch as plain
            data and may stop the training. A resumed run needs them again.
        method: a name from `advibp methods` or a `Method`. A `Method` must be passed again to resume its run.
        options: recipe keys such as eps=0.3 or epochs=60. They take precedence over `recipe`.

    Returns:
        The run: the network, its recipe, and the metrics of each epoch.

    Raises:
        UserError: an argument is wrong, the folder has another run, or the training diverges.

    Examples:
        ```python
        data = advibp.data.load("mnist")
        net = advibp.nets.build("dm-small", data.input_shape, data.classes)
        run = advibp.train(net, data, eps=0.1, epochs=5, out="runs/first")
        ```
    """
    check_net(net, data, _USAGE)
    if recipe is not None and not isinstance(recipe, Recipe):
        check_path("recipe", recipe)
    if isinstance(show, type):
        raise UserError(f"show is the class {show.__name__}, but must be an instance of it: {show.__name__}().")
    if show is not None and not hasattr(show, "epoch"):
        raise UserError(f"show is {named(show)}, but must be a Display, such as advibp.Silent().")
    if not isinstance(resume, bool):
        raise UserError(f"resume is {shortened(resume)}, but must be True or False.")
    group = CallbackGroup(callbacks)
    path = check_folder("out", out)
    if resume and path is None:
        raise UserError("resume needs out, the folder of the run to continue; give out=, or leave resume out.")
    user_method = method if isinstance(method, Method) else None
    if user_method is not None:
        # A recipe from a folder or the command line has the method's place (file.py:NAME); otherwise use its name.
        place = f"python:{user_method.name}"
        if isinstance(recipe, Recipe) and recipe.method not in METHODS:
            place = recipe.method
        options = {"method": place, **options}
    elif method is not None:
        options["method"] = method
    epochs_given = recipe is not None or "epochs" in options
    folder = RunFolder(path) if path is not None else None
    continues = folder is not None and should_resume(folder, resume)
    if folder and continues and "epochs" in options:
        refuse_fewer_epochs(folder, options["epochs"])
    if isinstance(recipe, Recipe):
        recipe = recipe.changed(user_method, **options)
    else:
        name = data.name if isinstance(data, Data) else "python"
        recipe = Recipe.load(recipe, user_method, **{"data": name, "net": type(net).__name__, **options})
    for message in mode_warnings(net):
        warnings.warn(message, UserWarning, stacklevel=2)
    if folder and continues:
        recipe = with_stored_split(folder, recipe)
    if not isinstance(data, Data):
        data, recipe = _converted(net, data, recipe)
    built_here = nets.is_known(recipe.net)
    renamed = named_by_sources(recipe, net, data, set(options))
    if folder and continues:
        recipe = continued(folder, continued_names(recipe_of(folder), recipe, renamed), epochs_given=epochs_given)
    else:
        recipe = renamed
        if recipe.validation == "auto" and len(data.validation):
            recipe = dataclasses.replace(recipe, validation=len(data.validation))
    with (
        StopRequest() as stop,
        preserve_global_state(),
        preserve_modes(net),
        preserve_layout(net),
        ExitStack() as locks,
    ):
        if folder and continues:
            check_same_run(folder, recipe)
            locks.enter_context(folder.lock())
        else:
            recipe = recipe if built_here else _initialize(net, recipe)
        training = Training(net, data, recipe, user_method)
        training.check()
        facts: dict[str, Any] = {}
        if folder and continues:
            facts, messages = restore(folder, training)
            for message in messages:
                _log.warning("skipped: %s", printable(message))
        elif folder:
            folder.create(recipe.to_yaml())
            locks.enter_context(folder.lock())
        if folder and not folder.sources():
            folder.write_sources(sources_of(net, data, recipe))
        with show or default_display() as display:
            try:
                run = Runner(training, folder, display, stop, facts, group).run()
            finally:
                for p in net.parameters():
                    p.grad = None  # a view that would keep the buffer of all gradients in memory
    for message in run.summary["warnings"]:
        warnings.warn(message, CollapseWarning, stacklevel=2)
    return run


def _initialize(net: nn.Module, recipe: Recipe) -> Recipe:
    """Initialize the user's new network for IBP, in place. Weights that are not torch's initial ones are kept.

    Returns:
        The recipe, with init = given if the weights were kept.
    """
    if recipe.init != "ibp":
        return recipe
    if recipe.weights or not nets.is_freshly_initialized(net):
        return dataclasses.replace(recipe, init="given")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, 6, 0))
        nets.ibp_init(net)
    return recipe


def _converted(net: nn.Module, data: Any, recipe: Recipe) -> tuple[Data, Recipe]:
    """Convert tensors, Datasets and DataLoaders to a data set; the recipe gets the number of validation images."""
    data = as_data(data, validation=recipe.validation, classes=lambda x: _count_outputs(net, x), name=recipe.data)
    return data, dataclasses.replace(recipe, validation=len(data.validation))


def _count_outputs(net: nn.Module, x: Tensor) -> int:
    """Return the number of logits for one image, (1, C, H, W)."""
    return int(run_once(net, x.to(next(net.parameters()).device)).shape[-1])
