"""Estimate how long a run takes on this machine.

`estimate_seconds` times a few steps of each phase on the data. `predict_seconds` takes less than a second and needs no
data: it times forward and backward passes of the network and multiplies by the number of passes of the run.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from advibp.data import Data, Split
from advibp.data.assembly import validation_size
from advibp.data.fetch.known_sets import Row
from advibp.methods import Method
from advibp.recipe import Recipe
from advibp.training import Training
from advibp.training.step_cost import remaining_cost

#: Steps of a phase that are timed, after one warm-up step.
TIMED = 2


def estimate_seconds(net: nn.Module, data: Data, recipe: Recipe, method: Method | None = None) -> float:
    """Return the seconds of a whole run without validation. `net` is not changed."""
    # These steps are out of order, so that their losses may be larger than those of a run.
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


def placeholder_data(recipe: Recipe, row: Row) -> Data:
    """Return data of the recipe's sizes without loading the data set: one gray image, repeated without using memory."""
    held_out = int(validation_size(recipe.validation, row.images[0]))
    images = min(row.images[0] - held_out, recipe.limit or row.images[0])
    shape = row.input_shape

    def split(count: int) -> Split:
        x, y = torch.full((1, *shape), 0.5), torch.zeros(1, dtype=torch.int64)
        return Split(x.expand(count, *shape), y.expand(count))

    return Data(row.name, split(images), split(held_out), split(row.images[1]), row.classes)


#: Images of each timed pass. The first pass warms up. A pass of more than _LONG seconds is the last one.
_PASSES, _LONG = (8, 64, 64, 64), 0.2


def pass_seconds(training: Training) -> float:
    """Return the seconds of one forward pass per image: a third of a forward and a backward pass."""
    best = math.inf
    for images in _PASSES:
        x, y = (part.contiguous() for part in training.feed.example(images))
        if training.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        began = time.perf_counter()
        gradients = torch.autograd.grad(F.cross_entropy(training.net(x), y), training.params)
        gradients[0].sum().item()  # waits for the device
        seconds = time.perf_counter() - began
        best = min(best, seconds / 3 / len(x))
        if seconds > _LONG:
            break
    return best


def predict_seconds(training: Training, each_pass: float, epochs: int = 0) -> float:
    """Return the remaining seconds of a run after its first `epochs`, without validation.

    On twelve networks and methods the result was 0.6 to 1.4 times that of `estimate_seconds`.

    Args:
        training: the training; its `steps` are changed.
        each_pass: result of `pass_seconds`.
        epochs: epochs that are finished.
    """
    course = training.course
    main = math.ceil(course.main / course.per_epoch)
    steps = epochs * course.per_epoch if epochs < main else course.main + (epochs - main) * course.per_epoch
    training.steps = min(steps, course.total)
    return each_pass * training.batch_size * remaining_cost(training)


#: Recipe keys that are numbers of epochs. A key that is a percentage of all epochs needs no change.
EPOCH_KEYS = ("epochs", "stage_epochs", "warmup_natural", "warmup_adversarial", "warmup_adversarial_ramp", "ramp")


def shorten(recipe: Recipe, seconds: float, estimated: float) -> Recipe:
    """Reduce the epochs of a recipe, so that a run of `estimated` seconds takes at most `seconds`."""
    share = min(1.0, seconds / estimated)
    if share == 1:
        return recipe
    shorter = {key: getattr(recipe, key) for key in EPOCH_KEYS}
    shorter = {key: value * share for key, value in shorter.items() if isinstance(value, float)}
    for key in ("epochs", "stage_epochs"):  # integers of at least 1
        shorter[key] = min(getattr(recipe, key), max(1.0, float(int(shorter[key]))))
    return Recipe.of({**recipe.as_dict(), **shorter})
