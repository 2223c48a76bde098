"""A run's folder: its files, written so that a kill at any moment loses nothing that was finished.

recipe.yaml  metrics.jsonl  events/  checkpoints/  model.safetensors  summary.json
"""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from advibp import checkpoint
from advibp.errors import UserError
from advibp.plain_yaml import from_yaml
from advibp.recipe import Recipe
from advibp.training import Training
from advibp.version import __version__

KEPT_CHECKPOINTS = 2

#: Where a run computes, not what it computes: these may differ when it is resumed.
WHERE = ("device", "threads", "at_once", "recompute", "data", "data_root", "published")
# What comes after the epochs: it may be added to a run, also to a finished one, as long as it has not begun.
_LATER = ("stages", "stage_epochs", "stage_lr", "stage_lr_milestones")


@dataclass(frozen=True)
class RunFolder:
    """The files of one run."""

    path: Path

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        return (self.path / "recipe.yaml").exists()

    def recipe(self) -> Recipe:
        file = self.path / "recipe.yaml"
        try:
            loaded = from_yaml(file.read_text("utf-8"))
        except OSError:
            raise UserError(
                f"{self.path} holds no run: {file} is missing; give a folder that `advibp train --out` made."
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError):
            raise UserError(
                f"{file} is damaged: it is no YAML; restore it, or train again into another folder."
            ) from None
        if not isinstance(loaded, dict):
            raise UserError(f"{file} is damaged: it holds no recipe; restore it, or train again into another folder.")
        # What had another name once.
        return Recipe.of({**loaded, "method": "rs-fgsm"} if loaded.get("method") == "fgsm-random" else loaded)

    def create(self, recipe: Recipe) -> None:
        if self.exists:
            raise UserError(f"{self.path} holds a run already; add --resume to continue it, or choose another --out.")
        if self.model.exists() or checkpoint.newest(self.checkpoints):
            raise UserError(f"{self.path} holds a run without its recipe.yaml; restore that, or choose another --out.")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            checkpoint.write_atomically(self.path / "recipe.yaml", recipe.to_yaml())
        except OSError as error:
            raise UserError(f"{self.path} can't be written ({error.strerror}); choose another --out.") from None

    def same_run(self, recipe: Recipe) -> None:
        """Refuse to resume with another recipe."""
        self._agree(self.recipe().as_dict(), recipe, but=(*WHERE, *_LATER))

    def _agree(self, mine: dict[str, Any], recipe: Recipe, but: tuple[str, ...]) -> None:
        asked = recipe.as_dict()
        for key in asked:
            if key in mine and key not in but and mine[key] != asked[key]:
                raise UserError(
                    f"{self.path} was started with {key} = {mine[key]}, not {asked[key]}; resume it without changing "
                    f"{key}, or train into another --out."
                )

    def save_checkpoint(self, training: Training, facts: dict[str, Any]) -> None:
        tensors = {f"net.{k}": v for k, v in training.net.state_dict().items()}
        tensors |= {f"optimizer.{k}": v for k, v in checkpoint.optimizer_tensors(training.optimizer).items()}
        tensors |= {f"weighting.{k}": v for k, v in training.weighting.state().items()}
        facts |= {"steps": training.steps, "c_max": training.gate.level, "data": training.feed.fingerprint}
        facts |= {"recipe": training.recipe.as_dict()}
        checkpoint.save(self.checkpoints / checkpoint.file_name(training.steps), tensors, facts)
        checkpoint.prune(self.checkpoints, KEPT_CHECKPOINTS)
        best = facts.get("best")
        for file in self.checkpoints.glob("best-*.safetensors"):
            if best is None or file != self.best(best["epoch"]):
                file.unlink()

    def best(self, epoch: int) -> Path:
        """Where the weights of the best epoch so far are kept, with select=best."""
        return self.checkpoints / f"best-{epoch:05d}.safetensors"

    def held(self) -> AbstractContextManager[None]:
        """For this process alone."""
        return checkpoint.held(self.path, "training", (self.path, self.checkpoints, self.path / "stages"))

    def restore(self, training: Training) -> tuple[dict[str, Any], list[str]]:
        """Put the newest whole checkpoint into `training`; returns its facts and what was passed over."""
        passed_over: list[str] = []
        damaged: list[Path] = []
        for path in checkpoint.newest(self.checkpoints):
            try:
                tensors, facts = checkpoint.load(path)
                if not {"steps", "c_max", "recipe", "data"} <= facts.keys():
                    raise UserError(f"{path} is no checkpoint, but another file of advibp; delete it.")
            except UserError as error:
                passed_over.append(str(error))
                damaged.append(path)
                continue
            # recipe.yaml may have been edited since.
            begun = facts["steps"] > training.course.main
            self._agree(facts["recipe"], training.recipe, but=WHERE if begun else (*WHERE, *_LATER))
            if facts["data"] != training.feed.fingerprint:
                raise UserError(f"{self.path} was trained on other images than these; resume it with its own data.")
            checkpoint.load_weights(training.net, checkpoint.group("net", tensors), path)
            training.steps, training.gate.level = facts["steps"], facts["c_max"]
            if training.go_on():
                checkpoint.load_optimizer(training.optimizer, checkpoint.group("optimizer", tensors))
                moved = {k: v.to(training.device) for k, v in checkpoint.group("weighting", tensors).items()}
                training.weighting.load_state(moved)
            for file in damaged:  # no longer the newest, or it would be kept in place of a whole one
                file.rename(file.with_suffix(".damaged"))
            if not training.finished:  # a run that gets stages is finished no longer
                self.model.unlink(missing_ok=True)
                (self.path / "summary.json").unlink(missing_ok=True)
                if (self.path / "certify").exists():  # it is about weights that the run will have no longer
                    (self.path / "certify").rename(self.path / f"certify-until-epoch-{training.epoch}")
            if self.recipe() != training.recipe:
                checkpoint.write_atomically(self.path / "recipe.yaml", training.recipe.to_yaml())
            self._forget_after(training.epoch)
            return facts, passed_over
        if passed_over:
            first = passed_over[0].rpartition(";")[0]
            raise UserError(f"No checkpoint of {self.path} is whole: {first}; train again, into another --out.")
        if self.model.exists():
            raise UserError(f"{self.path} is finished and its checkpoints are gone; nothing is left to resume.")
        self._forget_after(0)
        return {}, []

    def log(self, metrics: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[dict[str, Any]]:
        """Metrics of the finished epochs. A last line cut short by a kill is no epoch."""
        lines = self.metrics.read_text().split("\n")[:-1] if self.metrics.exists() else []
        try:
            epochs = [json.loads(line) for line in lines]
            return sorted(epochs, key=lambda metrics: int(metrics["epoch"]))
        except (ValueError, KeyError, TypeError):
            raise UserError(f"{self.metrics} is damaged: a line is no epoch's metrics; mend or delete it.") from None

    def _forget_after(self, epoch: int) -> None:
        """Epochs logged after the checkpoint will be trained, and logged, again."""
        kept = [m for m in self.history() if m["epoch"] <= epoch]
        checkpoint.write_atomically(self.metrics, "".join(json.dumps(m) + "\n" for m in kept))

    def load_model(self, stage: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Weights of the trained network, or as they were after a stage, and its input shape and classes."""
        file = self.model if stage is None else self.after_stage(stage)
        if not file.exists():
            raise UserError(
                f"{self.path} is not finished: {file.name} is missing; run `advibp train --resume --out {self.path}`."
                if stage is None
                else f"{self.path} holds no stage {stage}; give the number of a stage that was trained."
            )
        tensors, facts = checkpoint.load(file)
        if not {"input_shape", "classes"} <= facts.keys():
            raise UserError(f"{file} is no trained model of a run, but another file of advibp; train again.")
        return tensors, facts

    @property
    def begun(self) -> bool:
        """Whether there is something to go on from."""
        return bool(checkpoint.newest(self.checkpoints)) or self.model.exists()

    @property
    def finished(self) -> bool:
        return self.model.exists() and (self.path / "summary.json").exists()

    def summary(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / "summary.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise UserError(f"{self.path} has no summary.json that can be read; train again, or resume it.") from None

    def summarise(self, summary: dict[str, Any]) -> None:
        checkpoint.write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def save_model(self, net: nn.Module, facts: dict[str, Any]) -> None:
        checkpoint.save(self.model, net.state_dict(), facts)

    def after_stage(self, stage: int) -> Path:
        """Where the network as it was after a stage is kept, when there are stages."""
        return self.path / "stages" / f"stage-{stage}.safetensors"

    def save_stage(self, stage: int, net: nn.Module, facts: dict[str, Any]) -> None:
        self.after_stage(stage).parent.mkdir(exist_ok=True)
        checkpoint.save(self.after_stage(stage), net.state_dict(), facts)


def hardware() -> dict[str, Any]:
    """What the run ran on, for every number that is kept."""
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "advibp": __version__,
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [line.partition(":")[2].strip() for line in info.read_text().splitlines() if line.startswith("model name")]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor()
