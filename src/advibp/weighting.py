"""Algorithm 1: weights for two objectives from the moments of their past gradients. Knows no network.

A weight that is computed from the gradient it multiplies makes the expected update biased. So the weights come from
moving averages over the steps before: `weights` first, `update` with the new gradients after it.

In a loop of one's own:

    weighting = Moments()
    for x, y in batches:
        joint_backward(weighting, lower_loss(x, y), upper_loss(x, y), params)
        optimizer.step()
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from advibp.errors import UserError

Branch = Literal["start", "agree", "adv", "ibp", "fixed"]

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
    """Past gradient statistics in, weights out."""

    def weights(self, fosc: Tensor | float = 0.0, c_t: float = 0.0) -> Weights: ...
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
    """Algorithm 1. Gradients travel as the rows of one (2, n) matrix: adversarial first, abstract second."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.99) -> None:
        self.beta1, self.beta2 = beta1, beta2
        self.t = 0
        self.m_hat: Tensor | None = None  # (2, n)
        self.v_hat: Tensor | None = None  # (2,)

    def weights(self, fosc: Tensor | float = 0.0, c_t: float = 0.0) -> Weights:
        """Weights from the gradients of earlier steps only. FOSC is looked at only in a conflict."""
        if self.m_hat is None or self.v_hat is None:
            return Weights(0.5, 0.5, 0.0, "start", math.nan)
        gram = self.m_hat @ self.m_hat.T / (1 - self.beta1**self.t) ** 2
        v = self.v_hat / (1 - self.beta2**self.t)
        # One transfer to the host for all five numbers.
        a, p, _, b, v_adv, v_ibp = torch.cat([gram.flatten(), v]).tolist()
        strong = p <= 0 and bool(fosc <= c_t)
        return compute_weights(p, a, b, v_adv, v_ibp, strong=strong)

    def update(self, gradients: Tensor) -> None:
        """Take in this step's gradients (2, n), for the weights of the next step."""
        norms = torch.linalg.vector_norm(gradients, dim=1)
        if self.m_hat is None or self.v_hat is None:
            self.m_hat, self.v_hat = torch.zeros_like(gradients), torch.zeros_like(norms)
        self.m_hat.lerp_(gradients, 1 - self.beta1)
        self.v_hat.lerp_(norms, 1 - self.beta2)
        self.t += 1

    def state(self) -> dict[str, Tensor]:
        if self.m_hat is None or self.v_hat is None:
            return {}
        return {"t": torch.tensor(self.t), "m_hat": self.m_hat, "v_hat": self.v_hat}

    def load_state(self, state: dict[str, Tensor]) -> None:
        self.t = int(state["t"]) if state else 0
        # Copies: `update` works in place, and must not write into the state it was loaded from.
        self.m_hat = state["m_hat"].clone() if state else None
        self.v_hat = state["v_hat"].clone() if state else None


class Fixed:
    """Constant weights; 1 and 1 are the paper's baseline."""

    def __init__(self, adv: float = 1.0, ibp: float = 1.0) -> None:
        self._weights = Weights(adv, ibp, 0.0, "fixed", math.nan)

    def weights(self, fosc: Tensor | float = 0.0, c_t: float = 0.0) -> Weights:
        return self._weights

    def update(self, gradients: Tensor) -> None:
        pass

    def state(self) -> dict[str, Tensor]:
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        pass


@dataclass
class FlatGradients:
    """Gradients of several losses as rows of one matrix (rows, n), in the order of `params`."""

    params: Sequence[Tensor]
    rows: Tensor

    @classmethod
    def zeros(cls, params: Sequence[Tensor], rows: int = 2) -> FlatGradients:
        return cls(params, params[0].new_zeros(rows, sum(p.numel() for p in params)))

    def take(
        self, row: int, loss: Tensor, extra: Sequence[Tensor] = (), *, keep_graph: bool = False
    ) -> tuple[Tensor, ...]:
        """Backward pass of `loss` into one row; returns the gradients with respect to `extra`."""
        wanted = [*self.params, *extra]
        grads = torch.autograd.grad(loss, wanted, materialize_grads=True, retain_graph=keep_graph)
        torch.cat([g.reshape(-1) for g in grads[: len(self.params)]], out=self.rows[row])
        return grads[len(self.params) :]

    def assign(self, flat: Tensor) -> None:
        """Let every parameter's .grad be its part of the flat vector (n,). Views, not copies."""
        parts = flat.split([p.numel() for p in self.params])
        for p, g in zip(self.params, parts, strict=True):
            p.grad = g.view_as(p)


def combine(weights: Weights, gradients: Tensor, ibp_loss: Tensor | float) -> Tensor:
    """g_final = kappa_adv g_adv + (kappa_IBP + 2 kappa_reg L_IBP) g_IBP, (2, n) -> (n,)."""
    k_adv, k_ibp = weights.of_gradients(float(ibp_loss) if weights.reg else 0.0)
    return torch.mul(gradients[0], k_adv).add_(gradients[1], alpha=k_ibp)


def joint_backward(
    weighting: Weighting,
    lower: Tensor,
    upper: Tensor,
    params: Iterable[Tensor],
    *,
    fosc: Tensor | float = 0.0,
    c_t: float = 0.0,
) -> Weights:
    """Instead of `loss.backward()`: two backward passes, Algorithm 1, and the combined gradient in every .grad."""
    trainable = [p for p in params if p.requires_grad]
    if not trainable:
        raise UserError("joint_backward got no trainable parameter; pass list(net.parameters()), no used-up iterator.")
    flat = FlatGradients.zeros(trainable)
    flat.take(0, lower, keep_graph=True)  # both losses may come from one forward pass
    flat.take(1, upper)
    weights = weighting.weights(fosc, c_t)
    flat.assign(combine(weights, flat.rows, upper.detach()))
    weighting.update(flat.rows)
    return weights
