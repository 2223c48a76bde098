"""Weights that do not depend on gradients: constant weights and weights by a schedule."""

from __future__ import annotations

import math

from torch import Tensor

from advibp.errors import UserError
from advibp.moved import renamed_keywords
from advibp.weighting.moments import Weights


class BaseWeighting:
    """Base class of weightings, with defaults: no state, and weights that do not depend on FOSC.

    Examples:
        >>> from advibp.weighting import BaseWeighting, Weights
        >>> class Equal(BaseWeighting):
        ...     def weights(self, fosc=0.0, c_t=0.0, *, ramped=1.0, gradients=None):
        ...         return Weights(0.5, 0.5, 0.0, "fixed", float("nan"))
        >>> Equal().weights().lower
        0.5
    """

    def needs_fosc(self) -> bool:
        """Return False: the weights do not depend on FOSC."""
        return False

    def update(self, gradients: Tensor) -> None:
        """Do nothing."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return an empty state."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Do nothing."""


class Scheduled(BaseWeighting):
    """kappa for the lower loss and 1 - kappa for the upper loss; kappa changes linearly over the eps ramp.

    Args:
        start: kappa at the start of the ramp.
        end: kappa at its end.

    Examples:
        >>> from advibp.weighting import Scheduled
        >>> weights = Scheduled(start=1.0, end=0.5).weights(ramped=0.5)
        >>> weights.lower, weights.upper
        (0.75, 0.25)
    """

    def __init__(self, start: float = 1.0, end: float = 0.5) -> None:
        self.start, self.end = start, end

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        """Return the weights at the finished share `ramped` of the eps ramp. The other arguments are not used."""
        kappa = self.start + (self.end - self.start) * ramped
        return Weights(kappa, 1 - kappa, 0.0, "fixed", math.nan)


@renamed_keywords(adv="lower", ibp="upper")
class Fixed(BaseWeighting):
    """Constant weights. The paper's baseline has 1 and 1.

    Args:
        lower: weight of the lower loss.
        upper: weight of the upper loss.

    Examples:
        >>> from advibp.weighting import Fixed
        >>> Fixed(0.5, 0.5).weights().lower
        0.5
    """

    def __init__(self, lower: float = 1.0, upper: float = 1.0) -> None:
        for name, value in (("lower", lower), ("upper", upper)):
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise UserError(f"{name} is {value!r}, but must be a finite number: the weight of a loss.")
        self._weights = Weights(lower, upper, 0.0, "fixed", math.nan)

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        """Return the weights. The arguments are not used."""
        return self._weights
