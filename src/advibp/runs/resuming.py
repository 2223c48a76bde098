"""Resume a run: compare its recipe, and restore the newest checkpoint that is not damaged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from advibp.errors import UserError
from advibp.recipe import Recipe, current_keys
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.training import Training

#: Recipe keys that may differ when a run is resumed: they change the result only by rounding.
MAY_DIFFER = ("device", "threads", "at_once", "recompute", "data", "data_root", "published")
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


def check_same_run(folder: RunFolder, recipe: Recipe) -> None:
    """Raise a UserError if a run was started with another recipe."""
    _check_same(folder.path, recipe_of(folder).as_dict(), recipe, ignored=(*MAY_DIFFER, *_STAGE_KEYS))


def _check_same(path: Path, stored: dict[str, Any], recipe: Recipe, ignored: tuple[str, ...]) -> None:
    requested = recipe.as_dict()
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
    folder.save_checkpoint(training.steps, tensors, facts)


_GROUPS = ("net", "optimizer", "weighting")


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
        if facts["data"] != training.feed.fingerprint:
            raise UserError(f"{folder.path} was trained on other images; resume it with the same data.")
        state = {group: checkpoint.group(group, tensors) for group in _GROUPS}
        try:
            training.load_state_dict({**state, "steps": facts["steps"], "c_max": facts["c_max"]})
        except RuntimeError as error:
            raise checkpoint.mismatch_error(error, path) from None
        for file in damaged:  # renamed, so that it does not count as one of the newest checkpoints
            file.rename(file.with_suffix(".damaged"))
        if not training.finished:  # stages may have been added to a finished run
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
