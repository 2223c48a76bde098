"""Weights that do not depend on gradients: constant, or by a schedule."""

from __future__ import annotations

import math

from torch import Tensor

from advibp.weighting.moments import Weights


class Memoryless:
    """A weighting that keeps nothing from step to step."""

    def asks_fosc(self) -> bool:
        return False

    def update(self, gradients: Tensor) -> None:
        pass

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


class Scheduled(Memoryless):
    """kappa for the lower loss and 1 - kappa for the upper one, kappa going from `start` to `end` over the eps ramp."""

    def __init__(self, start: float = 1.0, end: float = 0.5) -> None:
        self.start, self.end = start, end

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        kappa = self.start + (self.end - self.start) * ramped
        return Weights(kappa, 1 - kappa, 0.0, "fixed", math.nan)


class Fixed(Memoryless):
    """Constant weights; 1 and 1 are the paper's baseline."""

    def __init__(self, adv: float = 1.0, ibp: float = 1.0) -> None:
        self._weights = Weights(adv, ibp, 0.0, "fixed", math.nan)

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        return self._weights
