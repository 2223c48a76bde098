"""The FOSC gate of Algorithm 1: in a conflict the lower loss is prioritized if FOSC <= c_t, else the upper loss.

The recipe key c_max determines c_t. c_t falls to 0 over the schedule `schedules.c_t_share`.

- A number: c_t starts at this number, as in the paper. The scale of FOSC depends on the network, eps and the epoch. At
  the default of 1e-4 per sample the gate never opens.
- `auto`: c_t starts at FOSC of the network after the warm-up, as the paper's appendix says.
- A share such as `30%`: the lower loss is prioritized in this share of the conflicts, those with the smallest FOSC. c_t
  is a running quantile of FOSC over the conflicts so far, and the share falls to 0. This does not depend on the scale
  of FOSC.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

#: Step size of the running quantile, relative to its value.
_RATE = 0.5


@dataclass
class Gate:
    """Computes c_t.

    Args:
        c_max: the recipe's c_max.
        open: maps the epoch to c_t / c_max, which falls from 1 to 0.
        scale: factor of c_max if it is a number.
        level: the only state: c_max in the scale of each sample's loss, or the quantile so far; None before the first
            joint step.
    """

    c_max: float | str
    open: Callable[[float], float]
    scale: float = 1.0
    level: float | None = None

    @property
    def is_share(self) -> bool:
        return isinstance(self.c_max, str) and self.c_max.endswith("%")

    def threshold(self, t: float, measure: Callable[[], float]) -> float:
        """Return c_t at epoch t. `measure` returns FOSC at full eps; it is called until that is finite."""
        if self.level is None:
            level = measure() if isinstance(self.c_max, str) else self.c_max * self.scale
            if not math.isfinite(level):
                return 0.0
            self.level = level
        if self.is_share:
            return self.level if self._share(t) > 0 else 0.0
        return self.level * self.open(t)

    def observe(self, t: float, fosc: Tensor | float) -> None:
        """Update the quantile by FOSC of a conflict: down if FOSC is below it, else up."""
        value = float(fosc)
        if self.level is not None and self.is_share and math.isfinite(value):
            share = self._share(t)
            self.level = max(self.level * math.exp(_RATE * (share - (value <= self.level))), 1e-30)

    def _share(self, t: float) -> float:
        return float(str(self.c_max)[:-1]) / 100 * self.open(t)
