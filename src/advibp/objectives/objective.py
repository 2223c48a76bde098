"""What an objective is: its signature, its result, its hyperparameters and its cost."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from advibp.moved import renamed_keywords
from advibp.objectives.ball import PIXELS, Ball


class Evaluation(NamedTuple):
    """The result of an objective.

    Attributes:
        loss: the loss, a scalar: the mean over the batch.
        point: the adversarial examples at which it was computed, (B, ...), with `requires_grad`; None if the objective
            has none, or if `Context.wants_fosc` is False.

    Examples:
        >>> import torch
        >>> from advibp.objectives import Ball, ibp
        >>> evaluation = ibp(torch.nn.Linear(2, 3), Ball(torch.rand(4, 2), 0.1), torch.tensor([0, 1, 2, 0]))
        >>> evaluation.loss.shape, evaluation.point
        (torch.Size([]), None)
    """

    loss: Tensor
    point: Tensor | None = None


@renamed_keywords(regulariser="regularizer")
@dataclass(frozen=True)
class Settings:
    """Hyperparameters of the objectives. A `Recipe` has a key of the same name and the same default for each.

    Args:
        attack_steps: number of PGD steps.
        beta: weight of CROWN-IBP in the margins after the ramp.
        domain: the sets of DiffAI's loss: box, hybrid or deepz.
        symbols: largest number of noise symbols of a hybrid zonotope.
        regularizer: weight of the regularizer.
        projections: number of random projections that estimate a latent zonotope.

    Examples:
        >>> import advibp
        >>> from advibp.objectives import Settings
        >>> Settings.of(advibp.Recipe(eps=0.1, method="pgd", attack_steps=20)).attack_steps
        20
    """

    attack_steps: int = 8
    beta: float = 0.0
    domain: str = "box"
    symbols: int = 8
    regularizer: float = 0.0
    projections: int = 16

    @classmethod
    def of(cls, recipe: object) -> Settings:
        """Read the settings from the attributes of a recipe."""
        return cls(**{field.name: getattr(recipe, field.name) for field in fields(cls)})


@dataclass(frozen=True)
class Context:
    """What an objective may depend on besides the network, the inputs and the labels.

    Args:
        ramped: finished share of the eps ramp, 0 to 1.
        wants_fosc: whether the training step needs the adversarial examples to compute FOSC.
        latent: whether the inputs are latent, i.e. whether this is a layer-wise stage.
        settings: the hyperparameters.

    Examples:
        >>> from advibp.objectives import Context, Settings
        >>> Context(ramped=0.5, settings=Settings(beta=0.2)).beta
        0.6
    """

    ramped: float = 1.0
    wants_fosc: bool = False
    latent: bool = False
    settings: Settings = Settings()

    @property
    def beta(self) -> float:
        """Weight of CROWN-IBP in the margins: it falls from 1 to `settings.beta` over the ramp (Zhang et al. 2020)."""
        return 1 - self.ramped * (1 - self.settings.beta)


DEFAULT_CONTEXT = Context()


class Objective(Protocol):
    """A loss over a set of inputs.

    Examples:
        >>> import torch
        >>> from torch.nn.functional import cross_entropy
        >>> from advibp.objectives import DEFAULT_CONTEXT, Ball, Evaluation
        >>> def at_the_center(net, inputs, y, context=DEFAULT_CONTEXT):
        ...     return Evaluation(cross_entropy(net(inputs.x), y))
        >>> at_the_center(torch.nn.Linear(2, 3), Ball(torch.rand(1, 2), 0.1), torch.tensor([0])).loss.shape
        torch.Size([])
    """

    def __call__(self, net: Any, inputs: Ball, y: Tensor, context: Context = DEFAULT_CONTEXT) -> Evaluation:
        """Return the loss.

        Args:
            net: the network, or the layers behind a cut; maps (B, ...) to logits (B, K).
            inputs: the set of inputs.
            y: labels, (B,).
            context: what else the loss may depend on.
        """


Cost = Callable[[Context, int], float]


def costs(cost: float | Cost) -> Callable[[Callable[..., Evaluation]], Objective]:
    """Declare what an objective and its gradient cost, which is used to estimate the remaining time.

    Args:
        cost: number of forward passes, or a function that maps the context and the number of classes to it. A backward
            pass counts as two forward passes, or as one if it computes the input gradient only. An interval counts as
            two points.

    Returns:
        A decorator for objectives.
    """

    def decorate(function: Callable[..., Evaluation]) -> Objective:
        objective = as_objective(function)
        objective.cost = cost if callable(cost) else lambda context, classes: cost  # type: ignore[attr-defined]
        return objective

    return decorate


def cost_of(objective: Objective | None, context: Context = DEFAULT_CONTEXT, classes: int = 10) -> float:
    """Return the cost of an objective in forward passes; 3 if it declares none, and 0 for None."""
    if objective is None:
        return 0.0
    return float(getattr(objective, "cost", lambda context, classes: 3.0)(context, classes))


def as_objective(function: Callable[..., Evaluation]) -> Objective:
    """Let a function be called and defined by the old signature (net, x, y, eps, within, now) as well.

    The old signature works for one release and warns.
    """
    if getattr(function, "is_objective", False) or not inspect.isroutine(function):
        return function
    names = [*inspect.signature(function).parameters]
    defined_old = "eps" in names or names[1:2] == ["x"]
    if defined_old:
        _warn(f"{function.__name__} is defined as an objective (net, x, y, eps, within, now)")

    @functools.wraps(function)
    def objective(
        net: Any,
        inputs: Ball | Tensor,
        y: Tensor,
        context: Any = DEFAULT_CONTEXT,
        within: Any = PIXELS,
        now: Context = DEFAULT_CONTEXT,
        **old: Any,
    ) -> Evaluation:
        if not isinstance(inputs, Ball):
            _warn(f"{function.__name__} is called as an objective (net, x, y, eps, within, now)")
            inputs, context = Ball(inputs, old.pop("eps", context), within), now
        if defined_old:
            return function(net, inputs.x, y, inputs.eps, inputs.within, context)
        return function(net, inputs, y, context)

    objective.is_objective = True  # type: ignore[attr-defined]
    return objective


def _warn(what: str) -> None:
    message = f"{what}; objectives have the signature (net, inputs, y, context), where inputs is an objectives.Ball."
    warnings.warn(message, DeprecationWarning, stacklevel=4)
