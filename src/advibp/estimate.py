"""How long a run will take here, from a few steps of each of its phases."""

from __future__ import annotations

import copy
import dataclasses
import time
from itertools import pairwise

from torch import nn

from advibp.data import Data
from advibp.methods import Method
from advibp.recipe import Recipe
from advibp.training import Training

#: Steps of a phase that are timed; one more comes before them, for what only the first has to do.
TIMED = 2


def estimated_seconds(net: nn.Module, data: Data, recipe: Recipe, method: Method | None = None) -> float:
    """Seconds of a whole run, evaluation left out. `net` stays as it is."""
    # Steps out of turn may have losses that no run has.
    trial = Training(copy.deepcopy(net), data, dataclasses.replace(recipe, max_loss=1e30), method)
    trial.check()
    x, y = trial.feed.example(trial.batch_size)
    course, line = trial.course, trial.timeline
    phases = [0.0, line.natural, line.joint, line.joint + line.ramp, recipe.epochs]
    parts = [((a + b) / 2 * course.per_epoch, (b - a) * course.per_epoch) for a, b in pairwise(phases) if b > a]
    parts += [(course.main + (k + 0.5) * course.each, course.each) for k in range(course.stages)]
    total = 0.0
    for middle, steps in parts:
        trial.steps = int(middle)
        if course.at(trial.steps).stage != trial.stage:
            trial.begin_stage(course.at(trial.steps).stage)
        trial.stages.resume_modes()
        for k in range(1 + TIMED):
            if k == 1:
                began = time.perf_counter()
            trial.steps = int(middle)
            trial.step(x, y)
        total += (time.perf_counter() - began) / TIMED * steps
    return total


#: Epochs of a recipe; one that is a share of all epochs needs no change.
SPANS = ("epochs", "stage_epochs", "warmup_natural", "warmup_adversarial", "warmup_adversarial_ramp", "ramp")


def fitted(recipe: Recipe, seconds: float, estimated: float) -> Recipe:
    """The recipe with as many epochs, and epochs of stages, as fit into `seconds`; never with more than it has."""
    share = min(1.0, seconds / estimated)
    if share == 1:
        return recipe
    shorter = {key: getattr(recipe, key) for key in SPANS}
    shorter = {key: value * share for key, value in shorter.items() if isinstance(value, float)}
    for key in ("epochs", "stage_epochs"):  # whole ones, of one at least
        shorter[key] = min(getattr(recipe, key), max(1.0, float(int(shorter[key]))))
    return Recipe.of({**recipe.as_dict(), **shorter})
