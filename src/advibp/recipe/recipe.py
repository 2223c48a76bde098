"""The one typed set of options: the same names in YAML, on the command line, in Python and in a run's folder.

It is flat, so that every key is also the name of its command-line option. Times are in epochs, or in percent of all
epochs ("30%"), so that a recipe keeps its shape when only `epochs` changes.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from advibp.errors import UserError
from advibp.methods import METHODS, WEIGHTINGS, Method, defaults_of
from advibp.parsers import Parser, Span, flag, integer, number, numbers, one_of, or_word, share_or, span, spans, text
from advibp.schedules import Timeline
from advibp.storage.plain_yaml import from_yaml
from advibp.weighting import BETA1, BETA2


def method_name(value: Any) -> str:
    """A row of METHODS, or the place of one's own: file.py:NAME."""
    if not isinstance(value, str) or (value not in METHODS and ":" not in value):
        raise ValueError(f"one of {', '.join(METHODS)}, or file.py:NAME")
    return value


def _option(default: Any, parse: Parser, says: str) -> Any:
    return field(default=default, metadata={"parse": parse, "says": says})


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a run. The defaults train MNIST on two CPU cores."""

    data: str = _option(
        "mnist", text, "a name from `advibp data`, a folder of images or original files, or a .npz file"
    )
    net: str = _option(
        "dm-small", text, "a name from `advibp nets`, a grammar, file.py:function or package.module:function"
    )
    method: str = _option(
        "advibp", method_name, f"training method: {', '.join(METHODS)}; or file.py:NAME, a Method of one's own"
    )
    eps: float = _option(
        0.3, number(0, 1, above=True), "eps_train, l_inf radius in pixels of [0, 1]; 8/255 is read too"
    )
    epochs: float = _option(60.0, number(0, 1e6, above=True), "all epochs, warm-up included")
    warmup_natural: Span = _option(1.0, span, "T_nat: epochs on the regular loss")
    warmup_adversarial: Span = _option(1.0, span, "T_adv: epochs on the adversarial loss, eps growing")
    warmup_adversarial_ramp: Span | None = _option(
        None, or_word("none", span), "epochs of T_adv in which eps grows; none: all of them"
    )
    ramp: Span = _option("35%", span, "R: epochs of the joint phase in which eps grows to eps_train")
    ramp_shape: str = _option(
        "linear", one_of("linear", "smooth"), "how eps grows: linear, or smooth (quartic, then linear)"
    )
    c_max: float | str = _option(
        1e-4,
        or_word("auto", share_or(number(0))),
        "when the adversarial loss comes first in a conflict: FOSC below this at first; auto: below FOSC after the "
        "warm-up; 30%: in that share of the conflicts at first",
    )
    c_extra: Span = _option(0.0, span, "epochs at full eps before c_t, or that share, decays")
    c_decay: Span = _option("10%", span, "T': epochs in which c_t, or that share, falls from c_max to 0")
    fosc_scale: str = _option(
        "sample", one_of("sample", "batch"), "c_max in the scale of each sample's loss, or of the batch-mean loss"
    )
    fosc_set: str = _option(
        "clipped",
        one_of("clipped", "ball"),
        "set of FOSC: the ball within [0, 1], or the whole ball as the paper prints",
    )
    weighting: str | None = _option(
        None,
        or_word("none", one_of(*WEIGHTINGS)),
        f"how two losses are weighed: {', '.join(WEIGHTINGS)}; none: the method's",
    )
    kappa: float | None = _option(
        None,
        or_word("none", number(0, 1)),
        "weight of the lower loss, fixed or at the end of a schedule; the upper one gets the rest; none: the method's",
    )
    scope: str = _option(
        "all", one_of("all", "first", "last"), "gradients the moments are of: all, or the first or last tensor's alone"
    )
    beta1: float = _option(BETA1, number(0, 0.999999), "decay of the gradient moments")
    beta2: float = _option(BETA2, number(0, 0.999999), "decay of the norm moments")
    attack_steps: int = _option(8, integer(1, 10_000), "pgd, mip, colt: steps of the attack in training")
    beta: float = _option(0.0, number(0, 1), "crown-ibp, advcrown-ibp: share of CROWN-IBP that is left after the ramp")
    domain: str = _option("box", one_of("box", "hybrid", "deepz"), "diffai: the sets of its abstract loss")
    symbols: int = _option(8, integer(0, 100_000), "diffai: noise symbols of a hybrid zonotope")
    regulariser: float = _option(0.0, number(0), "shi-ibp, mip, colt: weight of what is added to the loss")
    projections: int = _option(16, integer(0, 100_000), "colt: random projections by which a zonotope is estimated")
    batch_size: int = _option(256, integer(1), "images per step")
    at_once: int = _option(
        0, integer(0), "images of a batch that are in memory at a time, 0: all; the weights are the same up to rounding"
    )
    recompute: bool = _option(False, flag, "keep fewer values between the passes and compute the rest again")
    lr: float = _option(2e-3, number(0, above=True), "Adam's learning rate")
    lr_shape: str = _option(
        "linear",
        one_of("steps", "linear"),
        "steps: times lr_factor at each of lr_milestones; linear: down to 0 from the end of the ramp on",
    )
    lr_milestones: tuple[Span, ...] = _option(
        ("75%", "90%"), spans, "when the learning rate is multiplied by lr_factor"
    )
    lr_factor: float = _option(0.25, number(0, 1), "what the learning rate is multiplied by")
    clip: float | None = _option(10.0, or_word("none", number(0, above=True)), "largest norm of a step's gradient")
    l1: float = _option(0.0, number(0), "weight of the sum of absolute weights")
    max_loss: float = _option(1e6, number(0, above=True), "stop, with a diagnosis, when a loss grows beyond this")
    batchnorm: str = _option(
        "adversarial",
        one_of("adversarial", "clean"),
        "whose statistics the bounds use: the adversarial pass's, or a clean pass's, which costs a quarter more",
    )
    stages: int | str = _option(
        0, or_word("all", integer(0, 1000)), "layer-wise stages after the epochs: each freezes one layer more"
    )
    stage_epochs: float = _option(10.0, number(0, 1e6, above=True), "epochs of each stage")
    stage_lr: float = _option(5e-4, number(0, above=True), "Adam's learning rate at the start of each stage")
    stage_lr_milestones: tuple[Span, ...] = _option(
        (), spans, "epochs of a stage at which its learning rate is multiplied by lr_factor, if lr_shape is steps"
    )
    weights: str | None = _option(None, or_word("none", text), "start from these weights, a .safetensors file")
    init: str = _option("ibp", one_of("ibp", "default"), "first weights: ibp (Shi et al. 2021), or torch's default")
    normalise: bool = _option(
        False, flag, "a first layer that subtracts the training images' mean and divides by their std"
    )
    data_root: str | None = _option(
        None, or_word("none", text), "where data sets are looked for and kept; none: ADVIBP_DATA, or the user's cache"
    )
    size: int | None = _option(None, or_word("none", integer(1, 4096)), "pixels to which a folder's images are resized")
    flip: bool = _option(False, flag, "flip training images left to right, by chance")
    crop: int = _option(0, integer(0, 64), "shift training images by up to this many pixels, by chance")
    validation: int = _option(1000, integer(1), "training images held out to watch the run and to select a checkpoint")
    select: str = _option(
        "last", one_of("last", "best"), "final weights: last epoch, or best verified error on validation"
    )
    limit: int | None = _option(None, or_word("none", integer(1)), "train on this many images only")
    seed: int = _option(0, integer(0, 2**63 - 1), "weights, data order and attacks follow from it")
    threads: int | None = _option(None, or_word("none", integer(1, 1024)), "CPU threads; none: torch's choice")
    device: str = _option("auto", text, "auto, cpu, cuda, cuda:1, mps")
    published: dict[str, Any] | None = _option(
        None, or_word("none", numbers), "numbers the paper gives for this run, for comparison"
    )

    @classmethod
    def load(cls, source: str | Path | None = None, own: Method | None = None, /, **changes: Any) -> Recipe:
        """The defaults, changed by the method's own, by a recipe (a shipped one by name, or a YAML file), and by
        `changes`; `own` is a method that these can only name."""
        given = {**(read(source) if source else {}), **changes}
        defaults = own.recipe if own else defaults_of(str(given.get("method", cls.method)))
        return cls.of({**defaults, **given})._understood(changes)

    def changed(self, own: Method | None = None, /, **changes: Any) -> Recipe:
        """With `changes`. Another method brings its own defaults in place of this one's."""
        if changes.get("method", self.method) == self.method:
            return Recipe.of({**self.as_dict(), **changes})._understood(changes)
        before = Recipe.load(method=self.method).as_dict()
        kept = {key: value for key, value in self.as_dict().items() if value != before[key]}
        return Recipe.load(None, own, **{**kept, **changes})

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> Recipe:
        known = {f.name: f for f in dataclasses.fields(cls)}
        values = {}
        for key, value in mapping.items():
            if key not in known:
                near = difflib.get_close_matches(str(key), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(known)}."
                raise UserError(f"'{key}' is no recipe key; {hint}")
            try:
                values[key] = known[key].metadata["parse"](value)
            except ValueError as wanted:
                raise UserError(f"{key} is {value!r}, but must be {wanted}.") from None
        recipe = cls(**values)
        recipe.timeline()  # phases that do not fit are found before anything runs
        if recipe.method in METHODS:
            recipe.suits(METHODS[recipe.method])
        return recipe

    def _understood(self, changes: Mapping[str, Any]) -> Recipe:
        """Refuse what was asked for and is read by other methods alone. A file may have it: it holds every key."""
        if self.method in METHODS:
            for key in changes:
                rows = [name for name, row in METHODS.items() if key in row.reads]
                if rows and self.method not in rows and getattr(self, key) != getattr(Recipe, key):
                    raise UserError(f"{key} has no meaning for {self.method}; leave it out, or train by {_or(rows)}.")
        return self

    def in_epochs(self, value: Span, of: float | None = None) -> float:
        """A span in epochs, a share being one of all epochs, or of those of a stage."""
        return float(value[:-1]) / 100 * (self.epochs if of is None else of) if isinstance(value, str) else value

    def timeline(self) -> Timeline:
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
        if line.joint + line.ramp > self.epochs * (1 + 1e-9):  # shares of 100% may not add up to the bit
            raise UserError(
                f"warmup_natural + warmup_adversarial + ramp take {line.joint + line.ramp:g} epochs, but epochs is "
                f"{self.epochs:g}; train longer, or shorten these phases."
            )
        return line

    def suits(self, method: Method) -> None:
        """Refuse what has no meaning for a method, rather than let it pass without effect."""
        two = method.lower is not None and method.upper is not None
        if not two and (self.weighting is not None or self.kappa is not None):
            key = "weighting" if self.weighting is not None else "kappa"
            raise UserError(f"{key} is for two losses, and {self.method} has one; leave it out.")
        weighting = self.weighting or method.weighting
        if self.kappa is not None and weighting not in ("fixed", "scheduled"):
            raise UserError(f"kappa is for fixed and scheduled weights, not for {weighting}; leave it out.")
        if self.scope != "all" and weighting != "moments":
            raise UserError(f"scope is for weights from moments, not for {weighting}; leave it out.")
        if self.stages != 0 and method.latent is None:
            rows = [name for name, row in METHODS.items() if row.latent]
            raise UserError(f"{self.method} has no layer-wise stages; leave them out, or train by {_or(rows)}.")

    def command(self) -> str:
        """The command that makes this run: what differs from the defaults, spelled out."""
        default = Recipe.load(data=self.data, net=self.net, method=self.method)  # (of one's own: all of it is said)
        changed = [f.name for f in dataclasses.fields(self) if getattr(self, f.name) != getattr(default, f.name)]
        changed = ["method"] * (self.method != Recipe.method) + changed
        options = [f"--{k.replace('_', '-')} {_shown(getattr(self, k))}" for k in changed if k != "published"]
        return " ".join(["advibp train", shlex.quote(self.data), shlex.quote(self.net), *options])

    def as_dict(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in plain.items()}

    def to_yaml(self) -> str:
        """Every key, with what it means behind it."""
        values = self.as_dict()
        lines = [f"{f.name}: {_as_yaml(values[f.name])}  # {f.metadata['says']}" for f in dataclasses.fields(self)]
        return "\n".join(lines) + "\n"


def _or(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _as_yaml(value: Any) -> str:
    """JSON, which YAML reads too, but for the characters that it wants escaped."""
    plain = json.dumps(value, ensure_ascii=False)
    return re.sub("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]", lambda c: f"\\u{ord(c[0]):04x}", plain)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return shlex.quote(",".join(map(str, value)))
    return "none" if value is None else shlex.quote(str(value))


def shipped() -> dict[str, Any]:
    """Recipes inside the package, by name: `demo`, `paper/mnist-0.4`, ..."""
    root = resources.files("advibp") / "recipe" / "shipped"
    found = {f.name[:-5]: f for f in root.iterdir() if f.name.endswith(".yaml")}
    found |= {f"paper/{f.name[:-5]}": f for f in (root / "paper").iterdir() if f.name.endswith(".yaml")}
    return dict(sorted(found.items()))


def read(source: str | Path) -> dict[str, Any]:
    """The keys that a recipe sets, and no others: a shipped one by name, or a YAML file."""
    recipes = shipped()
    file = recipes.get(str(source), Path(source))
    try:
        loaded = from_yaml(file.read_text("utf-8"))
    except OSError:
        raise UserError(f"There is no recipe '{source}'; give a YAML file or one of {', '.join(recipes)}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(
            f"{source} is no valid YAML ({' '.join(str(error).split())}); a recipe has lines such as 'lr: 0.001'."
        ) from None
    if not isinstance(loaded, dict):
        raise UserError(f"{source} holds no recipe: expected lines such as 'lr: 0.001'.")
    return loaded
