"""Algorithm 1: weights of two losses from the moments of their past gradients.

A weight that is computed from the gradient it multiplies makes the expected update biased. Therefore the weights are
computed from moving averages of the gradients of earlier steps: call `weights` first, then `update` with the new
gradients. `joint_backward` does both.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.moved import renamed_keywords

Branch = Literal["start", "agree", "lower", "upper", "conflict", "fixed"]

#: Decay of the gradient moments and of the norm moments: the defaults of `Moments` and of a recipe. The paper uses 0.9
#: and 0.99.
BETA1, BETA2 = 0.99, 0.99

# Smallest norm moment, so that a vanished gradient does not cause a division by zero.
_TINY = 1e-12


class Weights(NamedTuple):
    """The weights of one step.

    Attributes:
        lower: kappa_lower, the weight of the lower loss (kappa_adv in the paper).
        upper: kappa_upper, the weight of the upper loss (kappa_IBP in the paper).
        reg: kappa_reg, the weight of the squared upper loss.
        branch: the branch of Algorithm 1: "agree"; "lower" or "upper", the loss that is prioritized in a conflict;
            "start" in the first step; "conflict" for rules that prioritize neither loss; "fixed" for weights by another
            rule.
        angle: angle between the two first moments in degrees; nan if it is not known.

    Examples:
        >>> from advibp.weighting import Weights
        >>> Weights(1.0, 0.5, 0.0, "lower", 95.0).of_gradients(upper_loss=2.0)
        (1.0, 0.5)
    """

    lower: float
    upper: float
    reg: float
    branch: Branch
    angle: float

    def of_gradients(self, upper_loss: float) -> tuple[float, float]:
        """Return the factors of g_lower and g_upper.

        The term kappa_reg L_upper^2 has the gradient 2 kappa_reg L_upper g_upper, so it needs no backward pass of its
        own.
        """
        return self.lower, self.upper + 2 * self.reg * upper_loss

    @property
    def adv(self) -> float:
        """Old name of `lower`."""
        warnings.warn("Weights.adv is now Weights.lower; use that.", DeprecationWarning, stacklevel=2)
        return self.lower

    @property
    def ibp(self) -> float:
        """Old name of `upper`."""
        warnings.warn("Weights.ibp is now Weights.upper; use that.", DeprecationWarning, stacklevel=2)
        return self.upper


Weights.__new__ = renamed_keywords(adv="lower", ibp="upper")(Weights.__new__)  # type: ignore[method-assign]


class Weighting(Protocol):
    """Computes the weights of two losses. Any object with these methods is one.

    Examples:
        >>> from advibp.weighting import Fixed, Weighting
        >>> weighting: Weighting = Fixed(1.0, 2.0)
        >>> weighting.weights().upper
        2.0
    """

    def needs_fosc(self) -> bool:
        """Return whether the next weights depend on FOSC. FOSC costs an input gradient, so it is computed only then."""

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        """Return the weights of this step.

        Args:
            fosc: FOSC of the attack. The attack counts as strong if fosc <= c_t, so by default it counts as weak.
            c_t: threshold of FOSC.
            ramped: finished share of the eps ramp, 0 to 1.
            gradients: gradients of this step, (2, n), for rules that accept a biased update.
        """

    def update(self, gradients: Tensor) -> None:
        """Take in the gradients of this step, (2, n): lower loss first."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state as tensors by name."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""


def with_state_dict(weighting: Any) -> Weighting:
    """Return a user's weighting. Methods with names of release 0.1 are renamed, with a warning."""
    names = [set(vars(cls)) & {"state", "state_dict"} for cls in type(weighting).__mro__]
    defines_state: set[str] = next(filter(None, names), set())
    if "state_dict" not in defines_state:
        if "state" not in defines_state:
            raise TypeError("it has no state_dict and load_state_dict")
        name = type(weighting).__name__
        message = f"{name}.state and load_state are now state_dict and load_state_dict; rename them."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        weighting.state_dict, weighting.load_state_dict = weighting.state, weighting.load_state
    if not hasattr(weighting, "needs_fosc") and hasattr(weighting, "asks_fosc"):
        message = f"{type(weighting).__name__}.asks_fosc is now needs_fosc; rename it."
        warnings.warn(message, DeprecationWarning, stacklevel=2)
        weighting.needs_fosc = weighting.asks_fosc
    return cast(Weighting, weighting)


@renamed_keywords(v_adv="v_lower", v_ibp="v_upper")
def compute_weights(p: float, a: float, b: float, v_lower: float, v_upper: float, *, strong: bool) -> Weights:
    """Return the weights of Algorithm 1 from the five numbers that they depend on.

    Args:
        p: <m_lower, m_upper>, the inner product of the bias-corrected gradient moments.
        a: |m_lower|^2.
        b: |m_upper|^2.
        v_lower: bias-corrected moment of the norm of g_lower.
        v_upper: bias-corrected moment of the norm of g_upper.
        strong: whether FOSC <= c_t.
    """
    v_lower, v_upper = max(v_lower, _TINY), max(v_upper, _TINY)
    angle = math.degrees(math.acos(max(-1.0, min(1.0, p / math.sqrt(a * b))))) if a * b > 0 else math.nan
    if p > 0:
        # Both moments are projected on their bisector m_lower / v_lower + m_upper / v_upper, and averaged.
        onto = a / v_lower + b / v_upper + p / v_lower + p / v_upper
        length = a / v_lower**2 + b / v_upper**2 + 2 * p / (v_lower * v_upper)
        gamma = 0.5 * onto / length
        return Weights(gamma / v_lower, gamma / v_upper, 0.0, "agree", angle)
    if strong:
        return Weights(1.0, -p / v_upper**2, 0.0, "lower", angle)
    return Weights(-p / v_lower**2, 1.0, 0.5, "upper", angle)


class Moments:
    """Algorithm 1: weights from moving averages of the two gradients and of their norms.

    Args:
        beta1: decay of the gradient moments.
        beta2: decay of the norm moments.
        scope: the columns of the gradients from which the weights are computed. Default: all. The weights apply to all
            columns.

    Attributes:
        t: number of updates.
        m: gradient moments without bias correction, (2, n); None before the first update.
        v: norm moments without bias correction, (2,); None before the first update.

    Examples:
        >>> import torch
        >>> from advibp import Moments
        >>> weighting = Moments()
        >>> weighting.update(torch.tensor([[1.0, 0.0], [1.0, 1.0]]))
        >>> weighting.weights().branch
        'agree'
    """

    def __init__(self, beta1: float = BETA1, beta2: float = BETA2, scope: slice | None = None) -> None:
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not isinstance(value, int | float) or not 0 <= value < 1:
                raise UserError(f"{name} is {value!r}, but must be a number in [0, 1): the decay of a moment.")
        self.beta1, self.beta2, self.scope = beta1, beta2, scope
        self.t = 0
        self.m: Tensor | None = None
        self.v: Tensor | None = None
        self._cached: tuple[float, float, float, float, float] | None = None

    def _numbers(self) -> tuple[float, float, float, float, float] | None:
        """Return the first five arguments of `compute_weights`; None before the first update."""
        if self._cached is None and self.m is not None and self.v is not None:
            lower, upper = self.m
            products = torch.cat([torch.mv(self.m, lower), torch.dot(upper, upper)[None]])
            m_hat_products = products / (1 - self.beta1**self.t) ** 2
            v_hat = self.v / (1 - self.beta2**self.t)
            # One transfer to the host for all five.
            a, p, b, v_lower, v_upper = torch.cat([m_hat_products, v_hat]).tolist()
            self._cached = p, a, b, v_lower, v_upper
        return self._cached

    def needs_fosc(self) -> bool:
        """Return whether the next weights depend on FOSC, i.e. whether the past gradients conflict."""
        numbers = self._numbers()
        return numbers is not None and not numbers[0] > 0

    def weights(
        self, fosc: Tensor | float = math.inf, c_t: float = 0.0, *, ramped: float = 1.0, gradients: Tensor | None = None
    ) -> Weights:
        """Return weights that depend on the gradients of earlier steps only.

        Args:
            fosc: FOSC of the attack, 0 or more. Default: infinite, i.e. the attack counts as weak.
            c_t: the largest `fosc` of a strong attack. In a conflict the lower loss is prioritized if fosc <= c_t, and
                the upper loss otherwise.
            ramped: not used.
            gradients: not used.
        """
        numbers = self._numbers()
        if numbers is None:
            return Weights(0.5, 0.5, 0.0, "start", math.nan)
        return compute_weights(*numbers, strong=self.needs_fosc() and bool(fosc <= c_t))

    def update(self, gradients: Tensor) -> None:
        """Take in this step's gradients, (2, n), for the weights of the next step."""
        if self.scope is not None:
            gradients = gradients[:, self.scope]
        norms = torch.linalg.vector_norm(gradients, dim=1)
        if self.m is None or self.v is None:
            self.m, self.v = torch.zeros_like(gradients), torch.zeros_like(norms)
        self.m.lerp_(gradients, 1 - self.beta1)
        self.v.lerp_(norms, 1 - self.beta2)
        self.t += 1
        self._cached = None

    def state(self) -> dict[str, Tensor]:
        """Old name of `state_dict`."""
        warnings.warn("Moments.state is now state_dict; use that.", DeprecationWarning, stacklevel=2)
        return Moments.state_dict(self)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Old name of `load_state_dict`."""
        warnings.warn("Moments.load_state is now load_state_dict; use that.", DeprecationWarning, stacklevel=2)
        Moments.load_state_dict(self, state)

    def state_dict(self) -> dict[str, Tensor]:
        """Return `t`, `m` and `v`; an empty dictionary before the first update."""
        if self.m is None or self.v is None:
            return {}
        return {"t": torch.tensor(self.t), "m": self.m, "v": self.v}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what `state_dict` returned. The names `m_hat` and `v_hat` of release 0.1 are read too."""
        if not isinstance(state, dict) or not all(isinstance(tensor, Tensor) for tensor in state.values()):
            raise UserError("The state of Moments must be a dictionary of tensors, as state_dict returns it.")
        state = {name.removesuffix("_hat"): tensor for name, tensor in state.items()}
        if state and state.keys() != {"t", "m", "v"}:
            raise UserError(f"The state of Moments must have the keys t, m and v, not {', '.join(state)}.")
        self.t = int(state["t"]) if state else 0
        # Copies, because `update` works in place.
        self.m = state["m"].clone() if state else None
        self.v = state["v"].clone() if state else None
        self._cached = None
