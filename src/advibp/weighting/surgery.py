"""Weights from the gradients of the step itself, to compare Algorithm 1 with: PCGrad and MGDA, by TorchJD.

They multiply a gradient by a number that was computed from it, so the expected update is biased, which is what
Algorithm 1 avoids. TorchJD is an optional extra: pip install 'advibp[torchjd]'.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from advibp.errors import UserError
from advibp.weighting import Memoryless, Weights


class OfThisStep(Memoryless):
    """The weights that one of TorchJD's rules gives the rows of the gradients' Gram matrix."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        if gradients is None:
            raise UserError("These weights come from the gradients of the step itself; pass gradients=(2, n).")
        gramian = gradients @ gradients.T
        (a, p), (_, b) = gramian.tolist()
        adv, ibp = self.rule(gramian).tolist()
        angle = math.degrees(math.acos(max(-1.0, min(1.0, p / math.sqrt(a * b))))) if a * b > 0 else math.nan
        return Weights(adv, ibp, 0.0, "agree" if p > 0 else "conflict", angle)


def pcgrad() -> OfThisStep:
    """Each gradient loses what points against the other (Yu et al. 2020)."""
    return OfThisStep(_torchjd().PCGradWeighting())


def mgda() -> OfThisStep:
    """The shortest vector between the two gradients (Desideri 2012; Sener and Koltun 2018)."""
    return OfThisStep(_torchjd().MGDAWeighting())


def _torchjd() -> Any:
    try:
        from torchjd import aggregation
    except ImportError:
        raise UserError("This weighting needs TorchJD; install it with: pip install 'advibp[torchjd]'.") from None
    if not hasattr(aggregation, "PCGradWeighting") or not hasattr(aggregation, "MGDAWeighting"):
        raise UserError("This weighting needs a newer TorchJD; install it with: pip install -U torchjd.")
    return aggregation
