"""Schedules of eps_t, c_t and the learning rate as functions of time. Time is in epochs and may be fractional."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

RampShape = Literal["linear", "smooth"]
PhaseName = Literal["natural", "adversarial", "ramp", "full", "latent"]

# Where the smooth ramp changes from quartic to linear.
_KNEE = 0.25


def ramp(s: float, shape: RampShape = "linear") -> float:
    """Return the value at s of a ramp that grows from 0 (s <= 0) to 1 (s >= 1).

    The linear ramp is s. The smooth ramp is a s^4 up to j = 1/4 and linear after it. It is continuously differentiable
    and ends at 1 if a j^4 = 1 - 4 a j^3 (1 - j), i.e. a = 1 / (4 j^3 - 3 j^4).

    Args:
        s: finished share of the ramp.
        shape: "linear" or "smooth".
    """
    s = min(max(s, 0.0), 1.0)
    if shape == "linear":
        return s
    a = 1 / (4 * _KNEE**3 - 3 * _KNEE**4)
    return a * s**4 if s < _KNEE else 1 - 4 * a * _KNEE**3 * (1 - s)


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """The phases of Algorithm 2.

    Args:
        epochs: number of epochs.
        natural: T_nat, epochs of natural warm-up.
        adversarial: T_adv, epochs of adversarial warm-up.
        adversarial_ramp: epochs of T_adv in which eps grows; the others have full eps. None: all of T_adv.
        ramp: R, epochs of the joint phase in which eps grows to eps_train.
        ramp_shape: shape of the ramp.
    """

    epochs: float
    natural: float = 0.0
    adversarial: float = 0.0
    adversarial_ramp: float | None = None
    ramp: float = 0.0
    ramp_shape: RampShape = "linear"

    @property
    def joint(self) -> float:
        """The epoch at which the joint phase begins."""
        return self.natural + self.adversarial

    def phase(self, t: float) -> PhaseName:
        """Return the phase at epoch t."""
        if t < self.natural:
            return "natural"
        if t < self.joint:
            return "adversarial"
        return "ramp" if t < self.joint + self.ramp else "full"

    def eps_share(self, t: float) -> float:
        """Return eps_t / eps_train at epoch t.

        In the adversarial warm-up eps grows from 0, too. With full eps from its first epoch the network collapses.
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
    """The position of a run.

    Attributes:
        stage: 0 in the main phase (Algorithm 2), k in the k-th layer-wise stage.
        epoch: number of finished epochs of all stages.
        step_in_epoch: number of finished steps of the current epoch.
        t: time since the stage began, in epochs.
    """

    stage: int
    epoch: int
    step_in_epoch: int
    t: float


@dataclass(frozen=True)
class Course:
    """The number of steps of a run. Every stage begins a new epoch, even if the last epoch before it was incomplete.

    Args:
        main: steps of the main phase.
        each: steps of each layer-wise stage.
        stages: number of layer-wise stages.
        per_epoch: steps per epoch.
    """

    main: int
    each: int
    stages: int
    per_epoch: int

    @property
    def total(self) -> int:
        """Number of steps."""
        return self.main + self.stages * self.each

    @property
    def epochs(self) -> int:
        """Number of epochs."""
        return self._epochs(self.main) + self.stages * self._epochs(self.each)

    def _epochs(self, steps: int) -> int:
        return math.ceil(steps / self.per_epoch)

    def at(self, steps: int) -> Position:
        """Return the position after a number of steps. At the end of a stage it is the beginning of the next one."""
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
        """Return the step at which the current epoch ends."""
        now = self.at(steps)
        stage_ends = self.main + now.stage * self.each
        return min(steps - now.step_in_epoch + self.per_epoch, stage_ends)


def c_t_share(t: float, *, ramp_epochs: float, extra: float, decay: float) -> float:
    """Return c_t / c_max, by Algorithm 2, line 4, with the appendix's additional epochs.

    c_t = clip(c_max - (t - R - extra) c_max / T', 0, c_max)

    Args:
        t: epochs since the end of the warm-up.
        ramp_epochs: R.
        extra: epochs at full eps before the decay, from the paper's appendix.
        decay: T'.
    """
    if decay <= 0:
        return 1.0 if t < ramp_epochs + extra else 0.0
    return min(max(1 - (t - ramp_epochs - extra) / decay, 0.0), 1.0)


def learning_rate(t: float, *, lr: float, milestones: Sequence[float], factor: float) -> float:
    """Return lr * factor^n, where n is the number of milestones (in epochs) up to epoch t."""
    return lr * factor ** sum(t >= m for m in milestones)


def linear_decay(t: float, *, lr: float, start: float, end: float) -> float:
    """Return `lr` until epoch `start`, then a linear decay to 0 at epoch `end`."""
    return lr * min(max((end - t) / (end - start), 0.0), 1.0) if end > start else lr
