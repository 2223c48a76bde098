"""Train into a folder, resume it, open it again."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn
from torch.nn.parameter import UninitializedParameter

from advibp import checkpoint, nets
from advibp.data import Data
from advibp.display import Display, Live
from advibp.errors import UserError
from advibp.events import Events
from advibp.folder import RunFolder, hardware
from advibp.recipe import Recipe
from advibp.training import EpochMeans, Training, untouched_global_state


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
    **options: Any,
) -> Run:
    """Train `net` in place on `data`. `options` are recipe keys: method="advibp", eps=0.3, epochs=60, ...

    With `out` the run is kept in a folder and can be continued, exactly, with resume=True. `show=Silent()` silences it.
    """
    if isinstance(recipe, Recipe):
        recipe = Recipe.of({**recipe.as_dict(), **options})
    else:
        recipe = Recipe.load(recipe, **{"data": data.name, "net": type(net).__name__, **options})
    folder = RunFolder(Path(out)) if out is not None else None
    with untouched_global_state():
        training = Training(net, data, recipe)
        training.check()
        facts: dict[str, Any] = {}
        if folder and resume and folder.exists:
            folder.same_run(recipe)
            facts, passed_over = folder.restore(training)
            for message in passed_over:
                print(f"passed over: {message}", file=sys.stderr)
        elif folder:
            folder.create(recipe)
        with show or Live(Console(stderr=True)) as display:
            return _train(training, folder, facts, display)


def _train(training: Training, folder: RunFolder | None, facts: dict[str, Any], display: Display) -> Run:
    recipe = training.recipe
    events = Events(folder.path / "events", training.epoch) if folder else None
    history = folder.history() if folder else []
    spent, best, best_weights = facts.get("seconds", 0.0), facts.get("best"), None
    display.start(training, history)
    while not training.finished:
        began = time.perf_counter()
        metrics = _one_epoch(training, display)
        spent += time.perf_counter() - began
        improved = metrics["phase"] == "full" and (best is None or metrics["verified_error"] <= best["verified_error"])
        if recipe.select == "best" and improved:
            best = {k: metrics[k] for k in ("epoch", "standard_error", "verified_error")}
            best_weights = {k: v.detach().clone() for k, v in training.net.state_dict().items()}
            if folder:
                checkpoint.save(folder.checkpoints / "best.safetensors", best_weights, best)
        history.append(metrics)
        if folder and events:
            folder.log(metrics)
            folder.save_checkpoint(training, {"seconds": spent, "best": best})
            events.log(metrics)
        display.epoch(training, metrics)
    if events:
        events.close()
    if best and recipe.select == "best":
        if best_weights is None and folder:
            best_weights, _ = checkpoint.load(folder.checkpoints / "best.safetensors")
        training.net.load_state_dict(best_weights or {})
    training.net.eval()
    return _finish(training, folder, history, spent, best)


def _one_epoch(training: Training, display: Display) -> dict[str, Any]:
    means = EpochMeans()
    for step in training.run_epoch():
        means.add(step)
        display.step(training, step)
    metrics = {"epoch": training.epoch, **means.means()}
    diverged = [n for n in ("loss_adv", "loss_ibp") if not math.isfinite(metrics.get(n, 0.0))]
    if diverged or not all(bool(p.isfinite().all()) for p in training.params):
        raise UserError(
            f"Training diverged: {diverged[0] if diverged else 'a weight'} is not finite in epoch {training.epoch} "
            f"(phase {metrics['phase']}, eps {metrics['eps']:g}); train again with a smaller lr or a longer ramp."
        )
    metrics["standard_error"], metrics["verified_error"] = training.validation_errors()
    return metrics


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
        "command": recipe.command() if nets.is_known(recipe.net) or nets.is_own(recipe.net) else None,
        "method": recipe.method,
        "net": recipe.net,
        "data": recipe.data,
        "eps": recipe.eps,
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "seconds": round(spent, 1),
        "weights": "best" if best else "last",
        "validation": best or last,
        "validation_images": len(training.data.validation),
        "parameters": sum(p.numel() for p in training.params),
        "hardware": hardware(),
    }
    if folder:
        data = training.data
        folder.save_model(training.net, {"input_shape": list(data.input_shape), "classes": data.classes})
        folder.summarise(summary)
    return Run(training.net, recipe, history, summary, folder.path if folder else None)


def first_net(recipe: Recipe, data: Data) -> nn.Module:
    """The untrained network of a recipe."""
    if nets.is_own(recipe.net):
        net = nets.from_file(recipe.net)
        if any(isinstance(p, UninitializedParameter) for p in net.parameters()):
            _learn_shapes(net, data)
        return net
    return _build(recipe, data.input_shape, data.classes, data.mean, data.std)


def _learn_shapes(net: nn.Module, data: Data) -> None:
    """Lazy layers get their parameters from a first image."""
    try:
        net(data.train.x[:1])
    except Exception as error:  # a network of one's own may raise anything
        raise UserError(f"The network can't take images of shape {data.input_shape}: {error}") from error


def _build(
    recipe: Recipe, shape: Sequence[int], classes: int, mean: Sequence[float], std: Sequence[float]
) -> nn.Sequential:
    first = (mean, std) if recipe.normalise else (None, None)
    init: nets.Init = "ibp" if recipe.init == "ibp" else "default"
    return nets.build(recipe.net, shape, classes, mean=first[0], std=first[1], init=init, seed=recipe.seed)


def open_run(path: str | Path, net: nn.Module | None = None) -> tuple[nn.Module, Recipe]:
    """The trained network of a run's folder, and its recipe. A network of one's own is passed as `net`."""
    return open_with_facts(path, net)[:2]


def open_with_facts(path: str | Path, net: nn.Module | None = None) -> tuple[nn.Module, Recipe, dict[str, Any]]:
    """The same, and the input shape and classes the network was trained for."""
    folder = RunFolder(Path(path))
    recipe = folder.recipe()
    if not folder.model.exists():
        raise UserError(
            f"{path} is not finished: model.safetensors is missing; run `advibp train --resume --out {path}`."
        )
    tensors, facts = folder.load_model()
    if net is None and not nets.is_known(recipe.net):
        raise UserError(
            f"{path} holds a network of one's own ({recipe.net}); pass it as `net`, or as --net file.py:function."
        )
    if net is None:
        channels = facts["input_shape"][0]
        # Mean and std are buffers: their values come with the weights.
        net = _build(recipe, facts["input_shape"], facts["classes"], [0.0] * channels, [1.0] * channels)
    checkpoint.load_weights(net, tensors, folder.model)
    return net.eval(), recipe, facts
