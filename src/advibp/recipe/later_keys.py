"""Recipe keys of the methods since the paper, and of what their recipes need: averages of weights, optimizers, ..."""

from __future__ import annotations

from dataclasses import dataclass

from advibp.objectives import Settings
from advibp.parsers import Span, flag, integer, number, one_of, or_word, span
from advibp.recipe.option import option

OPTIMIZERS = ("adam", "adamw", "radam")


@dataclass(frozen=True, kw_only=True)
class LaterKeys:
    """Keys that `Recipe` inherits."""

    train_eps_factor: float = option(
        1.0, number(0, 100, above=True), "radius of the training, relative to eps, the radius of validation and tests"
    )
    alpha: float = option(
        Settings.alpha, number(0, 1), "mtl-ibp, cc-ibp, exp-ibp: weight of IBP; 0: adversarial training, 1: IBP"
    )
    sabr_lambda: float = option(
        Settings.sabr_lambda,
        number(0, 1),
        "sabr, staps, advsabr, advstaps: half width of the small box, relative to eps",
    )
    relu_shrink: float = option(
        Settings.relu_shrink,
        number(0, 1, above=True),
        "sabr, taps, staps and their adv rows: factor of the upper ends of unstable ReLUs",
    )
    taps_layers: int = option(
        Settings.taps_layers, integer(1, 10_000), "taps, staps, advtaps, advstaps: layers behind the latent box"
    )
    taps_weight: float = option(
        Settings.taps_weight,
        number(0),
        "taps, staps, advtaps, advstaps: factor of the gradient of the loss at latent points",
    )
    attack_restarts: int = option(
        Settings.attack_restarts, integer(1, 1000), "random starts of the attack in training; the strongest is used"
    )
    attack_eps_factor: float = option(
        Settings.attack_eps_factor, number(0, 100), "mtl-ibp, cc-ibp, exp-ibp: radius of the attack, relative to eps"
    )
    clean_share: float = option(
        0.0, number(0, 0.99), "share of the regular loss after the warm-up; the losses of the method have the rest"
    )
    shi: float = option(
        0.0, number(0), "weight of Shi et al.'s regularizers of bounds and ReLUs, which fade out while eps grows"
    )
    optimizer: str = option("adam", one_of(*OPTIMIZERS), f"optimizer: {', '.join(OPTIMIZERS)}")
    weight_decay: float = option(0.0, number(0), "weight decay of the optimizer; decoupled for adamw")
    lr_milestones_from: str = option(
        "start",
        one_of("start", "ramp"),
        "where the epochs of lr_milestones count from; start: of the run; ramp: from the end of the eps ramp",
    )
    swa_start: Span | None = option(
        None,
        or_word("none", span),
        "epoch from which the weights are averaged (SWA) for evaluation and the final network; none: no averaging",
    )
    swa_every: int = option(10, integer(1), "steps between the weights that are averaged")
    batchnorm_evaluation: str = option(
        "running",
        one_of("running", "population"),
        "BatchNorm statistics of evaluation and the final network; running: moving averages; population: computed from "
        "all training images; averaged weights always have the latter",
    )
    compile: bool = option(
        False,
        flag,
        "compile the ReLUs of interval bounds by torch.compile, which needs a C++ compiler; the result is the same up "
        "to rounding",
    )
    crop_padding: str = option(
        "zeros", one_of("zeros", "edge"), "pixels outside of an image that is shifted by crop; edge: the nearest pixels"
    )
