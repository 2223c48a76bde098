"""What is asked for, and the runs that it takes: recipes and examinations, told by names that say what they are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from advibp import nets
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe, read
from advibp.runs.sweep import Evaluation
from advibp.verify import Attack
from advibp.verify.verifiers import searches

T = TypeVar("T")

#: tiny: seconds, to see that everything works; fast: the default recipe, an hour a run; paper: the paper's epochs.
SCALES = ("tiny", "fast", "paper")

#: A training that fits into a second; its methods keep the warm-up that they want.
TINY: dict[str, Any] = {
    "limit": 300,
    "validation": 100,
    "epochs": 2.0,
    "warmup_natural": 0.5,
    "warmup_adversarial": 0.25,
    "ramp": 0.75,
    "batch_size": 50,
}
_STAND_IN = "a"  # the net of tiny trainings
_TINY_IMAGES, _TINY_STEPS, _TINY_SECONDS = 40, 5, 1.0


@dataclass(frozen=True)
class Setting:
    """Radii of one data set: test eps -> eps_train, and the paper's recipe for each eps_train."""

    data: str
    trained_for: Mapping[float, float]
    recipes: Mapping[float, str]
    main: float  # the eps_train where one training serves a figure

    @property
    def eps(self) -> tuple[float, ...]:
        return tuple(self.trained_for)

    def tested(self, eps: float, among: Sequence[float]) -> tuple[float, ...]:
        """The test radii, of those among which one may choose, that a run with eps_train serves."""
        return tuple(e for e in among if self.trained_for[e] == eps)


MNIST = Setting(
    "mnist",
    {0.1: 0.2, 0.2: 0.4, 0.3: 0.4, 0.4: 0.4},
    {0.2: "paper/mnist-0.2", 0.4: "paper/mnist-0.4"},
    main=0.4,
)
CIFAR10 = Setting(
    "cifar10",
    {n / 255: 1.1 * n / 255 for n in (2, 8, 16)},
    {1.1 * n / 255: f"paper/cifar10-{n}" for n in (2, 8, 16)},
    main=1.1 * 8 / 255,
)
SETTINGS = {"mnist": MNIST, "cifar10": CIFAR10}
#: Test radii of figures, where one training serves all.
FIGURE_RADII: dict[str, tuple[float, ...]] = {"mnist": (0.1, 0.2, 0.3, 0.4), "cifar10": (8 / 255,)}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """What was asked for. () and None: as the plan has it."""

    scale: str = "fast"
    models: tuple[str, ...] = ()
    eps: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    data: str | None = None
    folders: tuple[Path, ...] = (Path("runs/reproduce"),)  # where runs are; the first is where new ones go
    where: Mapping[str, Any] = field(default_factory=dict)  # threads, device, data_root
    command: str = ""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UserError(f"'{self.scale}' is no scale; choose {', '.join(SCALES)}.")
        for name in self.models:
            if not nets.is_known(name):
                raise UserError(f"'{name}' is no network; give names from `advibp nets`.")
        for name in self.methods:
            if name not in METHODS:
                raise UserError(f"'{name}' is no method; choose from {', '.join(METHODS)}.")
        for seed in self.seeds:
            if seed < 0:
                raise UserError(f"{seed} is no seed; give whole numbers, 0 or more.")

    @property
    def out(self) -> Path:
        return self.folders[0]

    @property
    def stands_in(self) -> bool:
        """Whether a small net is trained in place of the paper's."""
        return self.scale == "tiny" and not self.models

    def nets(self, table: Sequence[str]) -> tuple[str, ...]:
        """Of the nets of a table: a stand-in, the first, or all."""
        if self.models:
            return self.models
        return {"tiny": (_STAND_IN,), "fast": tuple(table[:1]), "paper": tuple(table)}[self.scale]

    def radii(self, table: Sequence[float], tiny: Sequence[float]) -> tuple[float, ...]:
        """Test radii: those asked for, which must be the table's, or the table's, or at a tiny scale some of them."""
        found = []
        for eps in self.eps:
            near = [e for e in table if abs(e - eps) < 1e-9]
            if not near:
                raise UserError(f"eps {eps:g} is not in this table; choose from {', '.join(map(told, table))}.")
            found += near
        return tuple(dict.fromkeys(found)) or tuple(tiny if self.scale == "tiny" else table)

    def figure_radii(self) -> tuple[float, ...]:
        """Test radii of a figure of one data set."""
        table = FIGURE_RADII[self.setting().data]
        return self.radii(table, table[:2])

    def rules(self, table: Sequence[str]) -> tuple[str, ...]:
        return self.methods or tuple(table)

    def chances(self, *, fast: Sequence[int] = (0,)) -> tuple[int, ...]:
        """Seeds."""
        return self.seeds or (tuple(fast) if self.scale == "fast" else (0,))

    def at_scale(self, *, tiny: T, fast: T, paper: T) -> T:
        return {"tiny": tiny, "fast": fast, "paper": paper}[self.scale]

    def setting(self) -> Setting:
        """Of the data that was asked for, if the paper has it, otherwise MNIST's."""
        return SETTINGS.get(self.data or "mnist", MNIST)

    def main_eps(self, setting: Setting | None = None) -> float:
        """eps_train of figures; at a tiny scale one that a second of training copes with."""
        setting = setting or self.setting()
        return 0.2 if self.scale == "tiny" and setting is MNIST else setting.main


def told(eps: float) -> str:
    """0.3, or 8/255 where the paper counts so."""
    return next((f"{n}/255" for n in (2, 8, 16) if abs(eps - n / 255) < 1e-9), f"{eps:g}")


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a run, or what it was after a stage, is examined, and the folder beside its weights that says so."""

    evaluation: Evaluation
    stage: int | None = None
    folder: str = "certify"


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """One run."""

    name: str
    recipe: Recipe
    looks: tuple[Look, ...] = ()
    partial: bool = False  # take a run elsewhere that is unfinished, or has fewer stages, with the stages it has

    @property
    def seed(self) -> int:
        return self.recipe.seed


def want(
    ask: Ask,
    setting: Setting,
    *,
    net: str,
    method: str,
    eps: float,
    seed: int,
    looks: Sequence[Look] = (),
    partial: bool = False,
    **changes: Any,
) -> Wanted:
    """A run at the scale that was asked for; `changes` are keys of its recipe. Runs of one recipe have one name."""
    base = _base(ask, setting, net, method, eps, seed)
    recipe = base.changed(**changes)
    return Wanted(name=_name(ask, base, recipe, changes), recipe=recipe, looks=tuple(looks), partial=partial)


def _base(ask: Ask, setting: Setting, net: str, method: str, eps: float, seed: int) -> Recipe:
    row = METHODS[method]
    keys: dict[str, Any] = {}
    if ask.scale == "tiny":
        keys = {**TINY, **row.recipe}
    elif ask.scale == "paper":
        # The paper's epochs for every method; a method that has no such phase goes without it.
        keys = {**read(setting.recipes[eps]), **row.recipe, "published": None}
        keys |= {} if row.latent else {"stages": 0}
    keys |= {"data": ask.data or setting.data, "net": net, "method": method, "eps": eps, "seed": seed}
    return Recipe.load(None, **keys, **ask.where)


def _name(ask: Ask, base: Recipe, recipe: Recipe, changes: Mapping[str, Any]) -> str:
    parts = [Path(recipe.data).stem, recipe.net, recipe.method, f"{recipe.eps:g}", f"{recipe.epochs:g}e"]
    parts += [f"{recipe.stages}x{recipe.stage_epochs:g}e"] if recipe.stages else []
    parts += [f"{recipe.limit}n"] if recipe.limit else []
    parts += [] if ask.scale != "paper" else ["paper"]
    said = ("epochs", "stages", "stage_epochs", "limit", "seed")
    parts += [f"{k}-{getattr(recipe, k)}" for k in changes if k not in said and getattr(recipe, k) != getattr(base, k)]
    return re.sub(r"[^\w.,=%+-]+", "_", "-".join([*parts, f"s{recipe.seed}"]))


def look(
    ask: Ask,
    eps: Sequence[float],
    *,
    by: Sequence[str] = ("ibp",),
    steps: int = 200,
    sample: int | None = None,
    stage: int | None = None,
    folder: str | None = None,
) -> Look:
    """An examination at the scale that was asked for: PGD of `steps`, 60 seconds an image where there is a search."""
    tiny, searching = ask.scale == "tiny", any(name in searches() for name in by)
    return Look(
        evaluation=Evaluation(
            eps=tuple(eps),
            by=tuple(by),
            attack=Attack(steps=_TINY_STEPS if tiny else steps),
            sample=_TINY_IMAGES if tiny else sample,
            budget=(_TINY_SECONDS if tiny else 60.0) if searching else None,
            arithmetic="real",  # as the paper's numbers
        ),
        stage=stage,
        folder=folder or ("certify" if stage is None else f"certify-stage-{stage}"),
    )
