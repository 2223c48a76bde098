"""Whether and how a run resumes: which recipes are the same run, and which checkpoint it continues from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advibp.errors import UserError
from advibp.recipe import Recipe, current_keys
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.training import Training

#: Recipe keys that say where a run computes, not what. They may differ when it is resumed.
WHERE = ("device", "threads", "at_once", "recompute", "data", "data_root", "published")
#: Recipe keys of what comes after the epochs. They may be changed, also in a finished run, until it has begun.
_LATER = ("stages", "stage_epochs", "stage_lr", "stage_lr_milestones")


def recipe_of(folder: RunFolder) -> Recipe:
    """The recipe of a run, also of one that an older version wrote."""
    keys = folder.recipe()
    if keys.get("method") == "fgsm-random":
        keys["method"] = "rs-fgsm"
    return Recipe.of(keys)


def check_same_run(folder: RunFolder, recipe: Recipe) -> None:
    """Refuse to resume with another recipe."""
    _check_same(folder.path, recipe_of(folder).as_dict(), recipe, ignored=(*WHERE, *_LATER))


def _check_same(path: Path, kept: dict[str, Any], recipe: Recipe, ignored: tuple[str, ...]) -> None:
    asked = recipe.as_dict()
    for key in asked:
        if key in kept and key not in ignored and kept[key] != asked[key]:
            raise UserError(
                f"{path} was started with {key} = {kept[key]}, not {asked[key]}; resume it without changing "
                f"{key}, or train into another --out."
            )


def save(folder: RunFolder, training: Training, facts: dict[str, Any]) -> None:
    """Save a checkpoint of a training, with more facts that JSON can hold."""
    state = training.state_dict()
    tensors = {f"{group}.{name}": tensor for group in _GROUPS for name, tensor in state.pop(group).items()}
    facts = {**facts, **state, "data": training.feed.fingerprint, "recipe": training.recipe.as_dict()}
    folder.save_checkpoint(training.steps, tensors, facts)


_GROUPS = ("net", "optimizer", "weighting")


def restore(folder: RunFolder, training: Training) -> tuple[dict[str, Any], list[str]]:
    """Load the newest undamaged checkpoint into a training.

    Returns:
        Its facts, {} if the run has no checkpoint yet, and a message for every damaged checkpoint.
    """
    damaged: dict[Path, str] = {}
    for path in checkpoint.newest(folder.checkpoints):
        try:
            tensors, facts = checkpoint.load(path)
            if not {"steps", "c_max", "recipe", "data"} <= facts.keys():
                raise UserError(f"{path} is no checkpoint, but another file of advibp; delete it.")
        except UserError as error:
            damaged[path] = str(error)
            continue
        # recipe.yaml may have been edited since.
        begun = facts["steps"] > training.course.main
        _check_same(
            folder.path, current_keys(facts["recipe"]), training.recipe, ignored=WHERE if begun else (*WHERE, *_LATER)
        )
        if facts["data"] != training.feed.fingerprint:
            raise UserError(f"{folder.path} was trained on other images than these; resume it with its own data.")
        state = {group: checkpoint.group(group, tensors) for group in _GROUPS}
        try:
            training.load_state_dict({**state, "steps": facts["steps"], "c_max": facts["c_max"]})
        except RuntimeError as error:
            raise checkpoint.unfit(error, path) from None
        for file in damaged:  # so that it is not kept in place of an undamaged one
            file.rename(file.with_suffix(".damaged"))
        if not training.finished:  # stages may have been added to a finished run
            folder.reopen(training.epoch)
        if recipe_of(folder) != training.recipe:
            folder.write_recipe(training.recipe.to_yaml())
        folder.forget_after(training.epoch)
        return facts, list(damaged.values())
    if damaged:
        first = next(iter(damaged.values())).rpartition(";")[0]
        raise UserError(f"No checkpoint of {folder.path} is whole: {first}; train again, into another --out.")
    if folder.model.exists():
        raise UserError(f"{folder.path} is finished and its checkpoints are gone; nothing is left to resume.")
    folder.forget_after(0)
    return {}, []
