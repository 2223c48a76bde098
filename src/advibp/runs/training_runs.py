"""Train into a folder, resume a run, open a finished run."""

from __future__ import annotations

import dataclasses
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
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
from advibp.execution.memory_format import preserve_layout
from advibp.execution.modes import preserve_modes
from advibp.execution.own_copy import run_on_copy
from advibp.execution.seeds import mix, preserve_global_state
from advibp.methods import METHODS, Method
from advibp.moved import RenamedKeys
from advibp.recipe import Recipe
from advibp.runs.next_steps import has_command, how_to_go_on
from advibp.runs.resuming import check_same_run, recipe_of, restore, save, should_resume
from advibp.runs.stopping import Stopped, StopRequest
from advibp.runs.training_display import Display, Live
from advibp.storage import checkpoint
from advibp.storage.events import Events
from advibp.storage.metric_names import OLD_NAMES
from advibp.storage.run_folder import RunFolder
from advibp.storage.weights import load_weights
from advibp.training import Training
from advibp.training.metrics import EpochMeans
from advibp.verify.argument_checks import check_folder, check_net, check_path, named
from advibp.verify.collapse import CollapseWarning, collapse_messages, guessing_message

SAVE_EVERY = 300.0  # seconds between checkpoints within an epoch

_USAGE = "train(net, data, eps=0.3)"


@dataclass(frozen=True)
class Run:
    """A finished training, returned by `train` and `open_run`.

    Attributes:
        net: the trained network. `open_run` returns it in evaluation mode.
        recipe: all options of the run.
        history: metrics of each epoch, as in metrics.jsonl: losses, weights, errors on the validation images as
            fractions, seconds.
        summary: contents of summary.json: command, seconds, number of parameters, validation errors, hardware.
        path: the run's folder; None if `train` was called without `out`.

    Examples:
        >>> import torch, advibp
        >>> x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
        >>> data = advibp.data.from_tensors(x, y, x, y, validation=10)
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=2, seed=0)
        >>> options = dict(eps=0.1, method="standard", epochs=1, batch_size=10)
        >>> run = advibp.train(net, data, out="runs/first", **options)
        >>> run = advibp.open_run("runs/first", net)
        >>> run.recipe.eps, len(run.history), run.net(x).shape
        (0.1, 1, torch.Size([60, 2]))
    """

    net: nn.Module
    recipe: Recipe
    history: list[dict[str, Any]]
    summary: dict[str, Any]
    path: Path | None

    def __iter__(self) -> Iterator[Any]:
        """Deprecated: `open_run` returned the pair (net, recipe)."""
        return iter(self._as_pair())

    def __getitem__(self, index: int | slice) -> Any:
        """Deprecated: `open_run` returned the pair (net, recipe)."""
        return self._as_pair()[index]

    def _as_pair(self) -> tuple[nn.Module, Recipe]:
        warnings.warn(
            "open_run returns a Run; use run.net and run.recipe instead of unpacking it.",
            DeprecationWarning,
            stacklevel=3,
        )
        return self.net, self.recipe

    def __post_init__(self) -> None:
        object.__setattr__(self, "history", [RenamedKeys(metrics, OLD_NAMES) for metrics in self.history])


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
    """Train a network in place.

    Args:
        net: the network (B, *input_shape) -> (B, K). Each layer is trained in the mode (training or evaluation) that it
            has, and keeps that mode.
        data: the data set, from `advibp.data`.
        out: folder of the run; by default nothing is saved.
        resume: continue the run in `out` if there is one. The result is bit by bit that of an uninterrupted run.
        recipe: name of a shipped recipe, a YAML file or a `Recipe`; by default the default recipe.
        show: the display; by default a progress bar. `advibp.Silent()` shows nothing.
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
    _check_data(data)
    if recipe is not None and not isinstance(recipe, Recipe):
        check_path("recipe", recipe)
    if show is not None and not hasattr(show, "epoch"):
        raise UserError(f"show is {named(show)}, but must be a Display, such as advibp.Silent().")
    path = check_folder("out", out)
    user_method = method if isinstance(method, Method) else None
    if user_method is not None:
        # A recipe from a folder or the command line has the method's place (file.py:NAME); otherwise use its name.
        place = f"python:{user_method.name}"
        if isinstance(recipe, Recipe) and recipe.method not in METHODS:
            place = recipe.method
        options = {"method": place, **options}
    elif method is not None:
        options["method"] = method
    if isinstance(recipe, Recipe):
        recipe = recipe.changed(user_method, **options)
    else:
        recipe = Recipe.load(recipe, user_method, **{"data": data.name, "net": type(net).__name__, **options})
    folder = RunFolder(path) if path is not None else None
    continues = folder is not None and should_resume(folder, resume)
    if folder and continues and recipe.init == Recipe.init:
        recipe = dataclasses.replace(recipe, init=recipe_of(folder).init)
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
            recipe = _initialize(net, recipe)
        training = Training(net, data, recipe, user_method)
        training.check()
        facts: dict[str, Any] = {}
        if folder and continues:
            facts, messages = restore(folder, training)
            for message in messages:
                print(printable(f"skipped: {message}"), file=sys.stderr)
        elif folder:
            folder.create(recipe.to_yaml())
            locks.enter_context(folder.lock())
        with show or Live(Terminal(stderr=True)) as display:
            try:
                run = _Runner(training, folder, display, stop, facts).run()
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
    if recipe.init != "ibp" or nets.is_known(recipe.net):  # advibp has initialized its own networks
        return recipe
    if recipe.weights or not nets.is_freshly_initialized(net):
        return dataclasses.replace(recipe, init="given")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(mix(recipe.seed, 6, 0))
        nets.ibp_init(net)
    return recipe


def _check_data(data: Any) -> None:
    if not isinstance(data, Data):
        call = "from_datasets(train, test, validation=1000)"
        if isinstance(data, tuple | list | Tensor | Split):
            call = "from_tensors(x_train, y_train, x_test, y_test)"
        raise UserError(
            f"data is {named(data)}, but must be a Data set with images to train, validate and test; create one "
            f"with advibp.data.{call}, or load one with advibp.data.load('mnist')."
        )


class _Runner:
    """Runs a training epoch by epoch and saves metrics, checkpoints, the best weights and the trained model."""

    def __init__(
        self, training: Training, folder: RunFolder | None, display: Display, stop: StopRequest, facts: dict[str, Any]
    ) -> None:
        self.training, self.folder, self.display, self.stop = training, folder, display, stop
        self.before: float = facts.get("seconds", 0.0)
        self.best: dict[str, Any] | None = facts.get("best")
        self.best_weights: dict[str, Tensor] | None = None
        self.means = EpochMeans(facts.get("means"))
        self.history = folder.history() if folder else []
        for metrics in self.history:
            if not {"standard_error", "verified_error"} <= metrics.keys():
                raise UserError(
                    f"Epoch {metrics['epoch']} in metrics.jsonl has no errors; delete this line and those after it."
                )
        self.began = self.saved = time.perf_counter()

    def run(self) -> Run:
        training, folder = self.training, self.folder
        events = Events(folder.path / "events", training.epoch) if folder else None
        self.display.start(training, self.history)
        while not training.finished:
            if self.stop.signal:
                self._stop()
            self._save_stage()
            metrics = self._epoch()
            self._save_best(metrics)
            self.history.append(metrics)
            if folder and events:
                folder.log(metrics)
                self._save()
                events.log(metrics)
            self.display.epoch(training, metrics)
        self._save_stage()
        if events:
            events.close()
        self._load_best()
        return _finish(training, folder, self.history, self._seconds(), self.best)

    def _epoch(self) -> dict[str, Any]:
        """Train one epoch and return its metrics."""
        training, number = self.training, self.training.epoch + 1
        for step in training.run_epoch():
            self.means.add(step)
            self.display.step(training, step)
            if training.epoch >= number:
                break
            if self.folder and (self.stop.signal or time.perf_counter() - self.saved > SAVE_EVERY):
                training.check_weights()
                self._save(means=self.means.state())
            if self.stop.signal:
                self._stop()
        training.check_weights()
        metrics = {"epoch": number, **self.means.means()}
        self.means = EpochMeans()
        validated = training.validate()
        metrics |= {"standard_error": validated.standard_error, "verified_error": validated.verified_error}
        return metrics

    def _save(self, **more: Any) -> None:
        assert self.folder
        save(self.folder, self.training, {"seconds": self._seconds(), "best": self.best, **more})
        self.saved = time.perf_counter()

    def _seconds(self) -> float:
        """Return the seconds of the training, including those before a resume."""
        return self.before + time.perf_counter() - self.began

    def _stop(self) -> NoReturn:
        assert self.stop.signal
        now = self.training.course.at(self.training.steps)
        where = f"stopped in epoch {now.epoch + 1}, after step {now.step_in_epoch} of {self.training.steps_per_epoch}"
        if self.folder is None:
            raise Stopped(self.stop.signal, f"{where}; nothing was saved, because `out` was not given")
        raise Stopped(
            self.stop.signal,
            f"{where}, and saved; continue with: {how_to_go_on(self.training.recipe, self.folder.path)}",
        )

    def _save_best(self, metrics: dict[str, Any]) -> None:
        """With select=best, save the weights if this epoch, at full eps, has the lowest verified error so far."""
        at_full_eps = metrics["phase"] in ("full", "latent")
        if self.training.recipe.select != "best" or not at_full_eps:
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
                self.best_weights = self._stored_best(self.folder.best(self.best["epoch"]))
            self.training.net.load_state_dict(self.best_weights or {})

    def _stored_best(self, file: Path) -> dict[str, Tensor]:
        try:
            return checkpoint.load(file)[0]
        except UserError:
            raise UserError(
                f"{file} is missing or damaged, so the best weights are lost; train again into another --out."
            ) from None

    def _save_stage(self) -> None:
        """Save the network at the end of each layer-wise stage, so that it can be certified."""
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
    seconds: float,
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
        "seconds": round(seconds, 3),
        "weights": "best" if best else "last",
        "validation": best or last,
        **({"stages": _stages(history)} if training.course.stages else {}),
        "validation_images": len(training.data.validation),
        "warnings": _collapse(training),
        "parameters": sum(p.numel() for p in training.net.parameters() if p.requires_grad),
        "hardware": hardware(),
    }
    if folder:
        folder.save_model(training.net.state_dict(), _model_facts(training))
        folder.write_summary(summary)
    return Run(training.net, recipe, history, summary, folder.path if folder else None)


def _collapse(training: Training) -> list[str]:
    """Return warnings about a collapsed network, from its predictions of the validation images."""
    validated = training.validate()
    labels, predictions = validated.labels.tolist(), validated.predictions.tolist()
    if messages := collapse_messages(labels, predictions):
        return messages
    right = int((validated.predictions == validated.labels).sum())
    message = guessing_message(labels, right, "accuracy on the validation images")
    return [message] if message else []


def _stages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of the last epoch of each layer-wise stage; stage 0 is the training before them."""
    last = {metrics.get("stage", 0): metrics for metrics in history}
    names = ("epoch", "standard_error", "verified_error")
    return [{"stage": stage, **{k: metrics[k] for k in names}} for stage, metrics in sorted(last.items())]


def first_net(recipe: Recipe, data: Data, *, weights: bool = True) -> nn.Module:
    """Build the network of a recipe before training.

    Args:
        recipe: names the network, its seed and perhaps a file of weights.
        data: gives the input shape, the classes, and mean and standard deviation.
        weights: load the recipe's file of weights. A resumed run does not need them.
    """
    if nets.is_user_code(recipe.net):
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
    """Run lazy layers on one image, which creates their parameters."""
    try:
        with preserve_modes(net):
            run_on_copy(net.eval(), data.validation.x[:1])  # evaluation mode keeps BatchNorm's statistics
    except Exception as error:  # user code may raise anything
        raise UserError(f"The network can't run on images of shape {data.input_shape}: {error}") from error


def _build(recipe: Recipe, shape: Sequence[int], classes: int, data: Data | None = None) -> nn.Module:
    # Mean and std are buffers: those of a trained network are loaded with its weights.
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None
    if recipe.normalize:
        mean, std = (data.mean, data.std) if data else ([0.0] * shape[0], [1.0] * shape[0])
    init: nets.Init = "ibp" if recipe.init == "ibp" else "default"
    return nets.build(recipe.net, shape, classes, mean=mean, std=std, init=init, seed=recipe.seed)


def open_run(path: str | Path, net: nn.Module | None = None, stage: int | None = None) -> Run:
    """Open the folder of a finished run.

    Args:
        path: the folder.
        net: the network of the run, if it is the user's own; the weights are loaded into it. Networks from
            `advibp.nets` are built.
        stage: load the weights after this layer-wise stage (0: before the first one); by default the final weights.

    Returns:
        The run, with its network in evaluation mode. For one release it can still be unpacked as (net, recipe), with a
        DeprecationWarning.

    Raises:
        UserError: the folder is not a finished run, a file is damaged, or the weights do not match `net`.

    Examples:
        ```python
        run = advibp.open_run("runs/first")
        cert = advibp.certify(run.net, advibp.data.load("mnist").test.take(10), eps=run.recipe.eps)
        ```
    """
    net, recipe, _ = open_with_facts(path, net, stage)
    folder = RunFolder(Path(path))
    summary = folder.summary() if (folder.path / "summary.json").exists() else {}
    return Run(net, recipe, folder.history(), summary, folder.path)


def open_with_facts(
    path: str | Path, net: nn.Module | None = None, stage: int | None = None
) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """Return the network and recipe of a run, and the facts of its weights: input_shape and classes."""
    folder = RunFolder(check_path("path", path))
    recipe = recipe_of(folder)
    tensors, facts = folder.load_model(stage)
    if net is None and not nets.is_known(recipe.net):
        raise UserError(
            f"{path} has a user-defined network ({recipe.net}); pass it as `net`, or as --net file.py:function."
        )
    if net is None:
        net = _build(recipe, facts["input_shape"], facts["classes"])
    checkpoint.load_state(net, tensors, folder.model)
    return net.eval(), recipe, facts
