"""Means over the steps of an epoch, which can be put aside in the middle of it and taken up again."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from advibp.schedules import PhaseName
from advibp.weighting import Weights

_BRANCHES = ("agree", "adv", "ibp", "conflict")


class Step(NamedTuple):
    """What one step saw. Losses stay tensors: they are read together, not step by step."""

    phase: PhaseName
    eps: float
    lower: Tensor | None
    upper: Tensor | None
    fosc: Tensor | None
    weights: Weights | None
    stage: int = 0


class EpochMeans:
    """Sums so far, for metrics.jsonl and the display; `state` is all there is to them, as JSON can hold it."""

    def __init__(self, state: dict[str, Any] | None = None) -> None:
        state = state or {}
        self._sums: dict[str, list[float]] = state.get("sums", {})  # name -> [sum, count]
        self._branches: Counter[str] = Counter(state.get("branches", {}))
        self._steps: int = state.get("steps", 0)
        self._seconds: float = state.get("seconds", 0.0)
        self._pending: list[Step] = []
        self._last: dict[str, Any] = state.get("last", {})
        self._began = time.perf_counter()

    def add(self, step: Step) -> None:
        self._pending.append(step)

    def state(self) -> dict[str, Any]:
        """Everything, with one transfer from the device for all steps since the last time."""
        for name, values in self._measured().items():
            total = self._sums.setdefault(name, [0.0, 0])
            for value in values:  # one by one: the sum must not depend on where an epoch was interrupted
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
        found = {
            "loss_adv": _read([s.lower for s in steps]),
            "loss_ibp": _read([s.upper for s in steps]),
            "fosc": [value for value in _read([s.fosc for s in steps]) if math.isfinite(value)],
            "kappa_adv": [w.adv for w in weights],
            "kappa_ibp": [w.ibp for w in weights],
            "kappa_reg": [w.reg for w in weights],
            "angle": [w.angle for w in weights if not math.isnan(w.angle)],
        }
        return {name: values for name, values in found.items() if values}

    def means(self) -> dict[str, Any]:
        """One epoch's line of metrics; a phase that has no such number leaves it out."""
        state = self.state()
        weighed = self._branches.total()
        shares = {f"branch_{b}": self._branches[b] / weighed for b in _BRANCHES} if weighed else {}
        if not self._branches["conflict"]:  # of rules that put neither loss first
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
