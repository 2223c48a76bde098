"""What an objective is: its signature, its result, its hyperparameters and its cost."""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from advibp.bounds.graph.cut import Cut
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
        attack_restarts: number of random starts of PGD; the point with the highest loss is used.
        attack_eps_factor: radius of the attack, relative to eps.
        beta: weight of CROWN-IBP in the margins after the ramp.
        loss_fusion: whether CROWN-IBP bounds the loss by one row per image, not by one row per margin.
        domain: the sets of DiffAI's loss: box, hybrid or deepz.
        symbols: largest number of noise symbols of a hybrid zonotope.
        regularizer: weight of the regularizer.
        projections: number of random projections that estimate a latent zonotope.
        alpha: weight of the IBP loss in MTL-IBP, CC-IBP and EXP-IBP.
        sabr_lambda: half width of SABR's box, relative to eps.
        relu_shrink: factor of the upper ends of unstable ReLUs in SABR and TAPS.
        taps_layers: number of layers in which TAPS attacks the latent box.
        taps_weight: factor of the gradient of TAPS's latent loss.

    Examples:
        >>> import advibp
        >>> from advibp.objectives import Settings
        >>> Settings.of(advibp.Recipe(eps=0.1, method="pgd", attack_steps=20)).attack_steps
        20
    """

    attack_steps: int = 8
    attack_restarts: int = 1
    attack_eps_factor: float = 1.0
    beta: float = 0.0
    loss_fusion: bool = False
    domain: str = "box"
    symbols: int = 8
    regularizer: float = 0.0
    projections: int = 16
    alpha: float = 0.5
    sabr_lambda: float = 0.4
    relu_shrink: float = 1.0
    taps_layers: int = 4
    taps_weight: float = 4.0

    @classmethod
    def of(cls, recipe: object) -> Settings:
        """Read the settings from the attributes of a recipe."""
        return cls(**{field.name: getattr(recipe, field.name) for field in fields(cls)})


@dataclass
class Shared:
    """What the objectives of one training step share, so that nothing is computed twice.

    Attributes:
        x_adv: the adversarial examples of `adversarial_examples`, (B, ...); None before the first objective needs them.
        regularizer: Shi's regularizers with their weight, a scalar; None before a pass on a box computes them.

    Examples:
        >>> import torch
        >>> from advibp import objectives
        >>> net, inputs, y = torch.nn.Linear(2, 3), objectives.Ball(torch.rand(4, 2), 0.1), torch.tensor([0, 1, 2, 0])
        >>> context = objectives.Context(shared=objectives.Shared())
        >>> lower, upper = objectives.attacked(net, inputs, y, context), objectives.sabr(net, inputs, y, context)
        >>> context.shared.x_adv.shape  # of both
        torch.Size([4, 2])
    """

    x_adv: Tensor | None = None
    regularizer: Tensor | None = None


@dataclass(frozen=True)
class Context:
    """What an objective may depend on besides the network, the inputs and the labels.

    Args:
        ramped: finished share of the eps ramp, 0 to 1.
        wants_fosc: whether the training step needs the adversarial examples to compute FOSC.
        latent: whether the inputs are latent, i.e. whether this is a layer-wise stage.
        settings: the hyperparameters.
        shi: weight of Shi's regularizers in this step.
        shared: what the objectives of the step share; None if there is nothing to share.
        cut: the network, split for TAPS; None: TAPS splits it.

    Examples:
        >>> from advibp.objectives import Context, Settings
        >>> Context(ramped=0.5, settings=Settings(beta=0.2)).beta
        0.6
    """

    ramped: float = 1.0
    wants_fosc: bool = False
    latent: bool = False
    settings: Settings = Settings()
    shi: float = 0.0
    shared: Shared | None = None
    cut: Cut | None = None

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


def costs(
    cost: float | Cost, *, bound: bool = True, shares_attack: bool = False
) -> Callable[[Callable[..., Evaluation]], Objective]:
    """Declare what an objective and its gradient cost, which is used to estimate the remaining time.

    Args:
        cost: number of forward passes, or a function that maps the context and the number of classes to it. A backward
            pass counts as two forward passes, or as one if it computes the input gradient only. An interval counts as
            two points.
        bound: whether the loss bounds the robust loss, from below or from above. False for an approximation.
        shares_attack: whether its adversarial examples are those of `Context.shared`, so that two such objectives of a
            step have one attack.

    Returns:
        A decorator for objectives.
    """

    def decorate(function: Callable[..., Evaluation]) -> Objective:
        objective = as_objective(function)
        objective.cost = cost if callable(cost) else lambda context, classes: cost  # type: ignore[attr-defined]
        objective.bound, objective.shares_attack = bound, shares_attack  # type: ignore[attr-defined]
        return objective

    return decorate


def cost_of(objective: Objective | None, context: Context = DEFAULT_CONTEXT, classes: int = 10) -> float:
    """Return the cost of an objective in forward passes; 3 if it declares none, and 0 for None."""
    if objective is None:
        return 0.0
    return float(getattr(objective, "cost", lambda context, classes: 3.0)(context, classes))


def is_bound(objective: Objective | None) -> bool:
    """Return whether an objective bounds the robust loss. True for None, and for objectives that do not say."""
    return bool(getattr(objective, "bound", True))


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
