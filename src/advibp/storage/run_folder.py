"""Low-level access to the files of a run's folder. To read the results of a run, use `advibp.read_run`.

    recipe.yaml  sources.json  metrics.jsonl  events/  checkpoints/  model.safetensors  stages/  summary.json  certify/

metrics.jsonl is appended to; all other files are written atomically. If the process is killed, no finished work is
lost. This module stores plain mappings and tensors; the package `runs` interprets them.
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
        """File of the trained weights."""
        return self.path / "model.safetensors"

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        """File of the metrics, one line per epoch."""
        return self.path / "metrics.jsonl"

    @property
    def exists(self) -> bool:
        """Whether the folder contains a run."""
        return (self.path / "recipe.yaml").exists()

    @property
    def has_weights(self) -> bool:
        """Whether there are weights to continue from."""
        return bool(checkpoint.newest(self.checkpoints)) or self.model.exists()

    @property
    def finished(self) -> bool:
        """Whether the training is finished."""
        return self.model.exists() and (self.path / "summary.json").exists()

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder for this process."""
        return checkpoint.lock(self.path, "training", (self.path, self.checkpoints, self.path / "stages"))

    # ------------------------------------------------------------------------------------------ recipe

    def recipe(self) -> dict[str, Any]:
        """Return the keys of recipe.yaml."""
        file = self.path / "recipe.yaml"
        try:
            loaded = from_yaml(file.read_text("utf-8"))
        except OSError:
            raise UserError(
                f"{self.path} is not a run: {file} is missing; give the folder of a run from `advibp train --out`."
            ) from None
        except (yaml.YAMLError, UnicodeDecodeError):
            raise UserError(
                f"{file} is damaged: it is not valid YAML; restore it, or train again into another folder."
            ) from None
        if not isinstance(loaded, dict):
            raise UserError(f"{file} is damaged: it is not a recipe; restore it, or train again into another folder.")
        return {str(key): value for key, value in loaded.items()}

    def create(self, recipe: str) -> None:
        """Create the folder of a new run; `recipe` is the text of recipe.yaml."""
        if self.has_weights:
            raise UserError(f"{self.path} has a run without recipe.yaml; restore that file, or choose another --out.")
        try:
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            self.write_recipe(recipe)
        except OSError as error:
            raise UserError(f"{self.path} can't be written ({error.strerror}); choose another --out.") from None

    def write_recipe(self, recipe: str) -> None:
        """Write recipe.yaml."""
        checkpoint.write_atomically(self.path / "recipe.yaml", recipe)

    def sources(self) -> dict[str, Any]:
        """Return sources.json; {} for folders of earlier versions."""
        file = self.path / "sources.json"
        try:
            content = json.loads(file.read_text("utf-8")) if file.exists() else {}
            if isinstance(content, dict) and all(isinstance(part, dict) for part in content.values()):
                return content
        except (OSError, ValueError, RecursionError):
            pass
        raise UserError(f"{file} is damaged; restore it, or delete it and pass --data and --net.")

    def write_sources(self, sources: dict[str, Any]) -> None:
        """Write sources.json: where data and network come from."""
        checkpoint.write_atomically(self.path / "sources.json", json.dumps(sources, indent=2) + "\n")

    # ------------------------------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, steps: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save a checkpoint. Older ones are deleted, except the last KEPT_CHECKPOINTS and the best epoch's weights."""
        checkpoint.save(self.checkpoints / checkpoint.file_name(steps), tensors, facts)
        checkpoint.prune(self.checkpoints, KEPT_CHECKPOINTS)
        best = facts.get("best")
        for file in self.checkpoints.glob("best-*.safetensors"):
            if best is None or file != self.best(best["epoch"]):
                file.unlink()

    def best(self, epoch: int) -> Path:
        """Return the file of the best epoch's weights, with select=best."""
        return self.checkpoints / f"best-{epoch:05d}.safetensors"

    # ------------------------------------------------------------------------------------------ metrics

    def log(self, metrics: dict[str, Any]) -> None:
        """Append the metrics of one epoch."""
        with self.metrics.open("a") as file:
            file.write(json.dumps(metrics) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def history(self) -> list[dict[str, Any]]:
        """Return the metrics of the finished epochs. An incomplete last line is skipped."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        try:
            epochs = [json.loads(line) for line in lines]
            named = [{**with_current_names(metrics), "epoch": int(metrics["epoch"])} for metrics in epochs]
            return sorted(named, key=lambda m: m["epoch"])
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            raise UserError(
                f"{self.metrics} is damaged: a line does not have the metrics of an epoch; correct or delete it."
            ) from None

    def truncate_history(self, epoch: int) -> None:
        """Delete the metrics of later epochs, which will be trained and logged again."""
        remaining = [m for m in self.history() if m["epoch"] <= epoch]
        checkpoint.write_atomically(self.metrics, "".join(json.dumps(m) + "\n" for m in remaining))

    # ------------------------------------------------------------------------------------------ trained weights

    def load_model(self, stage: int | None = None) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Load the trained weights, or those after a layer-wise stage, and their facts: input_shape and classes."""
        file = self.model if stage is None else self.stage_file(stage)
        if not file.exists():
            raise UserError(
                f"{self.path} is not finished: {file.name} is missing; run `advibp train --resume --out {self.path}`."
                if stage is None
                else f"{self.path} has no layer-wise stage {stage}; give the number of a stage that was trained."
            )
        tensors, facts = checkpoint.load(file)
        if not {"input_shape", "classes"} <= facts.keys():
            raise UserError(f"{file} is not the trained model of a run; train again.")
        return tensors, facts

    def save_model(self, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the trained weights."""
        checkpoint.save(self.model, tensors, facts)

    def stage_file(self, stage: int) -> Path:
        """Return the file of the weights after a layer-wise stage."""
        return self.path / "stages" / f"stage-{stage}.safetensors"

    def save_stage(self, stage: int, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
        """Save the weights after a layer-wise stage."""
        self.stage_file(stage).parent.mkdir(exist_ok=True)
        checkpoint.save(self.stage_file(stage), tensors, facts)

    def fingerprint(self, stage: int | None = None) -> str | None:
        """Return the fingerprint of the trained weights, or of those after a stage; None if the file is missing."""
        file = self.model if stage is None else self.stage_file(stage)
        try:
            return checkpoint.fingerprint(checkpoint.load(file)[0]) if file.exists() else None
        except UserError:
            return "unreadable"  # differs from every fingerprint

    # ------------------------------------------------------------------------------------------ summary

    def summary(self) -> dict[str, Any]:
        """Return summary.json."""
        try:
            return dict(json.loads((self.path / "summary.json").read_text()))
        except (OSError, ValueError, TypeError):
            raise UserError(f"{self.path} has no valid summary.json; resume the run, or train again.") from None

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write summary.json."""
        checkpoint.write_atomically(self.path / "summary.json", json.dumps(summary, indent=2) + "\n")

    def reopen(self, epoch: int) -> None:
        """Mark a finished run as unfinished, and rename its certificates, which are about the old weights."""
        self.model.unlink(missing_ok=True)
        (self.path / "summary.json").unlink(missing_ok=True)
        if (self.path / "certify").exists():
            (self.path / "certify").rename(self.path / f"certify-until-epoch-{epoch}")
