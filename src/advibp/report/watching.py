"""Follows a run while it trains: its phase, the remaining time, and whether a process still trains it.

Everything is read from the folder, so a run can be watched from any terminal or machine with access to it.
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

#: A run is late if it has had no new epoch for this many times the usual time, and stalled if no process trains it.
PATIENCE = 5
LEAST_PATIENCE = 20.0  # seconds, because an evaluation follows even a short epoch
RECENT = 5  # epochs of a phase whose mean time estimates the next epoch
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.:-=+*#"
_ALWAYS = ("eps", "seconds", "standard_error", "verified_error")


class Remaining(NamedTuple):
    """Estimated time to the end of a run."""

    seconds: float
    least: bool  # whether it may take longer, because no epoch of a later phase has been timed


@dataclass(frozen=True)
class Phase:
    """A phase of training."""

    name: str
    ends: int  # its last epoch


@dataclass
class Watched:
    """The folder of a run. `look` reads it again if its files have changed."""

    path: Path
    files: RunFiles = field(init=False)
    _seen: tuple[Any, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.look()

    def look(self) -> None:
        """Read the files if they have changed."""
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
        """The phase of the current epoch, or of the last one."""
        course = phases(self.files)
        return next((phase.name for phase in course if self.done < phase.ends), course[-1].name)

    def waiting(self) -> float:
        """Seconds since the last epoch was logged, or since the run was started or resumed."""
        stamps = [_stamp(self.path / name) for name in ("metrics.jsonl", "recipe.yaml")]
        return max(0.0, time.time() - max(stamp[0] / 1e9 for stamp in stamps if stamp)) if any(stamps) else 0.0

    def remaining(self) -> Remaining | None:
        """Remaining time of the run, less the time since the last epoch. None before the first epoch."""
        after = remaining_after(self.files, self.history)
        return after and Remaining(max(0.0, after.seconds - min(self.waiting(), usual(self.history))), after.least)

    def late(self) -> bool:
        """Whether there has been no new epoch for much longer than an epoch takes."""
        return not self.finished and self.waiting() > max(LEAST_PATIENCE, PATIENCE * usual(self.history))

    def is_stalled(self) -> bool:
        """Whether the run is late and no process trains it. The second check locks the folder for a moment."""
        return self.late() and not is_training(self.path)


def is_training(folder: Path) -> bool:
    """Whether a process trains in the folder. Always False on file systems without locks."""
    try:
        with checkpoint.lock(folder, "training", ()):
            return False
    except UserError:
        return True


def usual(history: Sequence[dict[str, Any]]) -> float:
    """Median seconds of the last epochs; 0 before the first."""
    return float(median(m["seconds"] for m in history[-RECENT:])) if history else 0.0


def epochs_of(files: RunFiles) -> int:
    """Number of all epochs, including layer-wise stages. Every stage starts a new epoch."""
    return phases(files)[-1].ends


def phases(files: RunFiles) -> list[Phase]:
    """The last epoch of each phase. An epoch that two phases share belongs to the later one, as in metrics.jsonl."""
    recipe = files.recipe
    try:
        epochs = float(recipe["epochs"])
        last = math.ceil(epochs)
        planned = float((recipe.get("extended") or [epochs])[0])  # an extension does not move the phases
        spans = [_epochs(recipe.get(key, 0), planned) for key in ("warmup_natural", "warmup_adversarial", "ramp")]
        stages = _stages(files) * math.ceil(float(recipe.get("stage_epochs", 0)))
        ends = [math.floor(sum(spans[: k + 1]) + 1e-9) for k in range(3)]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise UserError(
            f"{files.path / 'recipe.yaml'} is damaged: it lacks the number of epochs; restore it."
        ) from None
    names = ("natural", "adversarial", "ramp")
    main = [Phase(name, min(end, last)) for name, end in zip(names, ends, strict=True)]
    return [*main, Phase("full", last), Phase("latent", last + stages)]


def _stages(files: RunFiles) -> int:
    """Number of layer-wise stages. For "all", the stages so far, because the recipe has no number."""
    stages = files.recipe.get("stages", 0)
    return max((int(m.get("stage", 0)) for m in files.history), default=0) if stages == "all" else int(stages)


def remaining_after(files: RunFiles, history: Sequence[dict[str, Any]]) -> Remaining | None:
    """Estimated seconds of the remaining epochs, by the last epochs of the same phase. None before the first epoch."""
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
            least |= phase.name in ("adversarial", "ramp") and phase.name not in took  # other phases take no longer
            known = took.get(phase.name, known)
            seconds += to_come * mean(known[-RECENT:])
    return Remaining(seconds, least)


def sparkline(values: Sequence[float | None], width: int, bars: str = BLOCKS) -> str:
    """Draw values as bars of text. If there are more than `width`, neighbors are averaged. None gives a gap."""
    values = _fitting(values, width)
    finite = [v for v in values if v is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    scale = (len(bars) - 1) / (high - low) if high > low else 0.0
    return "".join(" " if v is None else bars[round((v - low) * scale)] for v in values)


def _fitting(values: Sequence[float | None], width: int) -> list[float | None]:
    """At most `width` values, by averaging. Values that are not finite become None."""
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
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_size


def _check(files: RunFiles) -> None:
    phases(files)
    for metrics in files.history:
        if "phase" not in metrics or not all(isinstance(metrics.get(key), int | float) for key in _ALWAYS):
            raise UserError(
                f"{files.path / 'metrics.jsonl'} is damaged: epoch {metrics['epoch']} lacks phase, "
                f"{', '.join(_ALWAYS)}, or one of them; repair or delete it."
            )
