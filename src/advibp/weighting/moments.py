"""Algorithm 1: weights for two objectives from the moments of their past gradients. Knows no network.

A weight that is computed from the gradient it multiplies makes the expected update biased. So the weights come from
moving averages over the steps before: `weights` first, `update` with the new gradients after it.

In a loop of one's own:

    weighting = Moments()
    for x, y in batches:
        joint_backward(weighting, lower_loss(x, y), upper_loss(x, y), params)
        optimizer.step()

When the gradients conflict, this prioritizes the upper loss, as `advibp.train` does once c_t is 0. The lower loss is
prioritized only while its attack is strong: pass fosc and c_t with fosc <= c_t.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

Branch = Literal["start", "agree", "adv", "ibp", "conflict", "fixed"]

#: Decay of the gradient moments and of the norm moments: the defaults of `Moments` and of a recipe. The paper has 0.9
#: and 0.99.
BETA1, BETA2 = 0.99, 0.99

# Norm moments below this count as this: a vanished gradient must not divide by zero.
_TINY = 1e-12


class Weights(NamedTuple):
    """kappa_adv, kappa_IBP, kappa_reg, and which case of the paper's figure they come from."""

    adv: float
    ibp: float
    reg: float
    branch: Branch
    angle: float  # degrees between the two first moments; nan before the first step

    def of_gradients(self, ibp_loss: float) -> tuple[float, float]:
        """What multiplies g_adv and g_IBP. The regulariser kappa_reg L_IBP^2 has the gradient 2 kappa_reg L_IBP g_IBP,
        so it needs no backward pass of its own."""
        return self.adv, self.ibp + 2 * self.reg * ibp_loss


class Weighting(Protocol):
    """Past gradient statistics in, weights out. The attack counts as strong if `fosc` <= `c_t`, so without a `fosc` it
    counts as weak. `ramped` is the share of the eps ramp that is over; `gradients` (2, n) are those of this step, for
    rules that are content to be biased."""

    def asks_fosc(self) -> bool: ...
    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights: ...
    def update(self, gradients: Tensor) -> None: ...
    def state(self) -> dict[str, Tensor]: ...
    def load_state(self, state: dict[str, Tensor]) -> None: ...


def compute_weights(p: float, a: float, b: float, v_adv: float, v_ibp: float, *, strong: bool) -> Weights:
    """The branches of Algorithm 1 from the five numbers they depend on.

    p = <m_adv, m_ibp>, a = |m_adv|^2, b = |m_ibp|^2, v_* the norm moments; `strong` is FOSC <= c_t.
    """
    v_adv, v_ibp = max(v_adv, _TINY), max(v_ibp, _TINY)
    angle = math.degrees(math.acos(max(-1.0, min(1.0, p / math.sqrt(a * b))))) if a * b > 0 else math.nan
    if p > 0:
        # Both moments projected on their bisector m_adv / v_adv + m_ibp / v_ibp, and averaged.
        onto = a / v_adv + b / v_ibp + p / v_adv + p / v_ibp
        length = a / v_adv**2 + b / v_ibp**2 + 2 * p / (v_adv * v_ibp)
        gamma = 0.5 * onto / length
        return Weights(gamma / v_adv, gamma / v_ibp, 0.0, "agree", angle)
    if strong:
        return Weights(1.0, -p / v_ibp**2, 0.0, "adv", angle)
    return Weights(-p / v_adv**2, 1.0, 0.5, "ibp", angle)


class Moments:
    """Algorithm 1. Gradients travel as the rows of one (2, n) matrix: adversarial first, abstract second.

    Args:
        beta1: decay of the gradient moments.
        beta2: decay of the norm moments.
        scope: the columns that the weights are computed from, by default all; the weights then hold for all of them.
    """

    def __init__(self, beta1: float = BETA1, beta2: float = BETA2, scope: slice | None = None) -> None:
        self.beta1, self.beta2, self.scope = beta1, beta2, scope
        self.t = 0
        self.m_hat: Tensor | None = None  # (2, n)
        self.v_hat: Tensor | None = None  # (2,)
        self._five: tuple[float, float, float, float, float] | None = None  # what they come to, once asked for

    def _numbers(self) -> tuple[float, float, float, float, float] | None:
        """<m_adv, m_ibp>, the squares of their lengths, and the two v: all that the weights depend on."""
        if self._five is None and self.m_hat is not None and self.v_hat is not None:
            adv, ibp = self.m_hat
            products = torch.cat([torch.mv(self.m_hat, adv), torch.dot(ibp, ibp)[None]]) / (1 - self.beta1**self.t) ** 2
            # One transfer to the host for all five.
            a, p, b, *v = torch.cat([products, self.v_hat / (1 - self.beta2**self.t)]).tolist()
            self._five = p, a, b, v[0], v[1]
        return self._five

    def asks_fosc(self) -> bool:
        """Whether the next weights will depend on FOSC: only if past gradients conflict."""
        numbers = self._numbers()
        return numbers is not None and not numbers[0] > 0

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        """Weights from the gradients of earlier steps only.

        Args:
            fosc: how far the attack is from the strongest one, 0 or more; not given: it counts as weak.
            c_t: the largest `fosc` of an attack that counts as strong. A conflict prioritizes the adversarial loss if
                fosc <= c_t, and the abstract loss otherwise.
            ramped: not used.
            gradients: not used.
        """
        numbers = self._numbers()
        if numbers is None:
            return Weights(0.5, 0.5, 0.0, "start", math.nan)
        return compute_weights(*numbers, strong=self.asks_fosc() and bool(fosc <= c_t))

    def update(self, gradients: Tensor) -> None:
        """Take in this step's gradients (2, n), for the weights of the next step."""
        if self.scope is not None:
            gradients = gradients[:, self.scope]
        norms = torch.linalg.vector_norm(gradients, dim=1)
        if self.m_hat is None or self.v_hat is None:
            self.m_hat, self.v_hat = torch.zeros_like(gradients), torch.zeros_like(norms)
        self.m_hat.lerp_(gradients, 1 - self.beta1)
        self.v_hat.lerp_(norms, 1 - self.beta2)
        self.t += 1
        self._five = None

    def state(self) -> dict[str, Tensor]:
        if self.m_hat is None or self.v_hat is None:
            return {}
        return {"t": torch.tensor(self.t), "m_hat": self.m_hat, "v_hat": self.v_hat}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.t = int(state["t"]) if state else 0
        # Copies: `update` works in place, and must not write into the state it was loaded from.
        self.m_hat = state["m_hat"].clone() if state else None
        self.v_hat = state["v_hat"].clone() if state else None
        self._five = None
