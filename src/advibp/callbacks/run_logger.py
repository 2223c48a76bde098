"""What loggers have in common: they continue a logged run after a resume, and never stop a training."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from advibp.callbacks.callback import Callback
from advibp.errors import UserError
from advibp.storage import checkpoint

_log = logging.getLogger(__name__)


class RunLogger(Callback):
    """Logs a training to a tracking service, and continues the same logged run if the training is resumed.

    The id of the logged run and the last logged epoch are in a small file in the run's folder. After a resume, epochs
    that the service misses are logged from the history, and epochs that it has are not logged again. An error of the
    service after the start is logged as a warning; it does not end the training.

    Subclasses define `service`, `_open`, `_log_metrics` and `_close`.

    Attributes:
        service: name of the service; also the name of the file.
        id: id of the logged run; None before the first training.
    """

    service: str

    def __init__(self) -> None:
        self.id: str | None = None
        self._file: Path | None = None
        self._epoch = 0  # last logged epoch

    def _open(self, facts: dict[str, Any], known: str | None) -> str:
        """Start or continue a logged run, and return its id. known: the id of the run to continue."""
        raise NotImplementedError

    def _log_metrics(self, metrics: dict[str, float], epoch: int) -> None:
        raise NotImplementedError

    def _close(self, results: dict[str, Any], status: str) -> None:
        """End the logged run with results (flat); status: finished, or failed."""
        raise NotImplementedError

    def _log_results(self, results: dict[str, float]) -> None:
        """Add results to the logged run after its end."""
        raise NotImplementedError

    def on_train_start(self, facts: dict[str, Any]) -> None:
        self._file = Path(facts["out"]) / f"{self.service}.json" if facts["out"] else None
        known, self._epoch = self._read()  # a new run has no such file
        try:
            self.id = self._open(facts, known)
        except UserError:
            raise
        except Exception as error:  # the service may raise anything
            raise UserError(
                f"{self.service} can't log this run: {_one_line(error)}; correct its settings, or leave the logger out."
            ) from error
        if self.id != known:
            self._epoch = 0
        self._write()
        for metrics in facts["history"]:
            self.on_epoch_end(metrics)

    def on_epoch_end(self, metrics: dict[str, Any]) -> None:
        epoch = int(metrics["epoch"])
        if epoch <= self._epoch:
            return
        numbers = {k: float(v) for k, v in metrics.items() if isinstance(v, int | float) and k != "epoch"}
        if self._try(f"epoch {epoch}", lambda: self._log_metrics(numbers, epoch)):
            self._epoch = epoch
            self._write()

    def on_train_end(self, summary: dict[str, Any]) -> None:
        validation = summary.get("validation") or {}
        results = {f"final/{k}": v for k, v in validation.items() if isinstance(v, int | float)}
        results |= {k: summary[k] for k in ("seconds", "parameters") if k in summary}
        self._try("the end", lambda: self._close(results, "finished"))

    def on_train_interrupted(self, facts: dict[str, Any]) -> None:
        if self.id is not None:
            self._try("the end", lambda: self._close({}, "failed"))

    def on_certify_end(self, summary: dict[str, Any]) -> None:
        if self.id is None:
            raise UserError(f"{type(self).__name__} has no run to add certificates to; pass it to train first.")
        results = {
            f"certify/eps-{eps}/{name}": float(share) / 100
            for eps, errors in summary["percent"].items()
            for name, share in errors.items()
        }
        self._try("the certificates", lambda: self._log_results(results))

    def _try(self, what: str, call: Callable[[], None]) -> bool:
        """Call a function; log a warning and return False if it fails."""
        try:
            call()
        except Exception as error:  # the service may raise anything
            _log.warning("%s did not log %s: %s", self.service, what, _one_line(error))
            return False
        return True

    def _read(self) -> tuple[str | None, int]:
        """Return the id and the last logged epoch from the run's folder."""
        if self._file is None or not self._file.exists():
            return None, 0
        try:
            content = json.loads(self._file.read_text("utf-8"))
            known, epoch = content["id"], content["epoch"]
            if not isinstance(known, str) or not isinstance(epoch, int):
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            _log.warning("%s is damaged; a new run is logged", self._file)
            return None, 0
        return known, epoch

    def _write(self) -> None:
        if self._file is not None:
            text = json.dumps({"id": self.id, "epoch": self._epoch}) + "\n"
            self._try(f"its id to {self._file}", lambda: checkpoint.write_atomically(self._file, text))  # type: ignore[arg-type]


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
