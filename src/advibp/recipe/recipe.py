"""A recipe: every hyperparameter of a training run, with type, default, parser and help text.

The keys are the same in YAML, on the command line, in Python and in a run's folder. A recipe is flat, so every key is a
command-line option. Durations are in epochs, or in percent of all epochs ("30%"), so a recipe scales with `epochs`.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advibp.bounds import Perturbation
from advibp.data import NAMES, Data
from advibp.display.object_summary import Summarized
from advibp.errors import NORM_NAMES, ONLY_LINF, UserError, suggestion
from advibp.methods import METHODS, WEIGHTINGS, Method, defaults_of
from advibp.moved import renamed_attribute, renamed_keywords
from advibp.objectives import Settings
from advibp.objectives.regularizers import shi_ibp
from advibp.parsers import (
    Span,
    epoch_numbers,
    flag,
    integer,
    number,
    numbers,
    one_of,
    or_word,
    share_or,
    span,
    spans,
    text,
)
from advibp.recipe import input_set
from advibp.recipe.later_keys import LaterKeys
from advibp.recipe.option import option
from advibp.recipe.recipe_files import OLD_KEYS, current_keys, read
from advibp.recipe.recipe_text import as_option, as_yaml, shown_value
from advibp.schedules import Timeline
from advibp.weighting import BETA1, BETA2


def method_name(value: Any) -> str:
    """Parse a method: a key of METHODS, or the place of a user's Method, file.py:NAME."""
    if not isinstance(value, str) or (value not in METHODS and ":" not in value):
        near = suggestion(value, METHODS, " ")
        raise ValueError(f"one of {', '.join(METHODS)}, or file.py:NAME{f' ({near})' if near.strip() else ''}")
    return value


@renamed_keywords(**OLD_KEYS)
@dataclass(frozen=True, kw_only=True, repr=False)
class Recipe(Summarized, LaterKeys):
    """The hyperparameters of a training run. The defaults train MNIST on two CPU cores.

    `Recipe(...)` sets the given keys and leaves the others at the defaults below. `Recipe.load(...)` also applies the
    defaults of the method and those of a recipe file. Both parse and check every value.

    Raises:
        UserError: if a value is not valid, if the phases are longer than the run, or if the method does not support a
            key.

    Examples:
        >>> import advibp
        >>> recipe = advibp.Recipe.load(method="shi-ibp", eps="8/255", epochs=20)
        >>> recipe.lr
        0.0005
    """

    data: str = option(
        "mnist",
        text,
        "data set: a name from `advibp data`, a folder of images or original files, a .npz or a .csv file",
    )
    net: str = option(
        "dm-small",
        text,
        'network: a name from `advibp nets`, a text such as "Conv 16 4x4+2, FC 100", file.py:function or '
        "package.module:function",
    )
    method: str = option(
        "advibp", method_name, f"training method: {', '.join(METHODS)}; or file.py:NAME, a user's Method"
    )
    eps: float = option(
        0.3,
        number(0, above=True),
        "eps_train, the l_inf radius for pixels in [0, 1]; fractions such as 8/255 are valid; for tables also a radius "
        "for each feature, such as age=0.1,income=500",
    )
    eps_scale: Any = option(
        None,
        or_word("none", input_set.scale),
        "radius of each feature relative to eps, by name or in order; none: 1; eps with names sets it",
    )
    input_range: Any = option(
        "auto",
        or_word("auto", or_word("none", input_set.input_range)),
        "range of valid inputs: 0,1 or age=0:120,income=0:none; none: no limit; auto: that of the data, 0,1 for images",
    )
    epochs: float = option(60.0, number(0, 1e6, above=True), "number of epochs, with warm-up")
    extended: tuple[float, ...] = option(
        (),
        epoch_numbers,
        "epochs at which a finished run was extended by --resume --epochs N; percentages refer to the first of them",
    )
    warmup_natural: Span = option("4%", span, "T_nat: epochs on the regular loss")
    warmup_adversarial: Span = option("16%", span, "T_adv: epochs on the adversarial loss while eps grows")
    warmup_adversarial_ramp: Span | None = option(
        None, or_word("none", span), "epochs of T_adv in which eps grows; none: all of T_adv"
    )
    ramp: Span = option("35%", span, "R: epochs of the joint phase in which eps grows to eps_train")
    ramp_shape: str = option(
        "linear", one_of("linear", "smooth"), "how eps grows: linear, or smooth (quartic, then linear)"
    )
    c_max: float | str = option(
        1e-4,
        or_word("auto", share_or(number(0))),
        "initial threshold of FOSC: in a conflict the adversarial loss is prioritized if FOSC is at most c_t; auto: "
        "FOSC after the warm-up; 30%: the loss is prioritized in this share of the conflicts, those with the strongest "
        "attacks",
    )
    c_extra: Span = option(0.0, span, "epochs at full eps before c_t, or the share, decays")
    c_decay: Span = option("10%", span, "T': epochs in which c_t, or the share, falls from c_max to 0")
    fosc_scale: str = option(
        "sample",
        one_of("sample", "batch"),
        "scale of c_max; sample: of each sample's loss; batch: of the batch-mean loss",
    )
    fosc_set: str = option(
        "clipped",
        one_of("clipped", "ball"),
        "set of FOSC; clipped: the ball clipped to [0, 1]; ball: the whole ball, as printed in the paper",
    )
    weighting: str | None = option(
        None,
        or_word("none", one_of(*WEIGHTINGS)),
        f"how two losses are weighted: {', '.join(WEIGHTINGS)}; none: the method's",
    )
    kappa: float | None = option(
        None,
        or_word("none", number(0, 1)),
        "weight of the lower loss, fixed or at the end of a schedule; the upper loss has 1 - kappa; none: the method's",
    )
    scope: str = option(
        "all",
        one_of("all", "first", "last"),
        "parameters from which the moments are computed; first: the first tensor; last: the last tensor",
    )
    beta1: float = option(BETA1, number(0, 0.999999), "decay of the gradient moments")
    beta2: float = option(BETA2, number(0, 0.999999), "decay of the norm moments")
    attack_steps: int = option(Settings.attack_steps, integer(1, 10_000), "steps of PGD in training")
    beta: float = option(Settings.beta, number(0, 1), "crown-ibp, advcrown-ibp: weight of CROWN-IBP after the ramp")
    loss_fusion: bool = option(
        Settings.loss_fusion,
        flag,
        "bound the loss of an image by one backward pass, as crown-ibp and advcrown-ibp do by default; false: one for "
        "each margin, slower",
    )
    domain: str = option(
        Settings.domain, one_of("box", "hybrid", "deepz"), "diffai: abstract domain of its loss: box, hybrid or deepz"
    )
    symbols: int = option(Settings.symbols, integer(0, 100_000), "diffai: number of noise symbols of a hybrid zonotope")
    regularizer: float = option(Settings.regularizer, number(0), "shi-ibp, mip, colt: weight of the regularizer")
    projections: int = option(
        Settings.projections, integer(0, 100_000), "colt: random projections that estimate a zonotope"
    )
    batch_size: int | str = option(
        "auto",
        or_word("auto", integer(1)),
        "batch size; auto: 256, or less for few images or epochs, down to 16, so that an epoch has at least 40 steps "
        "and the run 500",
    )
    at_once: int = option(
        0, integer(0), "images of a batch that are in memory at once, 0: all; the result is the same up to rounding"
    )
    recompute: bool = option(
        False, flag, "save memory: keep fewer activations and compute the others again in the backward pass"
    )
    lr: float = option(2e-3, number(0, above=True), "learning rate")
    lr_shape: str = option(
        "linear",
        one_of("steps", "linear"),
        "steps: multiply by lr_factor at each of lr_milestones; linear: decay to 0 after the ramp",
    )
    lr_milestones: tuple[Span, ...] = option(
        ("75%", "90%"), spans, "epochs at which the learning rate is multiplied by lr_factor"
    )
    lr_factor: float = option(0.25, number(0, 1), "factor of the learning rate at a milestone")
    clip: float | None = option(
        10.0,
        or_word("none", number(0, above=True)),
        "largest norm of the gradient; longer ones are scaled down; none: no limit",
    )
    l1: float = option(0.0, number(0), "weight of L1 regularization of the weights of convolutions and linear layers")
    max_loss: float = option(1e6, number(0, above=True), "stop with a diagnosis if a loss exceeds this")
    batchnorm: str = option(
        "adversarial",
        one_of("adversarial", "clean"),
        "BatchNorm statistics of the bounds; adversarial: of the adversarial pass; clean: of a clean pass, slower",
    )
    stages: int | str = option(
        0,
        or_word("all", integer(0, 1000)),
        "number of layer-wise stages after the main phase; each freezes one more layer; all: as many as possible",
    )
    stage_epochs: float = option(10.0, number(0, 1e6, above=True), "epochs of each layer-wise stage")
    stage_lr: float = option(5e-4, number(0, above=True), "learning rate at the start of each layer-wise stage")
    stage_lr_milestones: tuple[Span, ...] = option(
        (), spans, "epochs of a stage at which its learning rate is multiplied by lr_factor, if lr_shape is steps"
    )
    weights: str | None = option(
        None, or_word("none", text), "initial weights, a .safetensors or .pt file; none: random"
    )
    init: str = option(
        "ibp",
        one_of("ibp", "default", "given"),
        "initialization; ibp: Shi et al. 2021, also of your own network if it is new; default: torch's, with which "
        "standard, fgsm, rs-fgsm and pgd start; given: yours",
    )
    normalize: bool = option(False, flag, "add a first layer that normalizes by mean and std of the training images")
    data_root: str | None = option(
        None, or_word("none", text), "folder of data sets; none: ADVIBP_DATA, or the user's cache"
    )
    label: str | None = option(
        None, or_word("none", text), "tables (.csv): name of the column with the class; none: the last column"
    )
    size: int | None = option(
        None, or_word("none", integer(1, 4096)), "resize the images of a folder to this many pixels"
    )
    flip: bool = option(False, flag, "augmentation: flip training images left to right at random")
    crop: int = option(0, integer(0, 64), "augmentation: shift training images by up to this many pixels at random")
    validation: int | str = option(
        "auto",
        or_word("auto", integer(1)),
        "number of training images held out for validation; auto: 1000, or a tenth of fewer than 10,000 images",
    )
    select: str = option(
        "last",
        one_of("last", "best"),
        "final weights; last: of the last epoch; best: of the epoch with the best verified error on validation images",
    )
    limit: int | None = option(
        None, or_word("none", integer(1)), "number of training images to use, a fixed random subset; none: all"
    )
    seed: int = option(0, integer(0, 2**63 - 1), "random seed of weights, data order and attacks")
    threads: int | None = option(
        None, or_word("none", integer(1, 1024)), "number of CPU threads; none: torch's default"
    )
    device: str = option("auto", text, "device: auto, cpu, cuda, cuda:1, mps")
    published: dict[str, Any] | None = option(
        None, or_word("none", numbers), "numbers of the paper for this run, for comparison"
    )

    normalise = renamed_attribute("Recipe", "normalise", "normalize")
    regulariser = renamed_attribute("Recipe", "regulariser", "regularizer")

    def __post_init__(self) -> None:
        radii = input_set.split_eps(self.eps)
        if radii is not None:
            object.__setattr__(self, "eps", radii[0])
            object.__setattr__(self, "eps_scale", radii[1])
        for key in dataclasses.fields(self):
            value = getattr(self, key.name)
            try:
                object.__setattr__(self, key.name, key.metadata["parse"](value))
            except ValueError as expected:
                raise UserError(f"{key.name} is {value!r}, but must be {expected}.") from None
        if self.extended and (sorted({*self.extended, self.epochs}) != [*self.extended, self.epochs] or self.stages):
            raise UserError(
                f"extended is {shown_value(self.extended)}, but must be increasing and below epochs, {self.epochs:g}, "
                "and the run must have no layer-wise stages."
            )
        if self.eps > 1 and self.data in NAMES:
            self.check_eps_of_images()
        self.timeline()  # checks that the phases fit
        if self.swa_start is not None and (self.stages or self.in_epochs(self.swa_start) >= self.epochs):
            raise UserError(
                f"swa_start is {shown_value(self.swa_start)}, but must be below epochs, {self.epochs:g}, and the run "
                "must have no layer-wise stages."
            )
        if self.method in METHODS:
            self.check_method(METHODS[self.method])

    def _summary(self) -> dict[str, object]:
        """Return the main keys, and every other key that differs from its default."""
        main = ("data", "net", "method", "eps", "epochs")
        shown = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return {key: value for key, value in shown.items() if key in main or value != getattr(Recipe, key)}

    @classmethod
    def load(cls, source: str | Path | None = None, own: Method | None = None, /, **changes: Any) -> Recipe:
        """Return a recipe from a file.

        The defaults are overridden by those of the method, then by the recipe file, then by `changes`.

        Args:
            source: name of a shipped recipe, or a YAML file; None for no file.
            own: the user's Method, if `method` names one.
            changes: recipe keys.

        Raises:
            UserError: if a key or a value is not valid, or if the method ignores a key of `changes`.
        """
        changes = current_keys(changes, warn=True)
        given = {**(current_keys(read(source)) if source else {}), **changes}
        defaults = own.recipe if own else defaults_of(str(given.get("method", cls.method)))
        return cls.of({**defaults, **given})._refuse_ignored_keys(changes)

    def changed(self, own: Method | None = None, /, **changes: Any) -> Recipe:
        """Return a copy with `changes`. A new method brings its own defaults in place of the old one's."""
        changes = current_keys(changes, warn=True)
        if changes.get("method", self.method) == self.method:
            return Recipe.of({**self.as_dict(), **changes})._refuse_ignored_keys(changes)
        defaults = Recipe.load(method=self.method).as_dict()
        kept = {key: value for key, value in self.as_dict().items() if value != defaults[key]}
        return Recipe.load(None, own, **{**kept, **changes})

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Recipe:
        """Return the recipe with these keys. Keys of release 0.1 are read too."""
        values, known = current_keys(mapping), [key.name for key in _fields()]
        for key in values:
            if key not in known:
                if key in NORM_NAMES:
                    raise UserError(f"'{key}' is no recipe key, because {ONLY_LINF}; leave {key} out.")
                hint = suggestion(key, known, f"known keys are {', '.join(known)}.")
                raise UserError(f"'{key}' is no recipe key; {hint}")
        return cls(**values)

    def _refuse_ignored_keys(self, changes: Mapping[str, Any]) -> Recipe:
        """Refuse keys of `changes` that the method ignores. A recipe file may have them, because it holds every key."""
        if self.method in METHODS:
            for key in changes:
                rows = [name for name, row in METHODS.items() if key in row.recipe_keys]
                if rows and self.method not in rows and getattr(self, key) != getattr(Recipe, key):
                    raise UserError(f"{self.method} does not use {key}; leave it out, or train by {_or(rows)}.")
        return self

    def in_epochs(self, value: Span, of: float | None = None) -> float:
        """Return a duration in epochs. A share such as "30%" refers to `of` epochs (default: all planned epochs)."""
        return (
            float(value[:-1]) / 100 * (self.planned_epochs if of is None else of) if isinstance(value, str) else value
        )

    @property
    def train_eps(self) -> float:
        """The radius of the training at the end of the ramp."""
        return self.eps * self.train_eps_factor

    @property
    def milestones(self) -> list[float]:
        """The epochs at which the learning rate of the main phase is multiplied by lr_factor."""
        begin = 0.0
        if self.lr_milestones_from == "ramp":
            line = self.timeline()
            begin = line.joint + line.ramp
        return [begin + self.in_epochs(milestone) for milestone in self.lr_milestones]

    @property
    def planned_epochs(self) -> float:
        """Number of epochs that the run was started with. A later extension does not move its phases."""
        return self.extended[0] if self.extended else self.epochs

    def decay_end(self, t: float) -> float:
        """Return the epoch at which a linear learning rate becomes 0, at epoch t: where this part of the run ends."""
        return next((end for end in self.extended if t < end), self.epochs)

    def timeline(self) -> Timeline:
        """Return the phases of the run. Raises a UserError if they are longer than the run."""
        natural, adversarial = self.in_epochs(self.warmup_natural), self.in_epochs(self.warmup_adversarial)
        growing = self.warmup_adversarial_ramp
        line = Timeline(
            epochs=self.epochs,
            natural=natural,
            adversarial=adversarial,
            adversarial_ramp=None if growing is None else self.in_epochs(growing),
            ramp=self.in_epochs(self.ramp),
            ramp_shape=self.ramp_shape,  # type: ignore[arg-type]
        )
        if line.joint + line.ramp > self.epochs * (1 + 1e-9):  # tolerance for rounding of shares
            raise UserError(
                f"warmup_natural + warmup_adversarial + ramp take {line.joint + line.ramp:g} epochs, but epochs is "
                f"{self.epochs:g}; {self._longer()}shorten these phases."
            )
        return line

    def _longer(self) -> str:
        """Return the advice to train for enough epochs; "" if no number of epochs is enough."""
        spans = (self.warmup_natural, self.warmup_adversarial, self.ramp)
        share = sum(self.in_epochs(span, of=1.0) for span in spans if isinstance(span, str))
        fixed = sum(span for span in spans if not isinstance(span, str))
        return f"train for at least {math.ceil(100 * fixed / (1 - share)) / 100:g} epochs, or " if share < 1 else ""

    def check_eps_of_images(self) -> None:
        """Raise a UserError if eps is too large for images in [0, 1]."""
        if self.eps > 1 and self.eps_scale is None and self.input_range == "auto":
            raise UserError(f"eps is {self.eps!r}, but must be a number in (0, 1].")

    def perturbation(self, data: Data) -> Perturbation:
        """Return the set of allowed changes for the inputs of a data set: their range, and the scale of each feature.

        Args:
            data: the data set of the recipe.

        Raises:
            UserError: if a feature is unknown, or the keys do not fit the shape of an input.

        Examples:
            >>> import torch, advibp
            >>> x, y = torch.rand(20, 2), torch.arange(20) % 2
            >>> data = advibp.data.from_tensors(x, y, x, y, feature_names=["age", "income"])
            >>> recipe = advibp.Recipe(eps={"age": 0.1, "income": 0.05}, epochs=100)
            >>> recipe.eps, recipe.perturbation(data).scale.tolist()
            (0.1, [1.0, 0.5])
        """
        return input_set.perturbation_of(data, self.eps_scale, self.input_range)

    def check_method(self, method: Method) -> None:
        """Raise a UserError if a key has no effect for a method."""
        two = method.lower is not None and method.upper is not None
        if not two and (self.weighting is not None or self.kappa is not None):
            key = "weighting" if self.weighting is not None else "kappa"
            raise UserError(f"{key} applies to methods with two losses, and {self.method} has one; leave it out.")
        if self.shi and method.upper is shi_ibp:
            raise UserError(
                f"{self.method} has Shi's regularizers in its loss, with the weight regularizer; set shi to 0."
            )
        weighting = self.weighting or method.weighting
        if self.kappa is not None and weighting not in ("fixed", "scheduled"):
            raise UserError(f"kappa applies to fixed and scheduled weights, not to {weighting}; leave it out.")
        if self.scope != "all" and weighting != "moments":
            raise UserError(f"scope applies to the weighting moments, not to {weighting}; leave it out.")
        if self.stages != 0 and method.latent is None:
            rows = [name for name, row in METHODS.items() if row.latent]
            raise UserError(f"{self.method} has no layer-wise stages; set stages to 0, or train by {_or(rows)}.")

    def command(self) -> str:
        """Return the command for this run, with every key that differs from the method's defaults."""
        default = Recipe.load(data=self.data, net=self.net, method=self.method)
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(default, f.name)]
        changed = ["method"] * (self.method != Recipe.method) + changed
        options = [as_option(k, getattr(self, k)) for k in changed if k != "published"]
        return " ".join(["advibp train", shlex.quote(self.data), shlex.quote(self.net), *options])

    def as_dict(self) -> dict[str, Any]:
        """Return all keys as plain data."""
        plain = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def to_yaml(self) -> str:
        """Return the recipe as YAML, one key per line with its help text as a comment."""
        values = self.as_dict()
        notes = {f.name: f.metadata["description"] for f in _fields()}
        if self.method in METHODS and not METHODS[self.method].upper_is_bound:
            notes["method"] += f"; the upper loss of {self.method} is no bound of the robust loss"
        return "".join(f"{key}: {as_yaml(values[key])}  # {note}\n" for key, note in notes.items())


def _fields() -> list[dataclasses.Field[Any]]:
    """Return the keys of a recipe; those of the methods since the paper are last."""
    return sorted(dataclasses.fields(Recipe), key=lambda f: f.name in LaterKeys.__dataclass_fields__)


def _or(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
