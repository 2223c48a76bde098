"""eps_t, c_t and the learning rate as pure functions of time. Time is counted in epochs and may be fractional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

RampShape = Literal["linear", "smooth"]
PhaseName = Literal["natural", "adversarial", "ramp", "full", "latent"]

# Where the smoothed ramp passes from its quartic start to its linear rest.
_JOINT = 0.25


def ramp(s: float, shape: RampShape = "linear") -> float:
    """Growth from 0 (s <= 0) to 1 (s >= 1).

    `smooth` is a s^4 up to s = 1/4 and linear after it. With j the joint, value and slope agree there when
    a j^4 = 1 - 4 a j^3 (1 - j), hence a = 1 / (4 j^3 - 3 j^4): the ramp is C1 and still ends at 1.
    """
    s = min(max(s, 0.0), 1.0)
    if shape == "linear":
        return s
    a = 1 / (4 * _JOINT**3 - 3 * _JOINT**4)
    return a * s**4 if s < _JOINT else 1 - 4 * a * _JOINT**3 * (1 - s)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The phases of Algorithm 2, in epochs: T_nat, T_adv, then the joint phase, whose first R epochs ramp eps up."""

    epochs: float
    natural: float = 0.0  # T_nat
    adversarial: float = 0.0  # T_adv
    adversarial_ramp: float | None = None  # epochs of T_adv in which eps grows; the rest stay at full eps
    ramp: float = 0.0  # R
    ramp_shape: RampShape = "linear"

    @property
    def joint(self) -> float:
        """When the warm-up ends and the joint phase begins."""
        return self.natural + self.adversarial

    def phase(self, t: float) -> PhaseName:
        if t < self.natural:
            return "natural"
        if t < self.joint:
            return "adversarial"
        return "ramp" if t < self.joint + self.ramp else "full"

    def eps_share(self, t: float) -> float:
        """eps_t / eps_train.

        The adversarial warm-up grows eps from 0 as well: at full eps from its first epoch the network collapses.
        """
        match self.phase(t):
            case "natural":
                return 0.0
            case "adversarial":
                length = self.adversarial if self.adversarial_ramp is None else self.adversarial_ramp
                return ramp((t - self.natural) / length) if length > 0 else 1.0
            case "ramp":
                return ramp((t - self.joint) / self.ramp, self.ramp_shape)
            case _:
                return 1.0


class Position(NamedTuple):
    """Where a run is: its stage (0: Algorithm 2, from 1 on: layer-wise), the epochs that are over, counted through all
    stages, the steps of the epoch that has begun, and the epochs since the stage began."""

    stage: int
    epoch: int
    into: int
    t: float


@dataclass(frozen=True)
class Course:
    """A run in steps. Every stage begins a new epoch, also when the one before it ended within one."""

    main: int
    each: int  # of each layer-wise stage
    stages: int
    per_epoch: int

    @property
    def total(self) -> int:
        return self.main + self.stages * self.each

    @property
    def epochs(self) -> int:
        return self._epochs(self.main) + self.stages * self._epochs(self.each)

    def _epochs(self, steps: int) -> int:
        return math.ceil(steps / self.per_epoch)

    def at(self, steps: int) -> Position:
        """After that many steps; at the end of a stage the next has begun, but for the last."""
        if steps < self.main or self.stages == 0:
            stage, since, before = 0, steps, 0
        else:
            stage = min((steps - self.main) // self.each, self.stages - 1) + 1
            since = steps - self.main - (stage - 1) * self.each
            before = self._epochs(self.main) + (stage - 1) * self._epochs(self.each)
        if steps == self.total:
            return Position(stage, self.epochs, 0, since / self.per_epoch)
        return Position(stage, before + since // self.per_epoch, since % self.per_epoch, since / self.per_epoch)

    def epoch_ends(self, steps: int) -> int:
        """The step at which the epoch that begins or goes on after `steps` ends."""
        now = self.at(steps)
        stage_ends = self.main + now.stage * self.each
        return min(steps - now.into + self.per_epoch, stage_ends)


def c_t(t: float, *, ramp_epochs: float, extra: float, decay: float) -> float:
    """The FOSC threshold, as a share of c_max. Algorithm 2 line 4: clip(c_max - (t - R - extra) c_max / T', 0, c_max).

    t counts from the end of the warm-up; `extra` are the appendix's epochs at full eps before the decay, `decay` is T'.
    """
    if decay <= 0:
        return 1.0 if t < ramp_epochs + extra else 0.0
    return min(max(1 - (t - ramp_epochs - extra) / decay, 0.0), 1.0)


def learning_rate(t: float, *, lr: float, milestones: Sequence[float], factor: float) -> float:
    """`lr`, multiplied by `factor` once for every milestone that has been passed."""
    return lr * factor ** sum(t >= m for m in milestones)


def linear_decay(t: float, *, lr: float, start: float, end: float) -> float:
    """`lr` until `start`, then a straight line down to 0 at `end`."""
    return lr * min(max((end - t) / (end - start), 0.0), 1.0) if end > start else lr
