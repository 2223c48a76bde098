"""Run a training epoch by epoch: save metrics, checkpoints and the trained model, and finish with a summary."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NoReturn

from torch import Tensor

from advibp.callbacks import CallbackGroup
from advibp.errors import UserError
from advibp.execution.hardware import hardware
from advibp.runs.next_steps import how_to_go_on, how_to_train
from advibp.runs.resuming import save
from advibp.runs.run import Run
from advibp.runs.stopping import Stopped, StopRequest
from advibp.runs.training_display import Display
from advibp.storage import checkpoint
from advibp.storage.events import Events
from advibp.storage.run_folder import RunFolder
from advibp.training import Training
from advibp.training.metrics import EpochMeans
from advibp.verify.collapse import collapse_messages, guessing_message

SAVE_EVERY = 300.0  # seconds between checkpoints within an epoch


class Runner:
    """Runs a training epoch by epoch and saves metrics, checkpoints, the best weights and the trained model."""

    def __init__(
        self,
        training: Training,
        folder: RunFolder | None,
        display: Display,
        stop: StopRequest,
        facts: dict[str, Any],
        callbacks: CallbackGroup,
    ) -> None:
        self.training, self.folder, self.display, self.stop = training, folder, display, stop
        self.callbacks, self.stop_reason = callbacks, ""
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
        """Train until the end, or until a callback stops the training."""
        try:
            run = self._run()
        except BaseException as error:
            self.callbacks.notify_interrupted({"reason": str(error), "epoch": self.training.epoch})
            raise
        self.callbacks.notify("on_train_end", run.summary)
        return run

    def _run(self) -> Run:
        training, folder = self.training, self.folder
        events = Events(folder.path / "events", training.epoch) if folder else None
        self.display.start(training, self.history)
        self._notify("on_train_start", self._start_facts())
        while not training.finished and not self.stop_reason:
            if self.stop.signal:
                self._stop()
            self._save_stage()
            metrics = self._epoch()
            self.history.append(metrics)
            if folder and events:
                folder.log(metrics)
                self._save()
                events.log(metrics)
            self.display.epoch(training, metrics)
            self._notify("on_epoch_end", metrics)
            if (stage := self._finished_stage()) is not None:
                self._notify("on_stage_end", {**metrics, "stage": stage})
        stopped = None if training.finished else {"epoch": training.epoch, "reason": self.stop_reason}
        if folder and stopped:
            self._save(means=self.means.state())
        self._save_stage()
        if events:
            events.close()
        if not self._load_best():
            training.adopt_evaluation_weights()
        return _finish(training, folder, self.history, self._seconds(), self.best, stopped)

    def _notify(self, event: str, facts: dict[str, Any]) -> None:
        if request := self.callbacks.notify(event, facts):
            self.stop_reason = self.stop_reason or str(request) or type(request).__name__

    def _start_facts(self) -> dict[str, Any]:
        training = self.training
        return {
            "recipe": training.recipe.as_dict(),
            "parameters": _parameters(training),
            "epochs": training.course.epochs,
            "steps_per_epoch": training.steps_per_epoch,
            "out": str(self.folder.path) if self.folder else None,
            "resumed": training.steps > 0,
            "epoch": training.epoch,
            "history": self.history,
        }

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
        metrics = {"epoch": number, **self.means.means(), **_bound_note(training)}
        self.means = EpochMeans()
        with training.evaluation_weights():
            validated = training.validate()
            metrics |= {"standard_error": validated.standard_error, "verified_error": validated.verified_error}
            self._save_best(metrics)
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

    def _load_best(self) -> bool:
        """Load the best weights with select=best. Return whether there are any."""
        if not self.best or self.training.recipe.select != "best":
            return False
        if self.best_weights is None and self.folder:
            self.best_weights = self._stored_best(self.folder.best(self.best["epoch"]))
        self.training.net.load_state_dict(self.best_weights or {})
        return True

    def _stored_best(self, file: Path) -> dict[str, Tensor]:
        try:
            return checkpoint.load(file)[0]
        except UserError:
            raise UserError(
                f"{file} is missing or damaged, so the best weights are lost; train again into another --out."
            ) from None

    def _finished_stage(self) -> int | None:
        """Return the number of the layer-wise stage that has just ended (0: the main phase); None within a stage."""
        course, over = self.training.course, self.training.steps - self.training.course.main
        return over // course.each if course.stages and over >= 0 and over % course.each == 0 else None

    def _save_stage(self) -> None:
        """Save the network at the end of each layer-wise stage, so that it can be certified."""
        stage = self._finished_stage()
        if self.folder and stage is not None:
            with self.training.evaluation_weights():
                self.folder.save_stage(stage, self.training.net.state_dict(), _model_facts(self.training))


def _bound_note(training: Training) -> dict[str, bool]:
    """Return a note that the upper loss is no bound of the robust loss; {} if it is one."""
    return {} if training.method.upper_is_bound else {"upper_is_bound": False}


def _parameters(training: Training) -> int:
    return sum(p.numel() for p in training.net.parameters() if p.requires_grad)


def _model_facts(training: Training) -> dict[str, Any]:
    data = training.data
    names = {} if data.class_names is None else {"class_names": list(data.class_names)}
    features = {} if data.feature_names is None else {"feature_names": list(data.feature_names)}
    around = training.perturbation.as_dict()  # {} for images
    described = {**names, **features, **({"perturbation": around} if around else {})}
    return {"input_shape": list(data.input_shape), "classes": data.classes, **described}


def _finish(
    training: Training,
    folder: RunFolder | None,
    history: list[dict[str, Any]],
    seconds: float,
    best: dict[str, Any] | None,
    stopped: dict[str, Any] | None,
) -> Run:
    recipe = training.recipe
    last = {k: history[-1][k] for k in ("epoch", "standard_error", "verified_error")} if history else None
    summary = {
        "command": how_to_train(recipe, folder.path if folder else None) if training.data.origin else None,
        "method": recipe.method,
        **_bound_note(training),
        "net": recipe.net,
        "data": recipe.data,
        "eps": recipe.eps,
        "seed": recipe.seed,
        "epochs": recipe.epochs,
        "seconds": round(seconds, 3),
        "weights": "best" if best else "last",
        "validation": best or last,
        **({"stages": _stages(history)} if training.course.stages else {}),
        **({"stopped": stopped} if stopped else {}),
        "validation_images": len(training.data.validation),
        "warnings": _collapse(training),
        "parameters": _parameters(training),
        "hardware": hardware(),
    }
    if folder:
        folder.save_model(training.net.state_dict(), _model_facts(training))
        folder.write_summary(summary)
    return Run(
        training.net, recipe, history, summary, folder.path if folder else None, _model_facts(training), training.data
    )


def _collapse(training: Training) -> list[str]:
    """Return warnings about a collapsed network, from its predictions of the validation images."""
    validated = training.validate()
    labels, predictions = validated.labels.tolist(), validated.predictions.tolist()
    names, what = training.data.class_names, f"validation {'rows' if len(training.data.input_shape) == 1 else 'images'}"
    if messages := collapse_messages(labels, predictions, names, what):
        return messages
    right = int((validated.predictions == validated.labels).sum())
    message = guessing_message(labels, right, f"accuracy on the {what}", names)
    return [message] if message else []


def _stages(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the metrics of the last epoch of each layer-wise stage; stage 0 is the training before them."""
    last = {metrics.get("stage", 0): metrics for metrics in history}
    names = ("epoch", "standard_error", "verified_error")
    return [{"stage": stage, **{k: metrics[k] for k in names}} for stage, metrics in sorted(last.items())]
