"""The gate of Algorithm 1: in a conflict the adversarial loss comes first where FOSC <= c_t, else the abstract loss.

c_max says how it opens, and the schedule of c_t how it closes:

- a number: c_t falls from it to 0, as the paper has it. FOSC has a scale of its own, which depends on network, eps and
  epoch: at c_max 1e-4 per sample the gate never opens.
- `auto`: that number is FOSC of the warmed-up network, as the paper's appendix says.
- a share such as `30%`: the part of the conflicts in which the adversarial loss comes first, those with the strongest
  attacks. c_t is then the quantile of FOSC over the conflicts so far, and the share falls to 0 as c_t would. It is free
  of FOSC's scale.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

#: How far one conflict moves the quantile: by this much times the share, relative to its value.
_RATE = 0.5


@dataclass
class Gate:
    """`level` is its only state: c_max in the scale of each sample's loss, or the quantile so far."""

    c_max: float | str
    open: Callable[[float], float]  # 1 falling to 0: c_t / c_max at epoch t
    scale: float = 1.0  # of c_max where it is a number
    level: float | None = None

    @property
    def is_share(self) -> bool:
        return isinstance(self.c_max, str) and self.c_max.endswith("%")

    def threshold(self, t: float, measure: Callable[[], float]) -> float:
        """c_t. `measure` gives FOSC of the network as it is, at full eps, and is called until that is finite."""
        if self.level is None:
            level = measure() if isinstance(self.c_max, str) else self.c_max * self.scale
            if not math.isfinite(level):
                return 0.0
            self.level = level
        if self.is_share:
            return self.level if self._share(t) > 0 else 0.0
        return self.level * self.open(t)

    def observe(self, t: float, fosc: Tensor | float) -> None:
        """A conflict, which moves the quantile: down if FOSC was below it, else up."""
        seen = float(fosc)
        if self.level is not None and self.is_share and math.isfinite(seen):
            share = self._share(t)
            self.level = max(self.level * math.exp(_RATE * (share - (seen <= self.level))), 1e-30)

    def _share(self, t: float) -> float:
        return float(str(self.c_max)[:-1]) / 100 * self.open(t)
