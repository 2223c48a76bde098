"""Provide the runs of a plan: find, copy, continue or train them, then certify them.

Finished runs are not trained again, and certifications that answer the plan are reused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from advibp.data import Data
from advibp.data.fetch.catalogue import ROWS
from advibp.errors import UserError
from advibp.execution.device import resolve_device
from advibp.recipe import Recipe
from advibp.reproduce.run_specs import SETTINGS, Ask, RunSpec, Task
from advibp.runs import open_run
from advibp.runs.resuming import MAY_DIFFER, recipe_of, with_stored_split
from advibp.runs.run_files import Certification, Errors, RunFiles, read_run
from advibp.runs.sweep import DataCache, evaluate, train_or_open
from advibp.runs.training_display import Display, Silent
from advibp.storage.run_folder import RunFolder
from advibp.verify.verifiers import in_order

#: Recipe keys that are ignored when matching an existing run. Unlike when a run is resumed, data must be the same.
_MAY_DIFFER = tuple(key for key in MAY_DIFFER if key != "data")
How = Literal["reuse", "certify", "copy", "partial", "continue", "train"]


@dataclass(frozen=True)
class Measured:
    """A run of a plan with its certifications."""

    spec: RunSpec
    path: Path
    tasks: dict[str, Certification]  # by folder; a partial run has only those of its layer-wise stages
    how: How

    @cached_property
    def run(self) -> RunFiles:
        """Contents of the folder. Use it only after all certifications are done."""
        return read_run(self.path)

    def errors(self, eps: float, folder: str = "certify") -> Errors:
        """Return the errors in percent. Radii are compared with six digits, as summaries store them."""
        certified = self.tasks[folder]
        return certified.errors(next(e for e in certified.eps if f"{e:g}" == f"{eps:g}"))

    @property
    def epochs(self) -> int:
        """Number of epochs, including layer-wise stages. An archived run may have no metrics."""
        summary = self.run.summary or {}
        return len(self.run.history) or int((summary.get("validation") or {}).get("epoch", 0))

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return float((self.run.summary or {}).get("seconds", 0.0))


@dataclass(frozen=True)
class Found:
    """Where a run is or will be, and what has to be done."""

    how: How
    path: Path
    epochs: int = 0  # finished epochs
    tasks: tuple[Task, ...] = ()  # of a partial run: the certifications that it can provide

    @property
    def description(self) -> str:
        return {
            "reuse": f"reused: {self.path}",
            "certify": f"reused and certified: {self.path}",
            "copy": f"copied and certified: {self.path}",
            "partial": f"reused up to stage {len(self.tasks) - 1}: {self.path}",
            "continue": f"continued after epoch {self.epochs}",
            "train": "trained",
        }[self.how]


@dataclass
class Work:
    """Provides the runs of a plan.

    Attributes:
        ask: the user's options.
        tell: prints a line about the progress.
        show: returns the display of a training.
        loads_data: False for a dry run.

    Examples:
        >>> from advibp.reproduce import Ask, Work, make
        >>> made = make("gradient-cases", Work(Ask(scale="tiny")))
        >>> made.sections[0].title
        'Three cases of g_final'
    """

    ask: Ask
    tell: Callable[[str], None] = lambda line: None
    show: Callable[[], Display] = Silent
    loads_data: bool = True

    @cached_property
    def load(self) -> Callable[[Recipe], Data]:
        return DataCache()

    def find(self, spec: RunSpec) -> Found:
        """Decide how to provide a run. Nothing is written."""
        target = RunFolder(self.ask.out / spec.name)
        others = [folder for folder, keys in self._finished_others if not _differs(keys, spec.recipe)]
        existing = [target] if target.exists else []
        for folder in existing:
            if key := _differs(recipe_of(folder).as_dict(), spec.recipe):
                raise UserError(f"{target.path} has a run with another {key}; choose another --out.")
        for folder in (*existing, *others):
            if _ended(folder) and all(self._stored(folder.path, task, spec.recipe) for task in spec.tasks):
                return Found("reuse", folder.path)
        for folder in (*existing, *others):
            if _has_weights(folder, spec.tasks):
                return Found("certify" if folder is target else "copy", folder.path)
        if target.has_weights:
            return Found("continue", target.path, len(target.history()))
        return (self._find_partial(spec) if spec.partial else None) or Found("train", target.path)

    def _find_partial(self, spec: RunSpec) -> Found | None:
        """Find the run in other folders with most of the layer-wise stages; its number of stages may differ."""
        same = [folder for folder, keys in self._others if not _differs(keys, spec.recipe, but=("stages",))]
        candidates = [Found("partial", folder.path, tasks=self._available(folder, spec)) for folder in same]
        best = max(candidates, key=lambda one: len(one.tasks), default=None)
        return best if best and best.tasks else None

    def _available(self, folder: RunFolder, spec: RunSpec) -> tuple[Task, ...]:
        def is_available(task: Task) -> bool:
            return _has_weights_of(folder, task) or self._stored(folder.path, task, spec.recipe) is not None

        return tuple(takewhile(is_available, spec.tasks))

    def measure(self, spec: RunSpec, found: Found | None = None) -> Measured:
        """Provide a run: copy, continue or train it, and certify it."""
        found = found or self.find(spec)
        path = self.ask.out / spec.name if found.how == "copy" else found.path
        if found.how == "copy":
            _copy(found.path, path)
        elif found.how == "partial" and not all(self._stored(path, task, spec.recipe) for task in found.tasks):
            path = self.ask.out / f"{spec.name}-partial"
            _copy_stages(found.path, path, found.tasks)
        elif found.how in ("train", "continue"):
            recipe = with_stored_split(RunFolder(path), spec.recipe)
            train_or_open(recipe, self.load(recipe), path, show=self.show())
        tasks = {}
        for task in found.tasks if found.how == "partial" else spec.tasks:
            stored = self._stored(path, task, spec.recipe)
            tasks[task.folder] = stored or self._certify(path, task, spec.recipe)
        return Measured(spec, path, tasks, found.how)

    @property
    def _finished_others(self) -> list[tuple[RunFolder, dict[str, Any]]]:
        """Finished runs in the --reuse folders, and their recipes."""
        return [(folder, keys) for folder, keys in self._others if _ended(folder)]

    @cached_property
    def _others(self) -> list[tuple[RunFolder, dict[str, Any]]]:
        """All runs in the --reuse folders, and their recipes."""
        runs = []
        for folder in self.ask.folders[1:]:
            if not folder.is_dir():
                raise UserError(f"{folder} is not a folder; give --reuse folders whose sub-folders are runs.")
            for run in _runs_in(folder):
                try:
                    runs.append((run, recipe_of(run).as_dict()))
                except UserError as error:
                    self.tell(f"skipped: {error}")
        return runs

    def _stored(self, path: Path, task: Task, recipe: Recipe) -> Certification | None:
        """Return an existing certification if it has all that the plan needs."""
        summary = _read_summary(path / task.folder)
        needed = task.evaluation
        sufficient = (
            summary is not None
            and summary.get("weights", "") in ("", RunFolder(path).fingerprint(task.stage) or summary.get("weights"))
            and set(in_order(needed.by)) <= set(summary["by"])
            and (len(summary["by"]) == 1 or "flow" in summary)
            and summary["attack"] == str(needed.attack)
            and summary["images"] == (needed.sample or self._test_images(recipe) or summary["images"])
            and summary.get("sample") == needed.sample
            and needed.arithmetic in (None, "real", summary.get("arithmetic", "real"))
            and (needed.sample is None or summary.get("seed", 0) == 0)  # another seed draws other images
            and (needed.budget is None or (summary.get("budget") or needed.budget) >= needed.budget)
            and {f"{eps:g}" for eps in needed.eps} <= summary["percent"].keys()
        )
        return Certification(path / task.folder, summary, [], []) if summary is not None and sufficient else None

    def _test_images(self, recipe: Recipe) -> int | None:
        """Return the number of test images; None if the data would have to be loaded in a dry run."""
        known = {row.name: row.images for row in ROWS}
        if recipe.data in known:
            return known[recipe.data][1]
        return len(self.load(recipe).test) if self.loads_data else None

    def _certify(self, path: Path, task: Task, recipe: Recipe) -> Certification:
        evaluation, out = task.evaluation, path / task.folder
        self.tell(f"certifying {path.name} ({task.folder})")
        summary, eps = _read_summary(out), list(evaluation.eps)
        if summary and (summary["attack"], summary.get("sample")) == (str(evaluation.attack), evaluation.sample):
            # The summary will be overwritten: include the radii that it has.
            known = {f"{e:g}" for e in eps}
            eps += [_radius(e, recipe) for e in summary["percent"] if e not in known]
        data, net, command = self.load(recipe), self._net(path, task.stage), self.ask.command
        around = recipe.perturbation(data)
        certificate = evaluate(net, data.test, evaluation, sorted(eps), out, command, around)
        for name in in_order(evaluation.by):
            if any(name not in certificate.verifiers(e, evaluation.by) for e in evaluation.eps):
                raise UserError(
                    f"{out} has images that other verifiers proved before {name} was tried, so that the error of "
                    f"{name} alone is unknown; move that folder away, and reproduce again."
                )
        return Certification(out, _read_summary(out) or {}, certificate.records, [])

    def _net(self, path: Path, stage: int | None) -> nn.Module:
        where = self.ask.where
        if where.get("threads"):
            torch.set_num_threads(int(where["threads"]))
        return open_run(path, stage=stage).net.to(resolve_device(str(where.get("device", "auto"))))


def _radius(text: str, recipe: Recipe) -> float:
    """Return the exact eps that a summary has with six digits."""
    known = [recipe.eps, *(eps for setting in SETTINGS.values() for eps in setting.eps)]
    return next((eps for eps in known if f"{eps:g}" == text), float(text))


def _runs_in(folder: Path) -> Iterator[RunFolder]:
    for path in sorted(folder.iterdir()):
        if (run := RunFolder(path)).exists:
            yield run


def finished_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """Read all finished runs in some folders. Damaged runs are skipped."""
    runs = []
    for folder in folders:
        for run in filter(_ended, _runs_in(folder)) if folder.is_dir() else ():
            try:
                runs.append(read_run(run.path))
            except UserError:
                continue
    return runs


def _differs(keys: dict[str, Any], recipe: Recipe, but: tuple[str, ...] = ()) -> str:
    """Return the first key in which a recipe differs, "" if there is none; the keys `but` are ignored."""
    ignored = (*_MAY_DIFFER, *but)
    if recipe.validation == "auto":
        ignored = (*ignored, "validation")
    return next((key for key, value in recipe.as_dict().items() if key not in ignored and keys.get(key) != value), "")


def _ended(folder: RunFolder) -> bool:
    return (folder.path / "summary.json").exists()


def _has_weights(folder: RunFolder, tasks: Sequence[Task]) -> bool:
    return folder.finished and all(_has_weights_of(folder, task) for task in tasks)


def _has_weights_of(folder: RunFolder, task: Task) -> bool:
    return (folder.model if task.stage is None else folder.stage_file(task.stage)).exists()


#: Required keys of a summary, and their types.
_SUMMARY_TYPES = {"by": list, "attack": str, "images": int, "percent": dict}


def _read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a certification; None if it is missing or damaged."""
    try:
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    valid = isinstance(summary, dict) and all(isinstance(summary.get(k), kind) for k, kind in _SUMMARY_TYPES.items())
    return summary if valid else None


def _copy(source: Path, target: Path) -> None:
    """Copy a finished run with its weights and records; summary.json, which marks it as finished, comes last."""
    omitted = shutil.ignore_patterns("checkpoints", "events", "summary.json")
    shutil.copytree(
        source,
        target,
        ignore=lambda at, names: omitted(at, names) if at == str(source) else set(),
        dirs_exist_ok=True,
    )
    shutil.copyfile(source / "summary.json", target / "summary.json")


def _copy_stages(source: Path, target: Path, tasks: Sequence[Task]) -> None:
    """Copy the weights after some layer-wise stages of a run, which may be unfinished. The copy can't be resumed."""
    at, to = RunFolder(source), RunFolder(target)
    to.stage_file(0).parent.mkdir(parents=True, exist_ok=True)
    files = [(at.path / name, to.path / name) for name in ("recipe.yaml", "metrics.jsonl")]
    files += [(at.stage_file(task.stage), to.stage_file(task.stage)) for task in tasks if task.stage is not None]
    for file, copy in files:
        if file.exists():
            shutil.copyfile(file, copy)
    for task in tasks:
        if (source / task.folder).is_dir():
            shutil.copytree(source / task.folder, target / task.folder, dirs_exist_ok=True)


def check_kept(specs: Sequence[RunSpec], folder: Path) -> None:
    """Raise a UserError if `folder` has another run with the name of one that will be copied there."""
    for one in specs:
        existing = RunFolder(folder / one.name)
        if existing.exists and (key := _differs(recipe_of(existing).as_dict(), one.recipe)):
            raise UserError(f"{existing.path} has a run with another {key}; give another folder to --keep.")


def keep(measured: Sequence[Measured], folder: Path) -> None:
    """Copy recipe, summaries and metrics of each run, without weights and records."""
    for one in measured:
        name = f"{one.spec.name}-partial" if one.how == "partial" else one.spec.name
        source, target = one.path, folder / name
        names = ["recipe.yaml", "summary.json", "metrics.jsonl"]
        names += [str(path.relative_to(source)) for path in sorted(source.glob("certify*/summary.json"))]
        for file in names:
            if (source / file).resolve() == (target / file).resolve() or not (source / file).exists():
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, target / file)
