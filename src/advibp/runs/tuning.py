"""Tune recipe keys on validation images. The test set is not loaded.

A tuning is a folder:

    tune.json          what is tuned: recipe, search space, objectives
    journal.log        the trials, by Optuna
    trials/0007        the run of trial 7
    front/0007.yaml    recipes of the best trials, for `advibp train --recipe`

An interrupted trial is continued from its last checkpoint. Several processes may work on one folder.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from advibp.callbacks import StopTraining
from advibp.data import Data
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe
from advibp.runs.fitting_verifiers import fitting_verifiers
from advibp.runs.recipe_data import load_data
from advibp.runs.search_space import Dimension, parse_search
from advibp.runs.studies import OBJECTIVES, Study
from advibp.runs.sweep import Evaluation, evaluate, train_or_open
from advibp.runs.training_display import Display, Silent
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.verify import Attack
from advibp.verify.argument_checks import check_folder
from advibp.verify.verifiers import VERIFIERS

#: A trial is compared with others of its method from this share of its epochs on, if so many of them have finished.
PRUNE_FROM, PRUNE_AFTER = 0.5, 4
_PRUNED = "worse than the median of earlier trials"


@dataclass(frozen=True)
class TrialResult:
    """One trial of a tuning.

    Attributes:
        number: number of the trial.
        state: "complete", "pruned", "failed", or "running" if it is not finished.
        params: the searched keys and their values.
        values: accuracies in percent by objective; {} unless it is complete.
        seconds: time of training and certification.
        failed: the error message of a failed trial; else "".
    """

    number: int
    state: str
    params: dict[str, Any]
    values: dict[str, float]
    seconds: float
    failed: str = ""


@dataclass(frozen=True)
class Tuning:
    """The result of `tune`.

    Attributes:
        path: the folder.
        trials: all trials, by number.
        front: the trials that no other one beats in all objectives, best certified accuracy first.
        recipes: the recipe files of the front.
    """

    path: Path
    trials: list[TrialResult]
    front: list[TrialResult]
    recipes: list[Path]


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What a tuning measures and when it ends.

    Args:
        objectives: "natural" and "certified", or one of them: accuracies on the validation images, all maximized.
        trials: number of trials of the study, those of earlier calls included; None for no limit.
        minutes: no new trial begins when the finished trials of the study have taken so long; None for no limit.
        by: verifiers; by default those that fit the methods of the search.
        sample: number of validation images that are certified; None for all.
        budget: seconds per certified image; None for no limit.
        prune: stop trials that are worse than the median of earlier trials of their method.
        seed: seed of the search. The seed of the trainings is the recipe's.
        startup: number of random trials before the search learns from earlier ones.
    """

    objectives: tuple[str, ...] = OBJECTIVES
    trials: int | None = 20
    minutes: float | None = None
    by: tuple[str, ...] = ()
    sample: int | None = 200
    budget: float | None = 5.0
    prune: bool = True
    seed: int = 0
    startup: int = 10

    def __post_init__(self) -> None:
        unknown = [name for name in self.objectives if name not in OBJECTIVES]
        if unknown or not self.objectives or len({*self.objectives}) < len(self.objectives):
            raise UserError(
                f"The objectives are {' and '.join(self.objectives)}, but must be natural, certified or both."
            )
        if self.trials is None and self.minutes is None:
            raise UserError("The tuning has no end; give a number of trials, or of minutes.")
        for name in ("trials", "minutes", "budget", "sample"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"{name} is {value}, but must be above 0.")


@dataclass
class _Session:
    """One process that works on a tuning."""

    study: Study
    recipe: Recipe
    search: tuple[Dimension, ...]
    options: TuneOptions
    data: Data
    show: Callable[[str], Display]
    by: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def run(self, trial: Any) -> None:
        """Train and certify one trial, and store its result."""
        path = self.study.folder / "trials" / f"{trial.number:04d}"
        try:
            recipe = self._recipe_of(trial)
            pruning = [_Pruning(self.study, recipe, trial.number)] if self.options.prune else []
            net = train_or_open(recipe, self.data, path, show=self.show(f"trial {trial.number}"), callbacks=pruning)
            summary, began = RunFolder(path).summary(), time.perf_counter()
            values = {"natural": 100 * (1 - summary["validation"]["standard_error"])}
            if stopped := summary.get("stopped"):
                self.study.finish(trial, None, "pruned", seconds=summary["seconds"], reason=str(stopped["reason"]))
                return
            if "certified" in self.options.objectives:
                values["certified"] = self._certified(net, recipe, path / "certify-validation")
        except UserError as error:
            self.study.finish(trial, None, "failed", failed=str(error))
            return
        seconds = summary["seconds"] + time.perf_counter() - began
        wanted = [round(values[name], 6) for name in self.options.objectives]
        self.study.finish(trial, wanted, "complete", seconds=seconds)

    def _certified(self, net: nn.Module, recipe: Recipe, out: Path) -> float:
        """Return the certified accuracy on the validation images in percent."""
        options, by = self.options, self.by[recipe.method]
        # A budget is for verifiers that run after the attack. The others are fast.
        budget = None if all(VERIFIERS[name].before_attack for name in by) else options.budget
        evaluation = Evaluation(
            split="validation", by=by, attack=Attack(steps=20), sample=options.sample, budget=budget
        )
        around = recipe.perturbation(self.data)
        certificate = evaluate(net, self.data.validation, evaluation, [recipe.eps], out, perturbation=around)
        return 100 * (1 - certificate.errors(recipe.eps)["verified_error"])

    def _recipe_of(self, trial: Any) -> Recipe:
        method, params = self.recipe.method, {}
        for dimension in self.search:
            if dimension.applies_to(method):
                params[dimension.key] = dimension.suggest(trial)
                method = params.get("method", method)
        return self.recipe.changed(**params)


class _Pruning:
    """Stops a trial whose errors on the validation images are both above the median of earlier trials of its method.

    Errors are compared at the same epoch, at full eps. The number of an earlier trial is smaller, so that the decision
    does not depend on when a process was interrupted.
    """

    def __init__(self, study: Study, recipe: Recipe, number: int) -> None:
        self.study, self.recipe, self.number = study, recipe, number

    def on_train_start(self, facts: dict[str, Any]) -> None:
        """Decide again about the last epoch before an interruption."""
        if facts["history"]:
            self.on_epoch_end(facts["history"][-1])

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        epoch, epochs = metrics["epoch"], self.recipe.epochs
        if metrics["phase"] != "full" or not PRUNE_FROM * epochs <= epoch < epochs:
            return
        others = [other for other in map(self._errors_at(epoch), range(self.number)) if other is not None]
        if len(others) < PRUNE_AFTER:
            return
        medians = [statistics.median(errors) for errors in zip(*others, strict=True)]
        mine = (metrics["standard_error"], metrics["verified_error"])
        if all(error >= median for error, median in zip(mine, medians, strict=True)) and mine != tuple(medians):
            raise StopTraining(_PRUNED)

    def _errors_at(self, epoch: int) -> Callable[[int], tuple[float, float] | None]:
        def errors(number: int) -> tuple[float, float] | None:
            folder = RunFolder(self.study.folder / "trials" / f"{number:04d}")
            if not folder.finished or folder.recipe().get("method") != self.recipe.method:
                return None
            found = [m for m in folder.history() if m["epoch"] == epoch and m["phase"] == "full"]
            return (found[0]["standard_error"], found[0]["verified_error"]) if found else None

        return errors


def tune(
    search: Sequence[str] | Mapping[str, Any],
    *,
    out: str | Path,
    recipe: Recipe | str | Path | None = None,
    data: Data | str | None = None,
    options: TuneOptions | None = None,
    show: Callable[[str], Display] = lambda name: Silent(),
    on_trial: Callable[[TrialResult], None] = lambda trial: None,
    **keys: Any,
) -> Tuning:
    """Search recipe keys for the best accuracies on the validation images.

    A call continues the tuning in `out`, if there is one. Several processes may do so at the same time.

    Args:
        search: recipe keys and their ranges, such as ["lr=1e-4..1e-2:log", "method=sabr,mtl-ibp"] or
            {"lr": "1e-4..1e-2:log", "method": ["sabr", "mtl-ibp"]}.
        out: folder of the tuning.
        recipe: the recipe of all keys that are not searched: a name, a YAML file or a `Recipe`.
        data: the data set, or its name or path; by default the recipe's. The test set of a name or path is not loaded,
            and that of a data set is not used.
        options: what is measured, and when the tuning ends.
        show: returns the display of a trial's training, by its name.
        on_trial: called after each trial of this process.
        keys: recipe keys, such as eps=0.1. They take precedence over `recipe`.

    Returns:
        All trials, and those of the Pareto front with recipe files that `advibp train --recipe` takes.

    Raises:
        UserError: an argument is wrong, or `out` has another tuning.

    Examples:
        ```python
        tuning = advibp.tune(["lr=1e-4..1e-2:log", "alpha=0.01..1:log"], out="runs/tune", method="mtl-ibp", eps=0.1)
        print(tuning.front[0].values, tuning.recipes[0])
        ```
    """
    options, path = options or TuneOptions(), check_folder("out", out)
    assert path is not None
    if isinstance(data, str):
        keys["data"] = data
    base = recipe.changed(**keys) if isinstance(recipe, Recipe) else Recipe.load(recipe, **keys)
    space = parse_search(search)
    _check_space(base, space)
    path.mkdir(parents=True, exist_ok=True)
    _check_same(path, base, space, options)
    study = Study(path, options.objectives, options.seed, options.startup)
    data = data if isinstance(data, Data) else load_data(base, base.data, base.limit, test=False)
    held_out = data.validation
    if not len(held_out):
        raise UserError("There are no validation images to tune on; hold some out: --validation 1000.")
    data = replace(data, test=replace(held_out, x=held_out.x[:0], y=held_out.y[:0]))  # nothing here can read it
    methods = next((list(d.choices) for d in space if d.key == "method"), [base.method])
    by = dict(zip(methods, fitting_verifiers([METHODS[name].verifier for name in methods]), strict=True))
    by = {name: options.by or verifiers for name, verifiers in by.items()}
    session = _Session(study, base, space, options, data, show, by)
    seconds = None if options.minutes is None else 60 * options.minutes
    while True:
        with study.claim(options.trials, seconds) as trial:
            if trial is None:
                break
            session.run(trial)
            number = trial.number
        on_trial(_result(study, study.trials[number]))
    front = study.front()
    return Tuning(path, [_result(study, t) for t in study.trials], [_result(study, t) for t in front], _write(study))


def _check_space(base: Recipe, space: Sequence[Dimension]) -> None:
    """Raise a UserError for a searched key that no method of the search uses, and for the user's own methods."""
    methods = next((list(d.choices) for d in space if d.key == "method"), [base.method])
    for name in methods:
        if name not in METHODS:
            raise UserError(f"The method {name} can't be tuned; choose from {', '.join(METHODS)}.")
    for dimension in space:
        if not any(dimension.applies_to(name) for name in methods):
            users = [name for name, row in METHODS.items() if dimension.key in row.recipe_keys]
            raise UserError(f"{' and '.join(methods)} do not use {dimension.key}; it belongs to {', '.join(users)}.")


def _check_same(path: Path, base: Recipe, space: Sequence[Dimension], options: TuneOptions) -> None:
    """Write tune.json, or raise a UserError if the folder has another tuning."""
    file = path / "tune.json"
    kept = {k: getattr(options, k) for k in ("objectives", "by", "sample", "budget", "prune", "seed", "startup")}
    facts = {"recipe": base.as_dict(), "search": [str(d) for d in space], **kept}
    facts = json.loads(json.dumps(facts))
    if not file.exists():
        if (path / "recipe.yaml").exists():
            raise UserError(f"{path} has a run; choose another --out for the tuning.")
        checkpoint.write_atomically(file, json.dumps(facts, indent=1) + "\n")
        return
    try:
        stored = json.loads(file.read_text("utf-8"))
        before = {**stored, **{f"recipe key {k}": v for k, v in stored.pop("recipe").items()}}
    except (ValueError, KeyError, AttributeError):
        raise UserError(f"{file} is damaged; tune into another --out.") from None
    before.pop("recipe", None)
    now = {**facts, **{f"recipe key {k}": v for k, v in facts.pop("recipe").items()}}
    now.pop("recipe", None)
    for key in now:
        if key in before and before[key] != now[key] and key not in ("recipe key device", "recipe key threads"):
            raise UserError(
                f"{path} was started with {key} = {before[key]}, not {now[key]}; continue it without changing it, or "
                "tune into another --out."
            )


def _result(study: Study, trial: Any) -> TrialResult:
    state = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, "running")
    values = dict(zip(study.objectives, trial.values or (), strict=False)) if state == "complete" else {}
    attributes = trial.user_attrs
    return TrialResult(
        trial.number, state, dict(trial.params), values, attributes.get("seconds", 0.0), attributes.get("failed", "")
    )


def _write(study: Study) -> list[Path]:
    """Write the recipes of the front, and return their files."""
    folder = study.folder / "front"
    folder.mkdir(exist_ok=True)
    front = study.front()
    names = [f"{trial.number:04d}.yaml" for trial in front]
    for file in folder.glob("*.yaml"):
        if file.name not in names:
            file.unlink(missing_ok=True)
    for trial, name in zip(front, names, strict=True):
        stored = (study.folder / "trials" / f"{trial.number:04d}" / "recipe.yaml").read_text("utf-8")
        measured = ", ".join(f"{o} {v:.2f} %" for o, v in zip(study.objectives, trial.values, strict=True))
        note = f"# Trial {trial.number}: accuracy on validation images: {measured}\n"
        checkpoint.write_atomically(folder / name, note + stored)
    return [folder / name for name in names]
