"""Resume a run: compare its recipe, and restore the newest checkpoint that is not damaged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from advibp.errors import UserError
from advibp.parsers import number
from advibp.recipe import Recipe, current_keys
from advibp.recipe.later_keys import LaterKeys
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.training import Training

#: Recipe keys that may differ when a run is resumed: they change the result only by rounding.
MAY_DIFFER = ("device", "threads", "at_once", "recompute", "compile", "data", "data_root", "published")
#: Recipe keys of the layer-wise stages. They may be changed until the stages begin, also in a finished run.
_STAGE_KEYS = ("stages", "stage_epochs", "stage_lr", "stage_lr_milestones")


def should_resume(folder: RunFolder, resume: bool) -> bool:
    """Return whether a training continues the run in a folder.

    Raises:
        UserError: if the folder has a run, and `resume` is False.
    """
    if folder.exists and not resume:
        raise UserError(f"{folder.path} already has a run; add --resume to continue it, or choose another --out.")
    return folder.exists


def recipe_of(folder: RunFolder) -> Recipe:
    """Return the recipe of a run; old names of methods are updated."""
    keys = folder.recipe()
    if keys.get("method") == "fgsm-random":
        keys["method"] = "rs-fgsm"
    return Recipe.of(keys)


def continued(folder: RunFolder, recipe: Recipe, *, epochs_given: bool = True) -> Recipe:
    """Return the recipe with which a run continues.

    Keys that a new run determines from the network and the data come from the folder. More epochs than the run has
    extend it: its phases stay where they are, and training continues at full eps.

    Args:
        folder: the folder of the run.
        recipe: the requested recipe.
        epochs_given: the user asked for the epochs of `recipe`; otherwise the run keeps its number.

    Raises:
        UserError: the run can't have this number of epochs.
    """
    stored = recipe_of(folder)
    kept: dict[str, Any] = {}
    if recipe.init == Recipe.init:
        kept["init"] = stored.init
    if recipe.validation == "auto":
        kept["validation"] = stored.validation
    if not epochs_given or recipe.epochs == stored.epochs:
        kept |= {"epochs": stored.epochs, "extended": stored.extended}
    elif recipe.extended in ((), stored.extended):
        kept["extended"] = _extension(folder, stored, recipe)
    return dataclasses.replace(recipe, **kept)


def with_stored_split(folder: RunFolder, recipe: Recipe) -> Recipe:
    """Return the recipe with the number of validation images that a run has, if it is "auto" in the recipe."""
    if recipe.validation != "auto" or not folder.exists:
        return recipe
    return dataclasses.replace(recipe, validation=recipe_of(folder).validation)


def refuse_fewer_epochs(folder: RunFolder, epochs: Any) -> None:
    """Raise a UserError if a run has more epochs than requested. It is called before the phases are checked.

    Args:
        folder: the folder of the run.
        epochs: the requested number, as the user wrote it. If it is not a number, the recipe refuses it later.
    """
    try:
        requested = float(number(0)(epochs))
    except ValueError:
        return
    stored = recipe_of(folder)
    if requested < stored.epochs:
        done = min(len(folder.history()), int(stored.epochs))
        raise UserError(
            f"{folder.path} has {stored.epochs:g} epochs, {done} of them finished, and can't be shortened to "
            f"{requested:g}; give more than {stored.epochs:g} epochs to extend it, or train into another --out."
        )


def _extension(folder: RunFolder, stored: Recipe, recipe: Recipe) -> tuple[float, ...]:
    """Return the key `extended` of a run that gets more epochs."""
    path, epochs = folder.path, f"{stored.epochs:g}"
    refuse_fewer_epochs(folder, recipe.epochs)
    if stored.stages or recipe.stages:
        raise UserError(
            f"{path} has layer-wise stages after its {epochs} epochs, so these can't become {recipe.epochs:g}; give "
            "more stages, or train into another --out."
        )
    if not stored.epochs.is_integer():
        raise UserError(
            f"{path} has {epochs} epochs and ends within an epoch, so it can't be extended; train into another --out."
        )
    return (*stored.extended, stored.epochs)


def check_same_run(folder: RunFolder, recipe: Recipe) -> None:
    """Raise a UserError if a run was started with another recipe."""
    _check_same(folder.path, recipe_of(folder).as_dict(), recipe, ignored=(*MAY_DIFFER, *_STAGE_KEYS))


def _check_same(path: Path, stored: dict[str, Any], recipe: Recipe, ignored: tuple[str, ...]) -> None:
    requested = recipe.as_dict()
    # Runs of releases without these keys have the defaults.
    later = ("eps_scale", "input_range", *LaterKeys.__dataclass_fields__)
    stored = {key: getattr(Recipe, key) for key in later} | stored
    if stored.get("epochs") in recipe.extended:  # compare with the recipe before the extension
        requested["extended"] = [e for e in recipe.extended if e < stored["epochs"]]
        requested["epochs"] = stored["epochs"]
    if requested["validation"] == "auto":
        ignored = (*ignored, "validation")
    for key in requested:
        if key in stored and key not in ignored and stored[key] != requested[key]:
            raise UserError(
                f"{path} was started with {key} = {stored[key]}, not {requested[key]}; resume it without changing "
                f"{key}, or train into another --out."
            )


def save(folder: RunFolder, training: Training, facts: dict[str, Any]) -> None:
    """Save a checkpoint of a training, with additional facts that JSON can represent."""
    state = training.state_dict()
    tensors = {f"{group}.{name}": tensor for group in _GROUPS for name, tensor in state.pop(group).items()}
    facts = {**facts, **state, "data": training.feed.fingerprint, "recipe": training.recipe.as_dict()}
    if training.data.feature_names is not None:
        facts["feature_names"] = list(training.data.feature_names)
    folder.save_checkpoint(training.steps, tensors, facts)


_GROUPS = ("net", "optimizer", "weighting", "average")


def restore(folder: RunFolder, training: Training) -> tuple[dict[str, Any], list[str]]:
    """Load the newest undamaged checkpoint into a training.

    Returns:
        The facts of the checkpoint ({} if the run has none yet), and a message for each damaged checkpoint.
    """
    damaged: dict[Path, str] = {}
    for path in checkpoint.newest(folder.checkpoints):
        try:
            tensors, facts = checkpoint.load(path)
            if not {"steps", "c_max", "recipe", "data"} <= facts.keys():
                raise UserError(f"{path} is not a checkpoint; delete it.")
        except UserError as error:
            damaged[path] = str(error)
            continue
        # The checkpoint has its own copy of the recipe, because recipe.yaml may have been edited.
        in_stages = facts["steps"] > training.course.main
        ignored = MAY_DIFFER if in_stages else (*MAY_DIFFER, *_STAGE_KEYS)
        _check_same(folder.path, current_keys(facts["recipe"]), training.recipe, ignored=ignored)
        if not training.feed.accept(facts["data"]):
            held_out = facts["recipe"].get("validation")
            advice = "" if held_out == len(training.data.validation) else f" (it was loaded with validation={held_out})"
            raise UserError(f"{folder.path} was trained on other images; resume it with the same data{advice}.")
        names = training.data.feature_names
        if names is not None and facts.get("feature_names", list(names)) != list(names):
            raise UserError(f"{folder.path} was trained with other names of features; resume it with the same names.")
        state = {group: checkpoint.group(group, tensors) for group in _GROUPS}
        try:
            training.load_state_dict({**state, "steps": facts["steps"], "c_max": facts["c_max"]})
        except RuntimeError as error:
            raise checkpoint.mismatch_error(error, path) from None
        for file in damaged:  # renamed, so that it does not count as one of the newest checkpoints
            file.rename(file.with_suffix(".damaged"))
        if not training.finished:  # stages or epochs may have been added to a finished run
            folder.reopen(training.epoch)
        if recipe_of(folder) != training.recipe:
            folder.write_recipe(training.recipe.to_yaml())
        folder.truncate_history(training.epoch)
        return facts, list(damaged.values())
    if damaged:
        first = next(iter(damaged.values())).rpartition(";")[0]
        raise UserError(f"All checkpoints of {folder.path} are damaged: {first}; train again into another --out.")
    if folder.model.exists():
        raise UserError(f"{folder.path} is finished and has no checkpoints; there is nothing to resume.")
    folder.truncate_history(0)
    return {}, []
