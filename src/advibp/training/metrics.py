"""Mean metrics of an epoch. Their state can be saved in the middle of an epoch and restored."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from advibp.schedules import PhaseName
from advibp.storage.metric_names import with_current_names
from advibp.weighting import Weights

_BRANCHES = ("agree", "lower", "upper", "conflict")


class Step(NamedTuple):
    """The result of one training step. Losses stay tensors, so that all of an epoch are read from the device at once.

    Attributes:
        phase: name of the phase.
        eps: eps_t of this step.
        lower: the lower loss, a scalar; None if the step had none.
        upper: the upper loss, a scalar; None if the step had none.
        fosc: mean FOSC of the batch; None if it was not computed.
        weights: the weights of the two losses; None if there was one loss.
        stage: number of the layer-wise stage; 0 in the main phase.
        c_t: the threshold of FOSC; None outside the joint phase.
        regularizer: Shi's regularizers with their weight; None if they had none.
        clean: the regular loss, if it has a share of its own; else None.
    """

    phase: PhaseName
    eps: float
    lower: Tensor | None
    upper: Tensor | None
    fosc: Tensor | None
    weights: Weights | None
    stage: int = 0
    c_t: float | None = None
    regularizer: Tensor | None = None
    clean: Tensor | None = None


class EpochMeans:
    """Running sums of the metrics of one epoch, for metrics.jsonl and the display.

    Args:
        state: what `state()` returned, to continue an interrupted epoch.
    """

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self._sums: dict[str, list[float]] = with_current_names(state.get("sums", {}))  # name -> [sum, count]
        self._branches: Counter[str] = Counter(with_current_names(state.get("branches", {})))
        self._steps: int = state.get("steps", 0)
        self._seconds: float = state.get("seconds", 0.0)
        self._pending: list[Step] = []
        self._last: dict[str, Any] = state.get("last", {})
        self._began = time.perf_counter()

    def add(self, step: Step) -> None:
        """Add a step."""
        self._pending.append(step)

    def state(self) -> dict[str, Any]:
        """Return the state as plain JSON data. Reads the losses of all new steps from the device at once."""
        for name, values in self._measured().items():
            total = self._sums.setdefault(name, [0.0, 0])
            for value in values:  # one by one, so that the sum does not depend on where the epoch was interrupted
                total[0] += value
            total[1] += len(values)
        self._branches.update(s.weights.branch for s in self._pending if s.weights is not None)
        self._steps += len(self._pending)
        if self._pending:
            last = self._pending[-1]
            self._last = {"phase": last.phase, "eps": last.eps} | ({"stage": last.stage} if last.stage else {})
        self._pending = []
        now = time.perf_counter()
        self._seconds, self._began = self._seconds + now - self._began, now
        return {
            "sums": self._sums,
            "branches": dict(self._branches),
            "steps": self._steps,
            "seconds": self._seconds,
            "last": self._last,
        }

    def _measured(self) -> dict[str, list[float]]:
        steps, weights = self._pending, [s.weights for s in self._pending if s.weights is not None]
        metrics = {
            "loss_lower": _read([s.lower for s in steps]),
            "loss_upper": _read([s.upper for s in steps]),
            "loss_regularizer": _read([s.regularizer for s in steps]),
            "loss_clean": _read([s.clean for s in steps]),
            "fosc": [value for value in _read([s.fosc for s in steps]) if math.isfinite(value)],
            "c_t": [s.c_t for s in steps if s.c_t is not None],
            "kappa_lower": [w.lower for w in weights],
            "kappa_upper": [w.upper for w in weights],
            "kappa_reg": [w.reg for w in weights],
            "angle": [w.angle for w in weights if not math.isnan(w.angle)],
        }
        return {name: values for name, values in metrics.items() if values}

    def means(self) -> dict[str, Any]:
        """Return the metrics of the epoch. Metrics that the phase does not have are left out."""
        state = self.state()
        steps = self._branches.total()
        shares = {f"branch_{b}": self._branches[b] / steps for b in _BRANCHES} if steps else {}
        if not self._branches["conflict"]:  # only rules that prioritize neither loss have it
            shares.pop("branch_conflict", None)
        return {
            **self._last,
            **{name: total / count for name, (total, count) in self._sums.items()},
            **({} if "fixed" in self._branches else shares),
            "steps": self._steps,
            "seconds": state["seconds"],
        }


def _read(values: list[Tensor | None]) -> list[float]:
    measured = [value for value in values if value is not None]
    numbers: list[float] = torch.stack(measured).tolist() if measured else []
    return numbers
