"""Train and certify several runs that differ in a few recipe keys, and write one table.

A sweep is a folder of runs. Finished runs are reused and interrupted runs are continued.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from advibp.bounds import Perturbation
from advibp.data import Data
from advibp.data.user_data import Images
from advibp.errors import UserError
from advibp.execution.hardware import hardware
from advibp.methods import Method
from advibp.recipe import Recipe
from advibp.runs import first_net, open_with_facts, train
from advibp.runs.estimate import EPOCH_KEYS, estimate_seconds, shorten
from advibp.runs.fitting_verifiers import fitting_verifiers, trained_verifier
from advibp.runs.recipe_data import load_data
from advibp.runs.resuming import check_same_run, recipe_of, with_stored_split
from advibp.runs.sweep_table import COLUMNS as COLUMNS
from advibp.runs.sweep_table import markdown as markdown
from advibp.runs.sweep_table import table as table
from advibp.runs.training_display import Display, Silent
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.verify import Attack, Certificate, certify
from advibp.verify.argument_checks import check_eps
from advibp.verify.records import verified_errors
from advibp.verify.verifiers import in_order

Changes = dict[str, Any]
#: Number of images that a sweep certifies if it chooses verifiers other than IBP, which take longer.
SAMPLE = 500


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Options for the certification of a trained network.

    Attributes:
        eps: test radii; by default the radius of the training.
        split: images to certify. "test" also certifies validation images, to choose between runs, since test images
            must not be used for that; "validation" certifies only those.
        by: names of verifiers; by default those that fit the methods of the sweep (`fitting_verifiers`).
        attack: the attack.
        sample: number of images, drawn at random; by default all, or 500 if verifiers other than IBP were chosen by
            default.
        budget: seconds per image.
        arithmetic: arithmetic that proofs cover; by default the network's own floating-point type.
    """

    eps: tuple[float, ...] = ()
    split: Literal["test", "validation"] = "test"
    by: tuple[str, ...] = ()
    attack: Attack = Attack(steps=40)
    sample: int | None = None
    budget: float | None = None
    arithmetic: str | None = None

    def __post_init__(self) -> None:
        if self.by:
            in_order(self.by)
        for eps in self.eps:
            check_eps(eps, math.inf)
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise UserError(f"budget is {self.budget}, but must be a number of seconds above 0.")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Options that all runs of a sweep share.

    Attributes:
        out: folder of the sweep.
        load: returns the data of a recipe.
        evaluation: how each network is certified.
        seconds: time limit of one training; epochs are reduced to meet it.
        methods: the user's methods, by their name in recipes.
        show: returns the display of a run, by its name.
    """

    out: Path
    load: Callable[[Recipe], Data]
    evaluation: Evaluation = Evaluation()
    seconds: float | None = None
    methods: Mapping[str, Method] = field(default_factory=dict)
    show: Callable[[str], Display] = lambda name: Silent()


def combinations(vary: Mapping[str, Sequence[Any]], *, one_by_one: bool = False) -> list[Changes]:
    """Return all combinations of values; with `one_by_one`, no change ({}) and then each value alone."""
    if one_by_one:
        return [{}, *({key: value} for key, values in vary.items() for value in values)]
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def run_name(changes: Changes) -> str:
    """Return the name of a run's folder."""
    name = "-".join(f"{key}-{value}" if key != "method" else str(value) for key, value in changes.items()) or "base"
    return re.sub(r"[^\w.,=%+-]+", "_", name)


def sweep(options: Sweep, recipes: Sequence[tuple[Changes, Recipe]]) -> list[dict[str, Any]]:
    """Train and certify one run per recipe, and write sweep.json after each.

    Args:
        options: what the runs share.
        recipes: pairs of the changed keys, which give a run its name, and the recipe.

    Returns:
        One row per run. The row of a run that failed has the error message as "failed".
    """
    rows = []
    evaluations = choose_verifiers(options, [recipe for _, recipe in recipes])
    for (change, recipe), evaluation in zip(recipes, evaluations, strict=True):
        name = run_name(change)
        row: dict[str, Any] = {"name": name, "changes": change}
        try:
            row |= _measure(options, evaluation, recipe, options.out / name, options.show(name))
        except UserError as error:
            row["failed"] = str(error)
        rows.append(row)
        content = {"rows": rows, "examination": _plain(options.evaluation), "hardware": hardware()}
        checkpoint.write_atomically(options.out / "sweep.json", json.dumps(content, indent=1, default=str) + "\n")
    return rows


def choose_verifiers(options: Sweep, recipes: Sequence[Recipe]) -> list[Evaluation]:
    """Return the evaluation of each run, with the verifiers that fit its method unless the user names verifiers."""
    evaluation = options.evaluation
    if evaluation.by:
        return [evaluation for _ in recipes]
    by = fitting_verifiers([trained_verifier(recipe, options.methods.get(recipe.method)) for recipe in recipes])
    sample = evaluation.sample or (SAMPLE if any(names != ("ibp",) for names in by) else None)
    return [dataclasses.replace(evaluation, by=names, sample=sample) for names in by]


def _plain(evaluation: Evaluation) -> dict[str, Any]:
    return {**vars(evaluation), "attack": str(evaluation.attack)}


def _measure(options: Sweep, evaluation: Evaluation, recipe: Recipe, path: Path, show: Display) -> dict[str, Any]:
    """Train and certify one run, and return its row."""
    folder = RunFolder(path)
    recipe = with_stored_split(folder, recipe)
    data = options.load(recipe)
    around = recipe.perturbation(data)
    eps = [check_eps(e, 1.0 if around.is_pixels else math.inf) for e in evaluation.eps or [recipe.eps]]
    method = options.methods.get(recipe.method)
    if options.seconds is not None and folder.exists:  # its epochs were set when it started
        stored = recipe_of(folder)
        recipe = dataclasses.replace(recipe, **{key: getattr(stored, key) for key in EPOCH_KEYS})
    elif options.seconds is not None:
        # 0.9, because the estimate excludes validation, and other processes may slow the training down.
        recipe = shorten(recipe, 0.9 * options.seconds, estimate_seconds(first_net(recipe, data), data, recipe, method))
    net = train_or_open(recipe, data, path, method=method, show=show)
    # Validation images have a folder of their own, because readers of `certify` take its images for test images.
    certificates = {}
    if len(data.validation):
        folder_of_validation = path / "certify-validation"
        certificates["validation"] = evaluate(
            net, data.validation, evaluation, eps, folder_of_validation, perturbation=around
        )
    if evaluation.split == "test":
        certificates["test"] = evaluate(net, data.test, evaluation, eps, path / "certify", perturbation=around)
    if evaluation.split not in certificates:
        raise UserError("The data has no validation images; use another split, or give --validation N.")
    percent = {
        split: {f"{eps:g}": _percent(certificate, eps, evaluation.by) for eps in certificate.eps}
        for split, certificate in certificates.items()
    }
    certificate = certificates[evaluation.split]
    run_summary, history = folder.summary(), folder.history()
    return {
        "recipe": with_stored_split(folder, recipe).as_dict(),
        "epochs": len(history),
        "s/epoch": sum(epoch["seconds"] for epoch in history) / len(history),
        "minutes": run_summary["seconds"] / 60,
        "by": list(evaluation.by),
        "split": evaluation.split,
        "images": certificate.counts(certificate.eps[0]).total(),
        "percent": percent[evaluation.split],
        **({"validation": percent["validation"]} if "validation" in percent else {}),
    }


def train_or_open(
    recipe: Recipe,
    data: Data,
    path: Path,
    *,
    method: Method | None = None,
    show: Display,
    callbacks: Sequence[object] = (),
) -> nn.Module:
    """Return the trained network of a recipe: open a finished run, continue an interrupted one, or train."""
    folder = RunFolder(path)
    net = first_net(recipe, data, weights=not folder.has_weights)
    if folder.exists:
        check_same_run(folder, recipe)
    if folder.finished:
        open_with_facts(path, net)
    else:
        train(net, data, recipe=recipe, method=method, out=path, resume=True, show=show, callbacks=callbacks)
    return net


def evaluate(
    net: nn.Module,
    images: Images,
    evaluation: Evaluation,
    eps: Sequence[float],
    out: Path,
    command: str = "",
    perturbation: Perturbation | None = None,
) -> Certificate:
    """Certify into a folder. Verdicts that are already in the folder are reused."""
    return certify(
        net,
        images,
        list(eps),
        by=evaluation.by or ("ibp",),
        arithmetic=evaluation.arithmetic,
        attack=evaluation.attack,
        budget=evaluation.budget,
        sample=evaluation.sample,
        out=out,
        command=command,
        perturbation=perturbation,
    )


class DataCache:
    """Loads the data of a recipe, and keeps the last data set for recipes with the same data options."""

    def __init__(self) -> None:
        self._last: dict[tuple[object, ...], Data] = {}

    def __call__(self, recipe: Recipe) -> Data:
        key = (recipe.data, recipe.limit, recipe.validation, recipe.size, recipe.data_root, recipe.label)
        if key not in self._last:
            data = load_data(recipe, recipe.data, recipe.limit)
            self._last = {key: data}  # only one, to save memory
        return self._last[key]


def _percent(certificate: Certificate, eps: float, by: Sequence[str]) -> dict[str, float | None]:
    errors = certificate.errors(eps)
    verified = verified_errors(certificate.outcomes(eps), by)
    return {
        "standard": 100 * errors["standard_error"],
        "PGD": 100 * errors["attack_error"],
        "verified (IBP)": 100 * verified["ibp"] if "ibp" in by else None,
        "verified (best)": 100 * errors["verified_error"],
    }
