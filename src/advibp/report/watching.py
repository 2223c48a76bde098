"""A run while it trains: where it is, how long it will take, and whether anybody is still at it.

All of it is read from the folder, so a run can be watched from another terminal, and from another machine that sees
the same disk.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from advibp.errors import UserError
from advibp.runs.run_files import RunFiles, read_run
from advibp.storage import checkpoint

#: A run stands still when it has no new epoch for this many times the usual time, and no process holds its folder.
PATIENCE = 5
LEAST_PATIENCE = 20.0  # seconds: an epoch of a tenth of one is followed by an evaluation
RECENT = 5  # epochs of a phase whose mean is what the next will take
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_ALWAYS = ("eps", "seconds", "standard_error", "verified_error")


class Left(NamedTuple):
    seconds: float
    least: bool  # a phase is still to come of which no epoch was seen: it may take longer


@dataclass(frozen=True)
class Phase:
    name: str
    ends: int  # the last epoch that is counted to it


@dataclass
class Watched:
    """One run's folder; `look` reads it again if its files have changed."""

    path: Path
    files: RunFiles = field(init=False)
    _seen: tuple[Any, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        seen = tuple(_stamp(self.path / name) for name in ("recipe.yaml", "metrics.jsonl", "summary.json"))
        if seen == self._seen:
            return
        self.files = read_run(self.path)
        _check(self.files)
        self.files.history.sort(key=lambda metrics: int(metrics["epoch"]))
        self._seen = seen

    @property
    def history(self) -> list[dict[str, Any]]:
        return self.files.history

    @property
    def finished(self) -> bool:
        return self.files.summary is not None

    @property
    def done(self) -> int:
        return int(self.history[-1]["epoch"]) if self.history else 0

    @property
    def total(self) -> int:
        return max(epochs_of(self.files), self.done)

    @property
    def phase(self) -> str:
        """Of the epoch that goes on, or of the last one."""
        course = phases(self.files)
        return next((phase.name for phase in course if self.done < phase.ends), course[-1].name)

    def waiting(self) -> float:
        """Seconds since the last epoch was written down, or since the run was begun or resumed."""
        stamps = [_stamp(self.path / name) for name in ("metrics.jsonl", "recipe.yaml")]
        return max(0.0, time.time() - max(stamp[0] / 1e9 for stamp in stamps if stamp)) if any(stamps) else 0.0

    def left(self) -> Left | None:
        """Of the whole run; what of the epoch is over, is over."""
        told = left_after(self.files, self.history)
        return told and Left(max(0.0, told.seconds - min(self.waiting(), usual(self.history))), told.least)

    def late(self) -> bool:
        """No new epoch for much longer than one takes."""
        return not self.finished and self.waiting() > max(LEAST_PATIENCE, PATIENCE * usual(self.history))

    def stands_still(self) -> bool:
        """Late, and nobody is at it. The folder is only tried when it is late: a trial holds it for an instant."""
        return self.late() and not is_held(self.path)


def is_held(folder: Path) -> bool:
    """Whether a process trains there. Where there are no locks nobody seems to."""
    try:
        with checkpoint.held(folder, "training", ()):
            return False
    except UserError:
        return True


def usual(history: Sequence[dict[str, Any]]) -> float:
    """Seconds of an epoch of late; 0 before the first."""
    return float(median(m["seconds"] for m in history[-RECENT:])) if history else 0.0


def epochs_of(files: RunFiles) -> int:
    """All epochs, those of layer-wise stages included; every stage begins a new one."""
    return phases(files)[-1].ends


def phases(files: RunFiles) -> list[Phase]:
    """When each phase ends. An epoch in which one ends and another begins is called after the later one, as it is in
    metrics.jsonl."""
    recipe = files.recipe
    try:
        epochs = float(recipe["epochs"])
        last = math.ceil(epochs)
        spans = [_epochs(recipe.get(key, 0), epochs) for key in ("warmup_natural", "warmup_adversarial", "ramp")]
        stages = _stages(files) * math.ceil(float(recipe.get("stage_epochs", 0)))
        ends = [math.floor(sum(spans[: k + 1]) + 1e-9) for k in range(3)]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"{files.path / 'recipe.yaml'} is damaged: it does not say how many epochs there are; restore it."
        ) from None
    names = ("natural", "adversarial", "ramp")
    told = [Phase(name, min(end, last)) for name, end in zip(names, ends, strict=True)]
    return [*told, Phase("full", last), Phase("latent", last + stages)]


def _stages(files: RunFiles) -> int:
    """How many there are; of all layers those that were begun, for only the network knows how many it has."""
    said = files.recipe.get("stages", 0)
    return max((int(m.get("stage", 0)) for m in files.history), default=0) if said == "all" else int(said)


def left_after(files: RunFiles, history: Sequence[dict[str, Any]]) -> Left | None:
    """Seconds of the epochs to come: those of a phase take what its last ones took; None before the first."""
    if not history:
        return None
    took: dict[str, list[float]] = {}
    for metrics in history:
        took.setdefault(str(metrics["phase"]), []).append(float(metrics["seconds"]))
    at, seconds, least = int(history[-1]["epoch"]), 0.0, files.recipe.get("stages") == "all"
    known = took[str(history[-1]["phase"])]
    for phase in phases(files):
        to_come = max(0, phase.ends - at)
        at += to_come
        if to_come:
            least |= phase.name in ("adversarial", "ramp") and phase.name not in took  # the others cost no more
            known = took.get(phase.name, known)
            seconds += to_come * mean(known[-RECENT:])
    return Left(seconds, least)


def sparkline(values: Sequence[float | None], width: int, bars: str = BLOCKS) -> str:
    """Values from low to high, each as high as its bar; more than fit are averaged, a gap stays one."""
    values = _fitting(values, width)
    finite = [v for v in values if v is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if v is None else bars[round((v - low) * scale)] for v in values)


def _fitting(values: Sequence[float | None], width: int) -> list[float | None]:
    """As many values as fit; what is no number is none."""
    plain = [v if v is not None and math.isfinite(v) else None for v in values]
    if len(plain) <= width:
        return plain
    cuts = [round(k * len(plain) / width) for k in range(width + 1)]
    bins = [[v for v in plain[a:b] if v is not None] for a, b in pairwise(cuts)]
    return [mean(held) if held else None for held in bins]


def _epochs(span: Any, of: float) -> float:
    """A span of a recipe: epochs, or "35%" of them."""
    return float(span[:-1]) / 100 * of if isinstance(span, str) and span.endswith("%") else float(span)


def _stamp(file: Path) -> tuple[int, int] | None:
    try:
        told = file.stat()
    except FileNotFoundError:
        return None
    return told.st_mtime_ns, told.st_size


def _check(files: RunFiles) -> None:
    phases(files)
    for metrics in files.history:
        if "phase" not in metrics or not all(isinstance(metrics.get(key), int | float) for key in _ALWAYS):
            raise UserError(
                f"{files.path / 'metrics.jsonl'} is damaged: epoch {metrics['epoch']} lacks phase, "
                f"{', '.join(_ALWAYS)}, or one of them; mend or delete it."
            )
