"""A run's folder: its files, written so that a kill at any moment loses nothing that was finished.

    recipe.yaml  metrics.jsonl  events/  checkpoints/  model.safetensors  stages/  summary.json  certify/

It stores plain mappings and tensors. What they mean is known to `runs`.
"""

from __future__ import annotations

import json
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from advibp.errors import UserError
from advibp.storage import checkpoint
from advibp.storage.metric_names import with_current_names
from advibp.storage.plain_yaml import from_yaml

KEPT_CHECKPOINTS = 2


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

    @property
    def begun(self) -> bool:
        """Whether there are weights to continue from."""
        return bool(checkpoint.newest(self.checkpoints)) or self.model.exists()

    @property
    def finished(self) -> bool:
        return self.model.exists() and (self.path / "summary.json").exists()

    def held(self) -> AbstractContextManager[None]:
        """Lock the folder for this process."""
        return checkpoint.held(self.path, "training", (self.path, self.checkpoints, self.path / "stages"))

    # ------------------------------------------------------------------------------------------ recipe

    def recipe(self) -> dict[str, Any]:
        """The keys of recipe.yaml."""
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
        return {str(key): value for key, value in loaded.items()}

    def create(self, recipe: str) -> None:
        """Begin a run. recipe: the text of recipe.yaml."""
        if self.exists:
            raise UserError(f"{self.path} holds a run already; add --resume to continue it, or choose another --out.")
        if self.model.exists() or checkpoint.newest(self.checkpoints):
            raise UserError(f"{self.path} holds a run without its recipe.yaml; restore that, or choose another --out.")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.write_recipe(recipe)
        except OSError as error:
            raise UserError(f"{self.path} can't be written ({error.strerror}); choose another --out.") from None

    def write_recipe(self, recipe: str) -> None:
        checkpoint.write_atomically(self.path / "recipe.yaml", recipe)

    # ------------------------------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, steps: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save a checkpoint, and delete all but the newest ones and the weights of the best epoch."""
        checkpoint.save(self.checkpoints / checkpoint.file_name(steps), tensors, facts)
        checkpoint.prune(self.checkpoints, KEPT_CHECKPOINTS)
        best = facts.get("best")
        for file in self.checkpoints.glob("best-*.safetensors"):
            if best is None or file != self.best(best["epoch"]):
                file.unlink()

    def best(self, epoch: int) -> Path:
        """Where the weights of the best epoch so far are kept, with select=best."""
        return self.checkpoints / f"best-{epoch:05d}.safetensors"

    # ------------------------------------------------------------------------------------------ metrics

    def log(self, metrics: dict[str, Any]) -> None:
        with self.metrics.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[dict[str, Any]]:
        """Metrics of the finished epochs. A last line that a kill cut short is left out."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        try:
            epochs = [json.loads(line) for line in lines]
            named = [{**with_current_names(metrics), "epoch": int(metrics["epoch"])} for metrics in epochs]
            return sorted(named, key=lambda m: m["epoch"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise UserError(f"{self.metrics} is damaged: a line is no epoch's metrics; mend or delete it.") from None

    def forget_after(self, epoch: int) -> None:
        """Delete the metrics of later epochs, which will be trained and logged again."""
        kept = [m for m in self.history() if m["epoch"] <= epoch]
        checkpoint.write_atomically(self.metrics, "".join(json.dumps(m) + "\n" for m in kept))

    # ------------------------------------------------------------------------------------------ trained weights

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

    def save_model(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        checkpoint.save(self.model, tensors, facts)

    def after_stage(self, stage: int) -> Path:
        """Where the network as it was after a stage is kept, when there are stages."""
        return self.path / "stages" / f"stage-{stage}.safetensors"

    def save_stage(self, stage: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        self.after_stage(stage).parent.mkdir(exist_ok=True)
        checkpoint.save(self.after_stage(stage), tensors, facts)

    def weights(self, stage: int | None = None) -> str | None:
        """Fingerprint of the weights of the run, or of those after a stage; None if they are not kept."""
        file = self.model if stage is None else self.after_stage(stage)
        try:
            return checkpoint.fingerprint(checkpoint.load(file)[0]) if file.exists() else None
        except UserError:
            return "unreadable"  # it differs from every fingerprint

    # ------------------------------------------------------------------------------------------ summary

    def summary(self) -> dict[str, Any]:
        try:
            return dict(json.loads((self.path / "summary.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise UserError(f"{self.path} has no summary.json that can be read; train again, or resume it.") from None

    def summarize(self, summary: dict[str, Any]) -> None:
        checkpoint.write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def reopen(self, epoch: int) -> None:
        """Delete what says that the run is finished, and rename the certificates, whose weights will be gone."""
        self.model.unlink(missing_ok=True)
        (self.path / "summary.json").unlink(missing_ok=True)
        if (self.path / "certify").exists():
            (self.path / "certify").rename(self.path / f"certify-until-epoch-{epoch}")
