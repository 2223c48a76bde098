"""The study of a tuning: trials in a journal file that several processes share and that survives a sudden end.

A process claims a trial by a file lock, which the operating system releases when the process ends, also after kill -9.
A trial that is not finished and that no process holds is continued by the next process.

The sampler is seeded by the number of the trial. Without parallel processes a study that was interrupted therefore has
the same trials as one that was not.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from advibp.display.optional_packages import optional
from advibp.errors import UserError
from advibp.execution.seeds import mix

#: Objectives of a study, all maximized, in percent of validation images.
OBJECTIVES = ("natural", "certified")


class Study:
    """An Optuna study in a folder.

    Args:
        folder: the folder.
        objectives: names from OBJECTIVES.
        seed: seed of the sampler.
        startup: number of random trials before the sampler learns from earlier ones.
    """

    def __init__(self, folder: Path, objectives: Sequence[str], seed: int, startup: int = 10) -> None:
        self.optuna = optional("optuna", "advibp tune", "tune")
        self.optuna.logging.set_verbosity(self.optuna.logging.ERROR)
        self.folder, self.objectives = folder, tuple(objectives)
        journal = optional("optuna.storages.journal", "advibp tune", "tune")
        file, lock = folder / "journal.log", _JournalLock(folder / "journal.lock")
        _repair(file, lock)
        backend = journal.JournalFileBackend(str(file), lock_obj=lock)
        with self._locked():
            try:
                self.study = self.optuna.create_study(
                    storage=self.optuna.storages.JournalStorage(backend),
                    study_name="advibp",
                    directions=["maximize"] * len(self.objectives),
                    sampler=_sampler(self.optuna, seed, startup),
                    load_if_exists=True,
                )
            except (ValueError, KeyError) as error:
                raise UserError(f"{file} is damaged ({error}); tune into another --out.") from None

    def _locked(self) -> FileLock:
        """Return the lock of the study, which is held while a trial is claimed or finished."""
        return FileLock(self.folder / "study.lock")

    @property
    def trials(self) -> list[Any]:
        """All trials, in the order of their numbers."""
        return list(self.study.get_trials(deepcopy=False))

    @contextmanager
    def claim(self, most: int | None, seconds: float | None) -> Iterator[Any | None]:
        """Claim a trial until the context ends. Yields None if there is nothing left to do for this process.

        Args:
            most: number of trials of the study; None for no limit.
            seconds: no new trial begins when finished trials have taken so many seconds; None for no limit.
        """
        with self._locked():
            trial, lock = self._unfinished() or (None, None)
            if trial is None and not self._is_over(most, seconds):
                trial = self.study.ask()
                lock = self._lock_of(trial.number)
                lock.acquire(timeout=0)
        try:
            yield trial
        finally:
            if lock is not None:
                lock.release()

    def _unfinished(self) -> tuple[Any, FileLock] | None:
        """Lock and return the first unfinished trial that no process holds."""
        for frozen in self.trials:
            if frozen.state.is_finished():
                continue
            lock = self._lock_of(frozen.number)
            try:
                lock.acquire(timeout=0)
            except Timeout:
                continue
            return self.optuna.trial.Trial(self.study, frozen._trial_id), lock
        return None

    def _lock_of(self, number: int) -> FileLock:
        return FileLock(self.folder / f"trial-{number:04d}.lock")

    def _is_over(self, most: int | None, seconds: float | None) -> bool:
        trials = self.trials
        if most is not None and len(trials) >= most:
            return True
        return seconds is not None and sum(t.user_attrs.get("seconds", 0.0) for t in trials) >= seconds

    def finish(self, trial: Any, values: Sequence[float] | None, state: str, **facts: Any) -> None:
        """Store the result of a trial.

        Args:
            trial: the trial.
            values: the objectives, if the trial is complete.
            state: "complete", "pruned" or "failed".
            facts: plain data to store with the trial.
        """
        states = self.optuna.trial.TrialState
        kind = {"complete": states.COMPLETE, "pruned": states.PRUNED, "failed": states.FAIL}[state]
        with self._locked():
            for key, value in facts.items():
                trial.set_user_attr(key, value)
            self.study.tell(trial, values if state == "complete" else None, state=kind)

    def front(self) -> list[Any]:
        """Return the complete trials that no other one beats in all objectives, best certified accuracy first."""
        done = [t for t in self.trials if t.state == self.optuna.trial.TrialState.COMPLETE]
        front = [t for t in done if not any(_dominates(other.values, t.values) for other in done)]
        return sorted(front, key=lambda t: (-t.values[-1], t.number))


def _dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `one` is at least as good in all objectives and better in one."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and list(one) != list(other)


def _sampler(optuna: Any, seed: int, startup: int) -> Any:
    """Return a sampler that depends on the seed, the trial and the finished trials only, not on the process."""

    class SeededByTrial(optuna.samplers.BaseSampler):
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {}

        def sample_relative(self, study: Any, trial: Any, space: Any) -> dict[str, Any]:
            return {}

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            number = mix(seed, 7, trial.number * 1_000_003 + sum(name.encode())) % 2**32
            tpe = optuna.samplers.TPESampler(seed=number, n_startup_trials=startup)
            return tpe.sample_independent(study, trial, name, distribution)

    return SeededByTrial()


class _JournalLock:
    """The lock of the journal, in the form that Optuna expects. It is released when its process ends."""

    def __init__(self, path: Path) -> None:
        self._lock = FileLock(path)

    def acquire(self) -> bool:
        self._lock.acquire()
        return True

    def release(self) -> None:
        self._lock.release()


def _repair(journal: Path, lock: _JournalLock) -> None:
    """Remove an incomplete last line, which a process leaves if it is killed while it writes."""
    lock.acquire()
    try:
        if journal.exists() and not (content := journal.read_bytes()).endswith(b"\n") and content:
            os.truncate(journal, content.rfind(b"\n") + 1)
    finally:
        lock.release()
