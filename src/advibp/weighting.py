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
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from advibp.errors import UserError

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


class FlatGradients:
    """Gradients of several losses as rows of one matrix (rows, n), and their combination (n,), which the parameters'
    .grad show: views into one buffer, in the order of `params`."""

    def __init__(self, params: Sequence[Tensor], rows: int = 2) -> None:
        self.params = params
        buffer = params[0].new_zeros(rows + 1, sum(p.numel() for p in params))
        self.rows, self.final = buffer[:-1], buffer[-1]
        self._views = [self._shaped(row) for row in buffer]
        # A .grad must have the strides of its parameter; where those are not the usual ones it can't be a view.
        self._strided = []
        for p, view in zip(params, self._views[-1], strict=True):
            p.grad = view if p.stride() == view.stride() else torch.zeros_like(p)
            if p.grad is not view:
                self._strided.append((p.grad, view))

    def _shaped(self, flat: Tensor) -> list[Tensor]:
        parts = flat.split([p.numel() for p in self.params])
        return [part.view(p.shape) for part, p in zip(parts, self.params, strict=True)]

    def take(
        self,
        row: int,
        loss: Tensor,
        extra: Sequence[Tensor] = (),
        *,
        share: float = 1.0,
        add: bool = False,
        keep_graph: bool = False,
    ) -> tuple[Tensor, ...]:
        """Backward pass of `loss`, the gradient times `share` into one row or added to it; row -1 is `final`.

        Returns the gradients with respect to `extra`.
        """
        found = torch.autograd.grad(loss, [*self.params, *extra], materialize_grads=True, retain_graph=keep_graph)
        grads = list(found[: len(self.params)])
        if add:
            torch._foreach_add_(self._views[row], grads, alpha=share)
        else:
            torch._foreach_copy_(self._views[row], grads)
            if share != 1:
                torch._foreach_mul_(self._views[row], share)
        return found[len(self.params) :]

    def deliver(self) -> None:
        """Let every .grad be its part of `final`."""
        if self._strided:
            grads, views = zip(*self._strided, strict=True)
            torch._foreach_copy_(list(grads), list(views))


def combine(weights: Weights, gradients: Tensor, ibp_loss: Tensor | float, out: Tensor | None = None) -> Tensor:
    """g_final = kappa_adv g_adv + (kappa_IBP + 2 kappa_reg L_IBP) g_IBP, (2, n) -> (n,)."""
    k_adv, k_ibp = weights.of_gradients(float(ibp_loss) if weights.reg else 0.0)
    return torch.mul(gradients[0], k_adv, out=out).add_(gradients[1], alpha=k_ibp)


def joint_backward(
    weighting: Weighting,
    lower: Tensor,
    upper: Tensor,
    params: Iterable[Tensor],
    *,
    fosc: Tensor | float = math.inf,
    c_t: float = 0.0,
    ramped: float = 1.0,
) -> Weights:
    """Instead of `loss.backward()`: two backward passes, Algorithm 1, and the combined gradient in every .grad.

    Args:
        weighting: for example `Moments()`; it takes in the gradients for the next step.
        lower: the loss from below, a scalar; in the paper the adversarial loss.
        upper: the loss from above, a scalar; in the paper the IBP loss. Both may come from one forward pass.
        params: parameters of both losses; those that are not trainable are skipped.
        fosc: how far the attack behind `lower` is from the strongest one, 0 or more; not given: it counts as weak.
        c_t: the largest `fosc` that counts as strong. When the gradients conflict, `upper` is prioritized unless
            fosc <= c_t; so it always is if neither is given. To prioritize `lower` always, pass fosc=0.
        ramped: the share of the eps ramp that is over, 0 to 1, for weights by a schedule.

    Returns:
        The weights, and which branch of Algorithm 1 they come from.
    """
    trainable = [p for p in params if p.requires_grad]
    if not trainable:
        raise UserError("joint_backward got no trainable parameter; pass list(net.parameters()), no used-up iterator.")
    flat = FlatGradients(trainable)
    flat.take(0, lower, keep_graph=True)  # both losses may come from one forward pass
    flat.take(1, upper)
    weights = weighting.weights(fosc, c_t, ramped=ramped, gradients=flat.rows)
    combine(weights, flat.rows, upper.detach(), out=flat.final)
    flat.deliver()
    weighting.update(flat.rows)
    return weights
