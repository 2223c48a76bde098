"""Runs that are wanted become runs that are measured: found, copied, continued or trained, then certified.

A finished run is never trained again, and what its certification has said is not asked again.
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
from advibp.reproduce.wanted import SETTINGS, Ask, Look, Wanted
from advibp.runs import open_run
from advibp.runs.resuming import WHERE, recipe_of
from advibp.runs.run_files import Certification, Errors, RunFiles, read_run
from advibp.runs.sweep import DataCache, evaluate, train_or_open
from advibp.runs.training_display import Display, Silent
from advibp.storage.run_folder import RunFolder
from advibp.verify.verifiers import in_order

#: Recipe keys that are ignored when matching an existing run. Unlike when a run is resumed, data must be the same.
_WHERE = tuple(key for key in WHERE if key != "data")
How = Literal["reuse", "certify", "copy", "partial", "continue", "train"]


@dataclass(frozen=True)
class Measured:
    """A run that was wanted, and what its looks saw."""

    wanted: Wanted
    path: Path
    looks: dict[str, Certification]  # by their folders; of a partial run those of its stages
    how: How

    @cached_property
    def run(self) -> RunFiles:
        """Read once, when all that is wanted of it has been measured."""
        return read_run(self.path)

    def errors(self, eps: float, folder: str = "certify") -> Errors:
        """In percent. Radii are told apart as far as a summary tells them."""
        certified = self.looks[folder]
        return certified.errors(next(e for e in certified.eps if f"{e:g}" == f"{eps:g}"))

    @property
    def epochs(self) -> int:
        """All of them, stages included; a run that is kept for its numbers may have no metrics."""
        summary = self.run.summary or {}
        return len(self.run.history) or int((summary.get("validation") or {}).get("epoch", 0))

    @property
    def seconds(self) -> float:
        return float((self.run.summary or {}).get("seconds", 0.0))


@dataclass(frozen=True)
class Found:
    """Where a wanted run is, or will be, and what has to be done for it."""

    how: How
    path: Path
    epochs: int = 0  # that are finished
    looks: tuple[Look, ...] = ()  # of a partial run: those that it can answer

    @property
    def says(self) -> str:
        return {
            "reuse": f"reused: {self.path}",
            "certify": f"reused and certified: {self.path}",
            "copy": f"copied and certified: {self.path}",
            "partial": f"reused up to stage {len(self.looks) - 1}: {self.path}",
            "continue": f"continued after epoch {self.epochs}",
            "train": "trained",
        }[self.how]


@dataclass
class Work:
    """Carries out what was asked for."""

    ask: Ask
    tell: Callable[[str], None] = lambda line: None
    show: Callable[[], Display] = Silent
    loads_data: bool = True  # False for a dry run

    @cached_property
    def load(self) -> Callable[[Recipe], Data]:
        return DataCache()

    def find(self, wanted: Wanted) -> Found:
        own = RunFolder(self.ask.out / wanted.name)
        elsewhere = [folder for folder, keys in self._elsewhere if not _differs(keys, wanted.recipe)]
        mine = [own] if own.exists else []
        for folder in mine:
            if key := _differs(recipe_of(folder).as_dict(), wanted.recipe):
                raise UserError(f"{own.path} holds a run with another {key} than is wanted; choose another --out.")
        for folder in (*mine, *elsewhere):
            if _ended(folder) and all(self._seen(folder.path, look, wanted.recipe) for look in wanted.looks):
                return Found("reuse", folder.path)
        for folder in (*mine, *elsewhere):
            if _has_weights(folder, wanted.looks):
                return Found("certify" if folder is own else "copy", folder.path)
        if own.has_weights:
            return Found("continue", own.path, len(own.history()))
        return (self._find_partial(wanted) if wanted.partial else None) or Found("train", own.path)

    def _find_partial(self, wanted: Wanted) -> Found | None:
        """Elsewhere, the run that answers most of the looks, from the first one on; its number of stages may differ."""
        same = [folder for folder, keys in self._recipes if not _differs(keys, wanted.recipe, but=("stages",))]
        found = [Found("partial", folder.path, looks=self._answered(folder, wanted)) for folder in same]
        best = max(found, key=lambda one: len(one.looks), default=None)
        return best if best and best.looks else None

    def _answered(self, folder: RunFolder, wanted: Wanted) -> tuple[Look, ...]:
        def answers(look: Look) -> bool:
            return _has_weights_of(folder, look) or self._seen(folder.path, look, wanted.recipe) is not None

        return tuple(takewhile(answers, wanted.looks))

    def measure(self, wanted: Wanted, found: Found | None = None) -> Measured:
        found = found or self.find(wanted)
        path = self.ask.out / wanted.name if found.how == "copy" else found.path
        if found.how == "copy":
            _copy(found.path, path)
        elif found.how == "partial" and not all(self._seen(path, look, wanted.recipe) for look in found.looks):
            path = self.ask.out / f"{wanted.name}-partial"
            _copy_stages(found.path, path, found.looks)
        elif found.how in ("train", "continue"):
            train_or_open(wanted.recipe, self.load(wanted.recipe), path, show=self.show())
        looks = {}
        for look in found.looks if found.how == "partial" else wanted.looks:
            seen = self._seen(path, look, wanted.recipe)
            looks[look.folder] = seen or self._look(path, look, wanted.recipe)
        return Measured(wanted, path, looks, found.how)

    @property
    def _elsewhere(self) -> list[tuple[RunFolder, dict[str, Any]]]:
        """Finished runs of the other folders, and their recipes."""
        return [(folder, keys) for folder, keys in self._recipes if _ended(folder)]

    @cached_property
    def _recipes(self) -> list[tuple[RunFolder, dict[str, Any]]]:
        """All runs of the other folders, and their recipes."""
        found = []
        for folder in self.ask.folders[1:]:
            if not folder.is_dir():
                raise UserError(f"{folder} is no folder; --reuse takes folders whose sub-folders are runs.")
            for run in _runs_in(folder):
                try:
                    found.append((run, recipe_of(run).as_dict()))
                except UserError as error:
                    self.tell(f"passed over: {error}")
        return found

    def _seen(self, path: Path, look: Look, recipe: Recipe) -> Certification | None:
        """What an earlier certification said, if it answers what is asked."""
        said = _said(path / look.folder)
        asked = look.evaluation
        answers = (
            said is not None
            and said.get("weights", "") in ("", RunFolder(path).fingerprint(look.stage) or said.get("weights"))
            and set(in_order(asked.by)) <= set(said["by"])
            and (len(said["by"]) == 1 or "flow" in said)
            and said["attack"] == str(asked.attack)
            and said["images"] == (asked.sample or self._test_images(recipe) or said["images"])
            and said.get("sample") == asked.sample
            and asked.arithmetic in (None, "real", said.get("arithmetic", "real"))
            and (asked.sample is None or said.get("seed", 0) == 0)  # a sample of another seed is of other images
            and (asked.budget is None or (said.get("budget") or asked.budget) >= asked.budget)
            and {f"{eps:g}" for eps in asked.eps} <= said["percent"].keys()
        )
        return Certification(path / look.folder, said, [], []) if said is not None and answers else None

    def _test_images(self, recipe: Recipe) -> int | None:
        """How many there are; None if that is unknown until the data are loaded, and they may not be."""
        known = {row.name: row.images for row in ROWS}
        if recipe.data in known:
            return known[recipe.data][1]
        return len(self.load(recipe).test) if self.loads_data else None

    def _look(self, path: Path, look: Look, recipe: Recipe) -> Certification:
        asked, out = look.evaluation, path / look.folder
        self.tell(f"certifying {path.name} ({look.folder})")
        said, eps = _said(out), list(asked.eps)
        if said and (said["attack"], said.get("sample")) == (str(asked.attack), asked.sample):
            # The summary is written anew, and must not lose what it said.
            known = {f"{e:g}" for e in eps}
            eps += [_radius(e, recipe) for e in said["percent"] if e not in known]
        images = self.load(recipe).test
        certificate = evaluate(self._net(path, look.stage), images, asked, sorted(eps), out, self.ask.command)
        for name in in_order(asked.by):
            if any(name not in certificate.asked(e, asked.by) for e in asked.eps):
                raise UserError(
                    f"{out} holds proofs by others of images that {name} was not asked about, so that nobody knows "
                    f"what {name} proves; move it away, and reproduce again."
                )
        return Certification(out, _said(out) or {}, certificate.records, [])

    def _net(self, path: Path, stage: int | None) -> nn.Module:
        where = self.ask.where
        if where.get("threads"):
            torch.set_num_threads(int(where["threads"]))
        return open_run(path, stage=stage).net.to(resolve_device(str(where.get("device", "auto"))))


def _radius(said: str, recipe: Recipe) -> float:
    """A summary tells eps in six digits."""
    every = [recipe.eps, *(eps for setting in SETTINGS.values() for eps in setting.eps)]
    return next((eps for eps in every if f"{eps:g}" == said), float(said))


def _runs_in(folder: Path) -> Iterator[RunFolder]:
    for path in sorted(folder.iterdir()):
        if (run := RunFolder(path)).exists:
            yield run


def finished_runs(folders: Sequence[Path]) -> list[RunFiles]:
    """All finished runs of some folders, those that can't be read left out."""
    found = []
    for folder in folders:
        for run in filter(_ended, _runs_in(folder)) if folder.is_dir() else ():
            try:
                found.append(read_run(run.path))
            except UserError:
                continue
    return found


def _differs(keys: dict[str, Any], recipe: Recipe, but: tuple[str, ...] = ()) -> str:
    """A key in which a recipe is another one, or nothing; `but`: keys that may differ."""
    asked = recipe.as_dict()
    same = (*_WHERE, *but)
    return next((key for key, value in asked.items() if key not in same and keys.get(key) != value), "")


def _ended(folder: RunFolder) -> bool:
    return (folder.path / "summary.json").exists()


def _has_weights(folder: RunFolder, looks: Sequence[Look]) -> bool:
    return folder.finished and all(_has_weights_of(folder, look) for look in looks)


def _has_weights_of(folder: RunFolder, look: Look) -> bool:
    return (folder.model if look.stage is None else folder.stage_file(look.stage)).exists()


#: What a summary must say, and how.
_SAYS = {"by": list, "attack": str, "images": int, "percent": dict}


def _said(folder: Path) -> dict[str, Any] | None:
    """The summary of a certification; None if there is none that can be read."""
    try:
        said = json.loads((folder / "summary.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    whole = isinstance(said, dict) and all(isinstance(said.get(key), kind) for key, kind in _SAYS.items())
    return said if whole else None


def _copy(source: Path, target: Path) -> None:
    """A finished run with its weights and records; what says that it is finished comes last."""
    left_out = shutil.ignore_patterns("checkpoints", "events", "summary.json")
    shutil.copytree(
        source,
        target,
        ignore=lambda at, names: left_out(at, names) if at == str(source) else set(),
        dirs_exist_ok=True,
    )
    shutil.copyfile(source / "summary.json", target / "summary.json")


def _copy_stages(source: Path, target: Path, looks: Sequence[Look]) -> None:
    """Of a run that may be unfinished, what is needed to certify it at some stages; it can't be trained on."""
    at, to = RunFolder(source), RunFolder(target)
    to.stage_file(0).parent.mkdir(parents=True, exist_ok=True)
    files = [(at.path / name, to.path / name) for name in ("recipe.yaml", "metrics.jsonl")]
    files += [(at.stage_file(look.stage), to.stage_file(look.stage)) for look in looks if look.stage is not None]
    for file, copy in files:
        if file.exists():
            shutil.copyfile(file, copy)
    for look in looks:
        if (source / look.folder).is_dir():
            shutil.copytree(source / look.folder, target / look.folder, dirs_exist_ok=True)


def check_kept(wanted: Sequence[Wanted], folder: Path) -> None:
    """Refuse, before anything is trained, a folder in which another run has the name of one that will be kept."""
    for one in wanted:
        there = RunFolder(folder / one.name)
        if there.exists and (key := _differs(recipe_of(there).as_dict(), one.recipe)):
            raise UserError(f"{there.path} holds a run with another {key}; give another folder to --keep.")


def keep(measured: Sequence[Measured], folder: Path) -> None:
    """Of each run what tables are made of: recipe, summaries and metrics, without weights and records."""
    for one in measured:
        name = f"{one.wanted.name}-partial" if one.how == "partial" else one.wanted.name
        source, target = one.path, folder / name
        names = ["recipe.yaml", "summary.json", "metrics.jsonl"]
        names += [str(path.relative_to(source)) for path in sorted(source.glob("certify*/summary.json"))]
        for file in names:
            if (source / file).resolve() == (target / file).resolve() or not (source / file).exists():
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file, target / file)
