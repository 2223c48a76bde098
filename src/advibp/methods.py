"""The paper's Table 1 as data: a method is a lower objective, an upper objective and a rule that weighs them.

A method of one's own is such a row too, and goes wherever a name does:

    mine = Method(says="PGD + IBP", lower=objectives.pgd, upper=objectives.ibp, weighting="moments")
    advibp.train(net, data, method=mine, eps=0.3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from advibp import objectives, user_code
from advibp.errors import UserError
from advibp.objectives import Objective, regularizers
from advibp.weighting import Fixed, Moments, Scheduled, Weighting, surgery


class Properties(NamedTuple):
    """Columns of Table 1; None where there is nothing to say, as for weights where there is one loss."""

    efficient: bool | None = None
    empirical: bool = False
    provable: bool = False
    no_tuning: bool | None = None  # of weights, or of their schedule


@dataclass(frozen=True, kw_only=True)
class Method:
    """One row. A method without an upper objective minimises the lower one alone, and the reverse."""

    says: str
    name: str = "own"
    lower: Objective | None = None
    upper: Objective | None = None
    weighting: str | Callable[[], Weighting] = "fixed"  # a name in WEIGHTINGS, or what makes one
    kappa: float | None = None  # of fixed or scheduled weights, if the recipe has none
    latent: Literal["box", "zonotope"] | None = None  # the set that layer-wise stages attack; None: it has no stages
    recipe: Mapping[str, Any] = field(default_factory=dict)  # what a recipe says if the user does not
    reads: tuple[str, ...] = ()  # keys of a recipe that only some rows understand
    batchnorm: bool = True  # whether its bounds know BatchNorm in training
    per_image: bool = True  # whether its losses are means over images that do not depend on each other
    verifier: str = "ibp"  # what it is trained to be proved by
    properties: Properties = Properties()
    needs: str = ""

    def __post_init__(self) -> None:
        if self.lower is None and self.upper is None:
            raise UserError("A Method needs a lower objective, an upper one, or both.")
        if not all(objective is None or callable(objective) for objective in (self.lower, self.upper)):
            raise UserError("The objectives of a Method are functions, such as advibp.objectives.ibp, not their names.")
        if not callable(self.weighting) and self.weighting not in WEIGHTINGS:
            raise UserError(f"There is no weighting '{self.weighting}'; choose from {', '.join(WEIGHTINGS)}.")
        if self.latent not in (None, "box", "zonotope") or (self.latent == "zonotope" and self.upper):
            raise UserError("latent is None, 'box', or 'zonotope' for a Method without an upper objective.")


#: How two losses are weighed: name -> from beta_1, beta_2, the moments' scope and kappa (None: not given).
WEIGHTINGS: dict[str, Callable[[float, float, slice | None, float | None], Weighting]] = {
    "moments": lambda beta1, beta2, scope, kappa: Moments(beta1, beta2, scope),
    "fixed": lambda beta1, beta2, scope, kappa: Fixed() if kappa is None else Fixed(kappa, 1 - kappa),
    "scheduled": lambda beta1, beta2, scope, kappa: Scheduled(1.0, 0.5 if kappa is None else kappa),
    "pcgrad": lambda beta1, beta2, scope, kappa: surgery.pcgrad(),
    "mgda": lambda beta1, beta2, scope, kappa: surgery.mgda(),
}

_NO_WARM_UP = {"warmup_natural": 0.0, "warmup_adversarial": 0.0}
_NATURAL_WARM_UP = {"warmup_adversarial": 0.0}

METHODS: dict[str, Method] = {
    "standard": Method(
        says="regular loss",
        lower=objectives.regular,
        recipe={**_NO_WARM_UP, "ramp": 0.0},
        verifier="",
        properties=Properties(efficient=True),
    ),
    "fgsm": Method(
        says="adversarial loss by one step",
        lower=objectives.fgsm,
        recipe=_NATURAL_WARM_UP,
        verifier="",
        properties=Properties(efficient=True, empirical=True),
        needs="care: it may learn to fool its attack",
    ),
    "rs-fgsm": Method(
        says="adversarial loss by one step from a random start",
        lower=objectives.adversarial,
        recipe=_NATURAL_WARM_UP,
        verifier="",
        properties=Properties(efficient=True, empirical=True),
    ),
    "pgd": Method(
        says="adversarial loss by several steps",
        lower=objectives.pgd,
        recipe=_NATURAL_WARM_UP,
        reads=("attack_steps",),
        verifier="",
        properties=Properties(efficient=False, empirical=True),
    ),
    "colt": Method(
        says="adversarial loss in latent zonotopes, layer by layer, + ReLU area",
        lower=regularizers.latent_pgd,
        latent="zonotope",
        recipe={**_NATURAL_WARM_UP, "stages": "all", "regulariser": 1e-3, "l1": 1e-5},
        reads=("attack_steps", "regulariser", "projections"),
        verifier="deepz",
        properties=Properties(efficient=False, empirical=True, provable=True),
        batchnorm=False,
        per_image=False,
        needs="ReLUs alone; no BatchNorm in training",
    ),
    "diffai": Method(
        says="regular + zonotope loss, a fixed share of each",
        lower=objectives.regular,
        upper=objectives.abstract,
        kappa=0.5,
        recipe={**_NATURAL_WARM_UP, "domain": "hybrid"},
        reads=("domain", "symbols"),
        verifier="deepz",
        properties=Properties(efficient=None, provable=True),
        batchnorm=False,
        per_image=False,
        needs="memory per symbol; no BatchNorm in training",
    ),
    "mip": Method(
        says="adversarial loss by several steps + ReLU stability + L1",
        lower=regularizers.stable_pgd,
        recipe={**_NATURAL_WARM_UP, "regulariser": 1e-4, "l1": 2e-5},
        reads=("attack_steps", "regulariser"),
        verifier="alpha-crown",
        properties=Properties(efficient=False, empirical=True, provable=True),
        needs="ReLUs; a strong verifier",
    ),
    "crown-ibp": Method(
        says="regular + CROWN-IBP loss by a schedule; after the ramp IBP's",
        lower=objectives.regular,
        upper=objectives.crown_ibp,
        weighting="scheduled",
        recipe=_NATURAL_WARM_UP,
        reads=("beta",),
        properties=Properties(efficient=True, provable=True, no_tuning=False),
        batchnorm=False,
        needs="no BatchNorm in training",
    ),
    "ibp": Method(
        says="regular + IBP loss by a schedule",
        lower=objectives.regular,
        upper=objectives.ibp,
        weighting="scheduled",
        recipe=_NATURAL_WARM_UP,
        properties=Properties(efficient=True, provable=True, no_tuning=False),
    ),
    "shi-ibp": Method(
        says="IBP loss + tightness + ReLU balance, fading over a smooth ramp",
        upper=regularizers.shi_ibp,
        recipe={
            **_NATURAL_WARM_UP,
            "init": "ibp",
            "ramp": "28%",
            "ramp_shape": "smooth",
            "regulariser": 0.5,
            "lr": 5e-4,
            "lr_shape": "steps",
            "lr_milestones": ("71%", "86%"),
            "lr_factor": 0.2,
        },
        reads=("regulariser",),
        per_image=False,
        properties=Properties(efficient=True, provable=True),
        needs="ReLUs",
    ),
    "fixed": Method(
        says="adversarial + IBP loss, both weights 1",
        lower=objectives.adversarial,
        upper=objectives.ibp,
        latent="box",
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=False),
    ),
    "advibp": Method(
        says="adversarial + IBP loss by past gradients (Algorithm 1)",
        lower=objectives.adversarial,
        upper=objectives.ibp,
        weighting="moments",
        latent="box",
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=True),
    ),
    "advcrown-ibp": Method(
        says="adversarial + CROWN-IBP loss by past gradients; after the ramp IBP's",
        lower=objectives.adversarial,
        upper=objectives.crown_ibp,
        weighting="moments",
        latent="box",
        reads=("beta",),
        properties=Properties(efficient=True, empirical=True, provable=True, no_tuning=True),
        batchnorm=False,
        needs="no BatchNorm in training",
    ),
}


def defaults_of(name: str) -> Mapping[str, Any]:
    """What a recipe says for a method if the user does not; nothing for one that is not in the table."""
    return METHODS[name].recipe if name in METHODS else {}


def method_at(spec: str) -> Method:
    """A Method of one's own: `path/to/file.py:NAME` or `package.module:NAME`. Runs that file."""
    return user_code.load(
        spec,
        lambda found: found,
        like=lambda found: isinstance(found, Method),
        kind="Method",
        wanted="it must hold an advibp.Method of that name",
    )
