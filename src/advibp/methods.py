"""The table of methods, which extends the paper's Table 1: lower objective, upper objective and weighting of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from advibp import objectives, user_code
from advibp.display.object_summary import Summarized
from advibp.errors import UserError
from advibp.moved import renamed_attribute, renamed_keywords
from advibp.objectives import Objective, regularizers
from advibp.weighting import Fixed, Moments, Scheduled, Weighting, surgery, with_state_dict


class WeightingOptions(Protocol):
    """The keys of a recipe that determine a weighting."""

    @property
    def weighting(self) -> str | None: ...
    @property
    def kappa(self) -> float | None: ...
    @property
    def scope(self) -> str: ...
    @property
    def beta1(self) -> float: ...
    @property
    def beta2(self) -> float: ...


class Properties(NamedTuple):
    """Columns of Table 1. None: not applicable."""

    efficient: bool | None = None
    empirical: bool = False
    provable: bool = False
    no_tuning: bool | None = None  # whether no loss weights or weight schedules have to be tuned


@renamed_keywords(says="description", reads="recipe_keys", needs="limitations")
@dataclass(frozen=True, kw_only=True, repr=False)
class Method(Summarized):
    """A training method: one row of Table 1. A user's Method can be used wherever a method's name can.

    A method without an upper objective minimizes the lower one alone, and vice versa.

    Args:
        description: a short description of the loss.
        name: the method's name.
        lower: the lower objective; None if there is none.
        upper: the upper objective; None if there is none.
        weighting: how two losses are weighted: a name in WEIGHTINGS, or a function without arguments that returns a
            `Weighting`.
        kappa: weight of the lower loss for fixed or scheduled weights, if the recipe has none.
        latent: the sets of layer-wise stages; None if the method has no stages.
        recipe: the method's own defaults of recipe keys.
        recipe_keys: recipe keys of this method that not every method accepts.
        batchnorm: whether its bounds support BatchNorm in training.
        per_image: whether its losses are means over images that do not depend on each other.
        verifier: the verifier that it is trained for; "" for none.
        properties: columns of Table 1.
        limitations: a short description of its limitations.

    Raises:
        UserError: if the objectives, the weighting or `latent` are not valid.

    Examples:
        >>> import advibp
        >>> from advibp import objectives
        >>> pgd_ibp = advibp.Method(
        ...     name="pgd-ibp", description="PGD + IBP", lower=objectives.pgd, upper=objectives.ibp, weighting="moments"
        ... )
        >>> # advibp.train(net, data, method=pgd_ibp, eps=0.3)
    """

    description: str
    name: str = "own"
    lower: Objective | None = None
    upper: Objective | None = None
    weighting: str | Callable[[], Weighting] = "fixed"
    kappa: float | None = None
    latent: Literal["box", "zonotope"] | None = None
    recipe: Mapping[str, Any] = field(default_factory=dict)
    recipe_keys: tuple[str, ...] = ()
    batchnorm: bool = True
    per_image: bool = True
    verifier: str = "ibp"
    properties: Properties = Properties()
    limitations: str = ""

    says = renamed_attribute("Method", "says", "description")
    reads = renamed_attribute("Method", "reads", "recipe_keys")
    needs = renamed_attribute("Method", "needs", "limitations")

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None:
            raise UserError("A Method needs a lower objective, an upper one, or both.")
        if not all(objective is None or callable(objective) for objective in (self.lower, self.upper)):
            raise UserError("lower and upper must be functions, such as advibp.objectives.ibp, not names.")
        if not callable(self.weighting) and self.weighting not in WEIGHTINGS:
            raise UserError(f"There is no weighting '{self.weighting}'; choose from {', '.join(WEIGHTINGS)}.")
        if self.latent not in (None, "box", "zonotope") or (self.latent == "zonotope" and self.upper):
            raise UserError(
                "latent must be None, 'box' or 'zonotope'; 'zonotope' is allowed only without an upper objective."
            )
        for key in ("lower", "upper"):
            if (objective := getattr(self, key)) is not None:
                object.__setattr__(self, key, objectives.as_objective(objective))

    @property
    def upper_is_bound(self) -> bool:
        """Whether the upper objective bounds the robust loss. False for approximations such as SABR's."""
        return objectives.is_bound(self.upper)

    def _summary(self) -> dict[str, object]:
        sides = {"lower": self.lower, "upper": self.upper}
        facts: dict[str, object] = {k: getattr(f, "__name__", type(f).__name__) for k, f in sides.items() if f}
        if len(facts) == 2:
            weighting = self.weighting
            facts["weighting"] = getattr(weighting, "__name__", "") if callable(weighting) else weighting
        return {"name": self.name, "description": self.description, **facts}


#: Weightings by name: functions of beta1, beta2, the scope of the moments, and kappa (None: not given).
WEIGHTINGS: dict[str, Callable[[float, float, slice | None, float | None], Weighting]] = {
    "moments": lambda beta1, beta2, scope, kappa: Moments(beta1, beta2, scope),
    "fixed": lambda beta1, beta2, scope, kappa: Fixed() if kappa is None else Fixed(kappa, 1 - kappa),
    "scheduled": lambda beta1, beta2, scope, kappa: Scheduled(1.0, 0.5 if kappa is None else kappa),
    "pcgrad": lambda beta1, beta2, scope, kappa: surgery.pcgrad(),
    "mgda": lambda beta1, beta2, scope, kappa: surgery.mgda(),
}

_NO_WARM_UP = {"warmup_natural": 0.0, "warmup_adversarial": 0.0}
_NATURAL_WARM_UP = {"warmup_adversarial": 0.0}
#: Defaults of the methods since the paper, from the recipes that they share.
_FIELD = {
    **_NATURAL_WARM_UP,
    "init": "ibp",
    "ramp": "28%",
    "ramp_shape": "smooth",
    "shi": 0.5,
    "lr": 5e-4,
    "lr_shape": "steps",
    "lr_milestones": ("71%", "86%"),
    "lr_factor": 0.2,
}
#: The initialization for IBP keeps intervals small. Deep networks that have no use for it may not learn with it.
_NO_BOUNDS = {"init": "default"}
_ATTACK_KEYS = ("attack_steps", "attack_restarts")
_COMBINED_KEYS = ("alpha", *_ATTACK_KEYS, "attack_eps_factor")
_SABR_KEYS = ("sabr_lambda", "relu_shrink", *_ATTACK_KEYS)
_TAPS_KEYS = ("taps_layers", "taps_weight", "relu_shrink", *_ATTACK_KEYS)
_STAPS_KEYS = ("sabr_lambda", *_TAPS_KEYS)
_APPROXIMATE = Properties(efficient=True, empirical=True, provable=True, no_tuning=False)

METHODS: dict[str, Method] = {
    "standard": Method(
        description="regular loss",
        lower=objectives.regular,
        recipe={**_NO_WARM_UP, **_NO_BOUNDS, "ramp": 0.0},
        verifier="",
        properties=Properties(efficient=True),
    ),
    "fgsm": Method(
        description="adversarial loss, FGSM",
        lower=objectives.fgsm,
        recipe={**_NATURAL_WARM_UP, **_NO_BOUNDS},
        verifier="",
        properties=Properties(efficient=True, empirical=True),
        limitations="catastrophic overfitting is possible",
    ),
    "rs-fgsm": Method(
        description="adversarial loss, FGSM with random start",
        lower=objectives.adversarial,
        recipe={**_NATURAL_WARM_UP, **_NO_BOUNDS},
        verifier="",
        properties=Properties(efficient=True, empirical=True),
    ),
    "pgd": Method(
        description="adversarial loss, PGD",
        lower=objectives.pgd,
        recipe={**_NATURAL_WARM_UP, **_NO_BOUNDS},
        recipe_keys=("attack_steps",),
        verifier="",
        properties=Properties(efficient=False, empirical=True),
    ),
    "colt": Method(
        description="PGD loss in latent zonotopes, layer by layer, + ReLU area",
        lower=regularizers.latent_pgd,
        latent="zonotope",
        recipe={**_NATURAL_WARM_UP, "stages": "all", "regularizer": 1e-3, "l1": 1e-5},
        recipe_keys=("attack_steps", "regularizer", "projections"),
        verifier="deepz",
        properties=Properties(efficient=False, empirical=True, provable=True),
        batchnorm=False,
        per_image=False,
        limitations="only ReLU networks; no BatchNorm in training",
    ),
    "diffai": Method(
        description="regular + zonotope loss, fixed weights",
        lower=objectives.regular,
        upper=objectives.abstract,
        kappa=0.5,
        recipe={**_NATURAL_WARM_UP, "domain": "hybrid"},
        recipe_keys=("domain", "symbols"),
        verifier="deepz",
        properties=Properties(efficient=None, provable=True),
        batchnorm=False,
        per_image=False,
        limitations="needs memory for each noise symbol; no BatchNorm in training",
    ),
    "mip": Method(
        description="PGD loss + ReLU stability + L1",
        lower=regularizers.stable_pgd,
        recipe={**_NATURAL_WARM_UP, "regularizer": 1e-4, "l1": 2e-5},
        recipe_keys=("attack_steps", "regularizer"),
        verifier="alpha-crown",
        properties=Properties(efficient=False, empirical=True, provable=True),
        limitations="only ReLU networks; needs a strong verifier",
    ),
    "crown-ibp": Method(
        description="regular + CROWN-IBP loss, scheduled weights; IBP after the ramp",
        lower=objectives.regular,
        upper=objectives.crown_ibp,
        weighting="scheduled",
        recipe={**_NATURAL_WARM_UP, "loss_fusion": True},
        recipe_keys=("beta", "loss_fusion"),
        properties=Properties(efficient=True, provable=True, no_tuning=False),
        batchnorm=False,
        limitations="no BatchNorm in training",
    ),
    "ibp": Method(
        description="regular + IBP loss, scheduled weights",
        lower=objectives.regular,
        upper=objectives.ibp,
        weighting="scheduled",
        recipe=_NATURAL_WARM_UP,
        properties=Properties(efficient=True, provable=True, no_tuning=False),
    ),
    "shi-ibp": Method(
        description="IBP loss + regularizers that fade over a smooth ramp",
        upper=regularizers.shi_ibp,
        recipe={
            **_NATURAL_WARM_UP,
            "init": "ibp",
            "ramp": "28%",
            "ramp_shape": "smooth",
            "regularizer": 0.5,
            "lr": 5e-4,
            "lr_shape": "steps",
            "lr_milestones": ("71%", "86%"),
            "lr_factor": 0.2,
        },
        recipe_keys=("regularizer",),
        per_image=False,
        properties=Properties(efficient=True, provable=True),
        limitations="only ReLU networks",
    ),
    "sabr": Method(
        description="IBP loss over a small box around an adversarial example",
        upper=objectives.sabr,
        recipe=_FIELD,
        recipe_keys=_SABR_KEYS,
        verifier="bab",
        properties=_APPROXIMATE,
        limitations="no bound",
    ),
    "taps": Method(
        description="loss of attacks in a latent box times IBP loss; IBP in the ramp",
        upper=objectives.taps,
        recipe=_FIELD,
        recipe_keys=_TAPS_KEYS,
        verifier="bab",
        properties=_APPROXIMATE._replace(efficient=False),
        limitations="no bound",
    ),
    "staps": Method(
        description="TAPS over the small box of SABR; SABR in the ramp",
        upper=objectives.staps,
        recipe=_FIELD,
        recipe_keys=_STAPS_KEYS,
        verifier="bab",
        properties=_APPROXIMATE._replace(efficient=False),
        limitations="no bound",
    ),
    "cc-ibp": Method(
        description="loss of alpha x IBP margins + (1 - alpha) x adversarial margins",
        upper=objectives.cc_ibp,
        recipe={**_FIELD, "attack_steps": 1},
        recipe_keys=_COMBINED_KEYS,
        verifier="bab",
        properties=_APPROXIMATE,
        limitations="no bound",
    ),
    "mtl-ibp": Method(
        description="alpha x IBP loss + (1 - alpha) x adversarial loss",
        upper=objectives.mtl_ibp,
        recipe={**_FIELD, "attack_steps": 1},
        recipe_keys=_COMBINED_KEYS,
        verifier="bab",
        properties=_APPROXIMATE,
        limitations="no bound",
    ),
    "exp-ibp": Method(
        description="IBP loss ^ alpha x adversarial loss ^ (1 - alpha)",
        upper=objectives.exp_ibp,
        recipe={**_FIELD, "attack_steps": 1},
        recipe_keys=_COMBINED_KEYS,
        verifier="bab",
        properties=_APPROXIMATE,
        limitations="no bound",
    ),
    "fixed": Method(
        description="adversarial + IBP loss, both weights 1",
        lower=objectives.adversarial,
        upper=objectives.ibp,
        latent="box",
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=False),
    ),
    "advibp": Method(
        description="adversarial + IBP loss, weights by Algorithm 1",
        lower=objectives.adversarial,
        upper=objectives.ibp,
        weighting="moments",
        latent="box",
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=True),
    ),
    "advcrown-ibp": Method(
        description="adversarial + CROWN-IBP loss, weights by Algorithm 1; IBP after the ramp",
        lower=objectives.adversarial,
        upper=objectives.crown_ibp,
        weighting="moments",
        latent="box",
        recipe={"loss_fusion": True},
        recipe_keys=("beta", "loss_fusion"),
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=True),
        batchnorm=False,
        limitations="no BatchNorm in training",
    ),
    "advsabr": Method(
        description="adversarial + SABR loss, weights by Algorithm 1",
        lower=objectives.attacked,
        upper=objectives.sabr,
        weighting="moments",
        latent="box",
        recipe_keys=_SABR_KEYS,
        verifier="bab",
        properties=_APPROXIMATE,
        limitations="no bound",
    ),
    "advtaps": Method(
        description="adversarial + TAPS loss, weights by Algorithm 1",
        lower=objectives.attacked,
        upper=objectives.taps,
        weighting="moments",
        recipe={"batchnorm": "clean"},
        recipe_keys=_TAPS_KEYS,
        verifier="bab",
        properties=_APPROXIMATE._replace(efficient=False),
        limitations="no bound",
    ),
    "advstaps": Method(
        description="adversarial + STAPS loss, weights by Algorithm 1",
        lower=objectives.attacked,
        upper=objectives.staps,
        weighting="moments",
        recipe={"batchnorm": "clean"},
        recipe_keys=_STAPS_KEYS,
        verifier="bab",
        properties=_APPROXIMATE._replace(efficient=False),
        limitations="no bound",
    ),
}


def defaults_of(name: str) -> Mapping[str, Any]:
    """Return the method's own defaults of recipe keys; empty for a method that is not in METHODS."""
    return METHODS[name].recipe if name in METHODS else {}


def make_weighting(method: Method, options: WeightingOptions, params: Sequence[Tensor]) -> Weighting:
    """Return a new weighting of a method.

    Args:
        method: the method.
        options: a recipe.
        params: the trained parameters, in the order of the gradients' columns.

    Raises:
        UserError: if the user's weighting can't be created.
    """
    weighting = options.weighting or method.weighting
    if isinstance(weighting, str):
        columns = {"first": slice(params[0].numel()), "last": slice(-params[-1].numel(), None)}
        kappa = method.kappa if options.kappa is None else options.kappa
        return WEIGHTINGS[weighting](options.beta1, options.beta2, columns.get(options.scope), kappa)
    try:
        return with_state_dict(weighting())
    except TypeError as error:
        raise UserError(
            f"The method's weighting could not be created by a call without arguments ({error}); give a function "
            "without required arguments."
        ) from None


def method_at(spec: str) -> Method:
    """Load a user's Method from `path/to/file.py:NAME` or `package.module:NAME`. This runs the user's file."""
    return user_code.load(
        spec,
        lambda found: found,
        like=lambda found: isinstance(found, Method),
        kind="Method",
        wanted="it must hold an advibp.Method of that name",
    )
