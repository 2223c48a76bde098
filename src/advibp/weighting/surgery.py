"""PCGrad and MGDA, by TorchJD: weights from the gradients of the step itself, for comparison with Algorithm 1.

They multiply a gradient by a number that was computed from it. The expected update is therefore biased, which
Algorithm 1 avoids. TorchJD is an optional dependency: pip install 'advibp[torchjd]'.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from advibp.errors import UserError
from advibp.weighting import BaseWeighting, Weights


class TorchJDWeighting(BaseWeighting):
    """Weights by a rule of TorchJD, which maps the Gram matrix of the gradients (2, 2) to weights (2,)."""

    def __init__(self, rule: Any) -> None:
        self.rule = rule

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        if gradients is None:
            raise UserError(
                "These weights are computed from the gradients of the step itself; pass gradients of shape (2, n)."
            )
        gramian = gradients @ gradients.T
        (a, p), (_, b) = gramian.tolist()
        lower, upper = self.rule(gramian).tolist()
        angle = math.degrees(math.acos(max(-1.0, min(1.0, p / math.sqrt(a * b))))) if a * b > 0 else math.nan
        return Weights(lower, upper, 0.0, "agree" if p > 0 else "conflict", angle)


def pcgrad() -> TorchJDWeighting:
    """PCGrad: remove from each gradient its component against the other one (Yu et al. 2020)."""
    return TorchJDWeighting(_torchjd().PCGradWeighting())


def mgda() -> TorchJDWeighting:
    """MGDA: the shortest convex combination of the two gradients (Desideri 2012; Sener and Koltun 2018)."""
    return TorchJDWeighting(_torchjd().MGDAWeighting())


def _torchjd() -> Any:
    try:
        from torchjd import aggregation
    except ImportError:
        raise UserError("This weighting needs TorchJD; install it with: pip install 'advibp[torchjd]'.") from None
    if not hasattr(aggregation, "PCGradWeighting") or not hasattr(aggregation, "MGDAWeighting"):
        raise UserError("This weighting needs a newer TorchJD; install it with: pip install -U torchjd.")
    return aggregation
