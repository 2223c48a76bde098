"""The test images of a run, for its page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor, nn

from advibp import data as datasets
from advibp import nets
from advibp.bounds import Perturbation
from advibp.data.fetch.known_sets import ROWS
from advibp.errors import UserError
from advibp.execution.own_copy import run_on_copy
from advibp.recipe.input_set import perturbation_of
from advibp.report.shown_images import Missing, Source
from advibp.runs import open_with_facts
from advibp.runs.resuming import recipe_of
from advibp.runs.run_files import RunFiles
from advibp.runs.run_sources import data_source
from advibp.storage.run_folder import RunFolder
from advibp.verify.certification import check_inputs


def images_of(run: RunFiles, root: str | None = None) -> Source | Missing:
    """A run's test images, or a sentence that explains why there are none. Data sets are not downloaded."""
    recipe = run.recipe
    known = next((row.class_names for row in ROWS if row.name == recipe.get("data")), None) or ()
    if not any(certified.records for certified in run.certified.values()):
        return Missing("", known)
    run_root = str(recipe["data_root"]) if recipe.get("data_root") else None
    size = recipe.get("size") if isinstance(recipe.get("size"), int) else None
    label = str(recipe["label"]) if recipe.get("label") else None
    try:
        data = _load(data_source(run.path, recipe_of(RunFolder(run.path))), root or run_root, size, label)
        around = perturbation_of(data, recipe.get("eps_scale"), recipe.get("input_range", "auto"))
    except UserError as error:
        return Missing(str(error), known)
    source = Source(data.test, data.class_names or (), feature_names=data.feature_names or (), perturbation=around)
    net = _network(run)
    if net is None:
        return source
    return replace(source, predict=_predictor(net), model=_fingerprint(net, data.test, around))


@lru_cache(maxsize=2)
def _load(name: str, root: str | None, size: int | None, label: str | None) -> datasets.Data:
    """The data of a run. Runs of the same data share them."""
    return datasets.load(name, validation=0, root=root, size=size, label=label, fetch=False)


def _network(run: RunFiles) -> nn.Module | None:
    """The run's network. None for a user's network, because the page must not run code that a file names."""
    if not nets.is_known(str(run.recipe.get("net"))):
        return None
    try:
        return open_with_facts(run.path)[0]
    except UserError:
        return None


def _fingerprint(net: nn.Module, test: datasets.Split | datasets.Lazy, around: Perturbation) -> str:
    """Fingerprint of the network; "" if it can't be computed."""
    try:
        return check_inputs(net, test, around)
    except (UserError, RuntimeError):  # the data do not fit the network
        return ""


def _predictor(net: nn.Module) -> Callable[[Tensor], Tensor]:
    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        return run_on_copy(net, x).argmax(1)

    return predict
