"""Train into a folder, resume it, open it again."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from advibp import nets
from advibp.data import Data, Split
from advibp.display.terminal import Terminal, printable
from advibp.errors import UserError
from advibp.execution.hardware import hardware
from advibp.execution.memory_format import layout_kept
from advibp.execution.modes import modes_kept
from advibp.execution.own_copy import run_on_copy
from advibp.execution.seeds import untouched_global_state
from advibp.methods import METHODS, Method
from advibp.recipe import Recipe
from advibp.runs.next_steps import has_command, how_to_go_on
from advibp.runs.resuming import check_same_run, recipe_of, restore, save
from advibp.runs.stopping import Stopped, StopRequest
from advibp.runs.training_display import Display, Live
from advibp.storage import checkpoint
from advibp.storage.events import Events
from advibp.storage.run_folder import RunFolder
from advibp.storage.weights import load_weights
from advibp.training import Training
from advibp.training.metrics import EpochMeans
from advibp.verify.argument_checks import check_folder, check_net, check_path, named

SAVE_EVERY = 300.0  # seconds within a long epoch

_USAGE = "train(net, data, eps=0.3)"


@dataclass(frozen=True)
class Run:
    """A finished training: the network, trained, and what happened on the way."""

    net: nn.Module
    recipe: Recipe
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None


def train(
    net: nn.Module,
    data: Data,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    recipe: Recipe | str | Path | None = None,
    show: Display | None = None,
    method: str | Method | None = None,
    **options: Any,
) -> Run:
    """Train `net` in place on `data`. `options` are recipe keys: eps=0.3, epochs=60, ...

    `method` is a name from `advibp methods`, or a Method of one's own, which is passed again to go on with its run.
    With `out` the run is kept in a folder and can be continued, exactly, with resume=True. `show=Silent()` silences it.
    Every layer is trained in the mode, training or evaluation, that it comes in, and gets it back.
    """
    check_net(net, data, _USAGE)
    _check_data(data)
    if recipe is not None and not isinstance(recipe, Recipe):
        check_path("recipe", recipe)
    if show is not None and not hasattr(show, "epoch"):
        raise UserError(f"show is {named(show)}, but must be a Display, such as advibp.runs.training_display.Silent().")
    path = check_folder("out", out)
    own = method if isinstance(method, Method) else None
    if own is not None:
        # A recipe of this method, from a folder or the command line, has its place in it; otherwise it has a name.
        place = recipe.method if isinstance(recipe, Recipe) and recipe.method not in METHODS else f"python:{own.name}"
        options = {"method": place, **options}
    elif method is not None:
        options["method"] = method
    if isinstance(recipe, Recipe):
        recipe = recipe.changed(own, **options)
    else:
        recipe = Recipe.load(recipe, own, **{"data": data.name, "net": type(net).__name__, **options})
    folder = RunFolder(path) if path is not None else None
    goes_on = folder is not None and resume and folder.exists
    with StopRequest() as stop, untouched_global_state(), modes_kept(net), layout_kept(net), ExitStack() as held:
        if folder and goes_on:
            check_same_run(folder, recipe)
            held.enter_context(folder.held())
        training = Training(net, data, recipe, own)
        training.check()
        facts: dict[str, Any] = {}
        if folder and goes_on:
            facts, passed_over = restore(folder, training)
            for message in passed_over:
                print(printable(f"passed over: {message}"), file=sys.stderr)
        elif folder:
            folder.create(recipe.to_yaml())
            held.enter_context(folder.held())
        with show or Live(Terminal(stderr=True)) as display:
            try:
                return _Keeper(training, folder, display, stop, facts).run()
            finally:
                for p in net.parameters():
                    p.grad = None  # a view into a buffer of all gradients, which would stay in memory with it


def _check_data(data: Any) -> None:
    if not isinstance(data, Data):
        how = "from_datasets(train, test, validation=1000)"
        if isinstance(data, tuple | list | Tensor | Split):
            how = "from_tensors(x_train, y_train, x_test, y_test)"
        raise UserError(
            f"The data are {named(data)}, but must be a Data set with images to train, validate and test; make one "
            f"with advibp.data.{how}, or load one with advibp.data.load('mnist')."
        )


class _Keeper:
    """Runs a training epoch by epoch and keeps what it finishes: metrics, checkpoints, the best weights, the model."""

    def __init__(
        self, training: Training, folder: RunFolder | None, display: Display, stop: StopRequest, facts: dict[str, Any]
    ) -> None:
        self.training, self.folder, self.display, self.stop = training, folder, display, stop
        self.before: float = facts.get("seconds", 0.0)
        self.best: dict[str, Any] | None = facts.get("best")
        self.best_weights: dict[str, Tensor] | None = None
        self.means = EpochMeans(facts.get("means"))
        self.history = folder.history() if folder else []
        self.began = self.saved = time.perf_counter()

    def run(self) -> Run:
        training, folder = self.training, self.folder
        events = Events(folder.path / "events", training.epoch) if folder else None
        self.display.start(training, self.history)
        while not training.finished:
            if self.stop.asked:
                self._end()
            self._keep_stage()
            metrics = self._epoch()
            self._keep_best(metrics)
            self.history.append(metrics)
            if folder and events:
                folder.log(metrics)
                self._save()
                events.log(metrics)
            self.display.epoch(training, metrics)
        self._keep_stage()
        if events:
            events.close()
        self._load_best()
        return _finish(training, folder, self.history, self._spent(), self.best)

    def _epoch(self) -> dict[str, Any]:
        training, number = self.training, self.training.epoch + 1
        for step in training.run_epoch():
            self.means.add(step)
            self.display.step(training, step)
            if training.epoch >= number:
                break
            if self.folder and (self.stop.asked or time.perf_counter() - self.saved > SAVE_EVERY):
                training.check_weights()
                self._save(means=self.means.state())
            if self.stop.asked:
                self._end()
        training.check_weights()
        metrics = {"epoch": number, **self.means.means()}
        self.means = EpochMeans()
        metrics["standard_error"], metrics["verified_error"] = training.validation_errors()
        return metrics

    def _save(self, **more: Any) -> None:
        assert self.folder
        save(self.folder, self.training, {"seconds": self._spent(), "best": self.best, **more})
        self.saved = time.perf_counter()

    def _spent(self) -> float:
        """Seconds, those before a resume included."""
        return self.before + time.perf_counter() - self.began

    def _end(self) -> NoReturn:
        assert self.stop.asked
        now = self.training.course.at(self.training.steps)
        where = f"stopped in epoch {now.epoch + 1}, after step {now.into} of {self.training.steps_per_epoch}"
        if self.folder is None:
            raise Stopped(self.stop.asked, f"{where}; nothing is kept, since no `out` was given")
        raise Stopped(
            self.stop.asked,
            f"{where}, and saved; continue with: {how_to_go_on(self.training.recipe, self.folder.path)}",
        )

    def _keep_best(self, metrics: dict[str, Any]) -> None:
        settled = metrics["phase"] in ("full", "latent")
        if self.training.recipe.select != "best" or not settled:
            return
        if self.best is not None and metrics["verified_error"] > self.best["verified_error"]:
            return
        self.best = {k: metrics[k] for k in ("epoch", "standard_error", "verified_error")}
        self.best_weights = {k: v.detach().clone() for k, v in self.training.net.state_dict().items()}
        if self.folder:
            checkpoint.save(self.folder.best(metrics["epoch"]), self.best_weights, self.best)

    def _load_best(self) -> None:
        if self.best and self.training.recipe.select == "best":
            if self.best_weights is None and self.folder:
                self.best_weights, _ = checkpoint.load(self.folder.best(self.best["epoch"]))
            self.training.net.load_state_dict(self.best_weights or {})

    def _keep_stage(self) -> None:
        """With layer-wise stages, the network at the end of each, so that what a stage gained can be certified."""
        course, steps = self.training.course, self.training.steps
        over = steps - course.main
        if self.folder and course.stages and over >= 0 and over % course.each == 0:
            self.folder.save_stage(over // course.each, self.training.net.state_dict(), _model_facts(self.training))


def _model_facts(training: Training) -> dict[str, Any]:
    return {"input_shape": list(training.data.input_shape), "classes": training.data.classes}


def _finish(
    training: Training,
    folder: RunFolder | None,
    history: list[dict[str, Any]],
    spent: float,
    best: dict[str, Any] | None,
) -> Run:
    recipe = training.recipe
    last = {k: history[-1][k] for k in ("epoch", "standard_error", "verified_error")} if history else None
    summary = {
        "command": recipe.command() if has_command(recipe) else None,
        "method": recipe.method,
        "net": recipe.net,
        "data": recipe.data,
        "eps": recipe.eps,
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "seconds": round(spent, 3),
        "weights": "best" if best else "last",
        "validation": best or last,
        **({"stages": _stages(history)} if training.course.stages else {}),
        "validation_images": len(training.data.validation),
        "parameters": sum(p.numel() for p in training.net.parameters() if p.requires_grad),
        "hardware": hardware(),
    }
    if folder:
        folder.save_model(training.net.state_dict(), _model_facts(training))
        folder.summarize(summary)
    return Run(training.net, recipe, history, summary, folder.path if folder else None)


def _stages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The last epoch of each stage, stage 0 being the training before the layer-wise ones."""
    last = {metrics.get("stage", 0): metrics for metrics in history}
    names = ("epoch", "standard_error", "verified_error")
    return [{"stage": stage, **{k: metrics[k] for k in names}} for stage, metrics in sorted(last.items())]


def first_net(recipe: Recipe, data: Data, *, weights: bool = True) -> nn.Module:
    """The network of a recipe as it is before training: with its first weights, or with those the recipe names.

    A run that goes on has weights of its own: `weights=False`.
    """
    if nets.is_own(recipe.net):
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
    """Lazy layers get their parameters from a first image."""
    try:
        with modes_kept(net):
            run_on_copy(net.eval(), data.validation.x[:1])  # looking must not touch BatchNorm's statistics
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take images of shape {data.input_shape}: {error}") from error


def _build(recipe: Recipe, shape: Sequence[int], classes: int, data: Data | None = None) -> nn.Module:
    # Mean and std are buffers: for a trained network their values come with its weights.
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    if recipe.normalize:
        mean, std = (data.mean, data.std) if data else ([0.0] * shape[0], [1.0] * shape[0])
    init: nets.Init = "ibp" if recipe.init == "ibp" else "default"
    return nets.build(recipe.net, shape, classes, mean=mean, std=std, init=init, seed=recipe.seed)


def open_run(path: str | Path, net: nn.Module | None = None, stage: int | None = None) -> tuple[nn.Module, Recipe]:
    """The trained network of a run's folder, or as it was after a layer-wise stage, and its recipe.

    A network of one's own is passed as `net`.
    """
    return open_with_facts(path, net, stage)[:2]


def open_with_facts(
    path: str | Path, net: nn.Module | None = None, stage: int | None = None
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """The same, and the input shape and classes the network was trained for."""
    folder = RunFolder(check_path("path", path))
    recipe = recipe_of(folder)
    tensors, facts = folder.load_model(stage)
    if net is None and not nets.is_known(recipe.net):
        raise UserError(
            f"{path} holds a network of one's own ({recipe.net}); pass it as `net`, or as --net file.py:function."
        )
    if net is None:
        net = _build(recipe, facts["input_shape"], facts["classes"])
    checkpoint.load_state(net, tensors, folder.model)
    return net.eval(), recipe, facts
