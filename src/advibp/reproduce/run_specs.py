"""The user's options (`Ask`), and the runs that a plan needs (`RunSpec`): recipes, certifications and names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from advibp import nets
from advibp.display.eps import format_eps
from advibp.errors import UserError
from advibp.methods import METHODS
from advibp.recipe import Recipe, read
from advibp.runs.sweep import Evaluation
from advibp.verify import Attack
from advibp.verify.verifiers import searches

T = TypeVar("T")

#: tiny: a test that takes seconds; fast: the default recipe with one warm-up epoch of each kind, as in the stored runs,
#: about an hour per run; paper: the paper's epochs.
SCALES = ("tiny", "fast", "paper")

#: Recipe of a training that takes a second; a method's own keys take precedence.
TINY: dict[str, Any] = {
    "limit": 300,
    "validation": 100,
    "epochs": 2.0,
    "warmup_natural": 0.5,
    "warmup_adversarial": 0.25,
    "ramp": 0.75,
    "batch_size": 50,
}
#: Warm-up of the stored runs, which were trained before shares of the epochs became the default.
_STORED_WARM_UP = {"warmup_natural": 1.0, "warmup_adversarial": 1.0}
#: Warm-up of today's default recipe.
DEFAULT_WARM_UP = {"warmup_natural": "4%", "warmup_adversarial": "16%"}
_STAND_IN = "a"  # the net of tiny trainings
_TINY_IMAGES, _TINY_STEPS, _TINY_SECONDS = 40, 5, 1.0


@dataclass(frozen=True)
class Setting:
    """The paper's radii and recipes for one data set.

    Attributes:
        data: name of the data set.
        trained_for: eps_train by test eps.
        recipes: the paper's recipe by eps_train.
        main: eps_train of figures that use one training.
    """

    data: str
    trained_for: Mapping[float, float]
    recipes: Mapping[float, str]
    main: float

    @property
    def eps(self) -> tuple[float, ...]:
        """All test radii."""
        return tuple(self.trained_for)

    def tested(self, eps: float, among: Sequence[float]) -> tuple[float, ...]:
        """Return those of the test radii `among` that are tested on runs with eps_train `eps`."""
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
#: Test radii of figures that use one training.
FIGURE_RADII: dict[str, tuple[float, ...]] = {"mnist": (0.1, 0.2, 0.3, 0.4), "cifar10": (8 / 255,)}


@dataclass(frozen=True, kw_only=True)
class Ask:
    """Options of `reproduce`. Empty fields mean the defaults of the plan.

    Attributes:
        scale: "tiny" (seconds per run), "fast" (the default recipe with a short warm-up) or "paper" (the paper's
            epochs).
        models: names of networks.
        eps: test radii.
        methods: names of methods.
        seeds: seeds.
        data: another data set than the paper's.
        folders: folders of runs; new runs go to the first one.
        where: recipe keys that do not change results: threads, device, data_root.
        command: the user's command, for the files that are written.

    Examples:
        >>> from advibp.reproduce import Ask
        >>> Ask(scale="tiny", models=("a",), seeds=(0, 1)).seeds
        (0, 1)
    """

    scale: str = "fast"
    models: tuple[str, ...] = ()
    eps: tuple[float, ...] = ()
    methods: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    data: str | None = None
    folders: tuple[Path, ...] = (Path("runs/reproduce"),)
    where: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def __post_init__(self) -> None:
        if self.scale not in SCALES:
            raise UserError(f"'{self.scale}' is not a scale; choose from {', '.join(SCALES)}.")
        for name in self.models:
            if not nets.is_known(name):
                raise UserError(f"'{name}' is not a network; give names from `advibp nets`.")
        for name in self.methods:
            if name not in METHODS:
                raise UserError(f"'{name}' is not a method; choose from {', '.join(METHODS)}.")
        for seed in self.seeds:
            if seed < 0:
                raise UserError(f"{seed} is not a seed; give integers of at least 0.")

    @property
    def out(self) -> Path:
        """Folder of new runs and tables."""
        return self.folders[0]

    @property
    def stands_in(self) -> bool:
        """Whether a small net is trained instead of the paper's."""
        return self.scale == "tiny" and not self.models

    def nets(self, table: Sequence[str]) -> tuple[str, ...]:
        """Return the networks: the user's choice, or a small one (tiny), the table's first (fast) or all (paper)."""
        if self.models:
            return self.models
        return {"tiny": (_STAND_IN,), "fast": tuple(table[:1]), "paper": tuple(table)}[self.scale]

    def radii(self, table: Sequence[float], tiny: Sequence[float]) -> tuple[float, ...]:
        """Return the test radii: the user's choice, which must be in the table, or `tiny`, or the table's."""
        chosen = []
        for eps in self.eps:
            near = [e for e in table if abs(e - eps) < 1e-9]
            if not near:
                raise UserError(
                    f"eps {format_eps(eps)} is not in this table; choose from {', '.join(map(format_eps, table))}."
                )
            chosen += near
        return tuple(dict.fromkeys(chosen)) or tuple(tiny if self.scale == "tiny" else table)

    def figure_radii(self) -> tuple[float, ...]:
        """Return the test radii of a figure with one data set."""
        table = FIGURE_RADII[self.setting().data]
        return self.radii(table, table[:2])

    def method_names(self, table: Sequence[str]) -> tuple[str, ...]:
        """Return the methods: the user's choice or the table's."""
        return self.methods or tuple(table)

    def seed_list(self, *, fast: Sequence[int] = (0,)) -> tuple[int, ...]:
        """Return the seeds: the user's choice, or `fast` at the scale fast, or (0,)."""
        return self.seeds or (tuple(fast) if self.scale == "fast" else (0,))

    def at_scale(self, *, tiny: T, fast: T, paper: T) -> T:
        """Return the argument of the current scale."""
        return {"tiny": tiny, "fast": fast, "paper": paper}[self.scale]

    def setting(self) -> Setting:
        """Return the setting of the user's data if the paper has it, otherwise MNIST's."""
        return SETTINGS.get(self.data or "mnist", MNIST)

    def main_eps(self, setting: Setting | None = None) -> float:
        """Return eps_train of figures; at the scale tiny a smaller one, which a second of training can learn."""
        setting = setting or self.setting()
        return 0.2 if self.scale == "tiny" and setting is MNIST else setting.main


@dataclass(frozen=True, kw_only=True)
class Task:
    """One certification of a run.

    Attributes:
        evaluation: options of the certification.
        stage: layer-wise stage whose weights are certified; None for the final weights.
        folder: where the results are stored, in the run's folder.
    """

    evaluation: Evaluation
    stage: int | None = None
    folder: str = "certify"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run that a plan needs.

    Attributes:
        name: name of its folder; runs with the same recipe have the same name.
        recipe: its recipe.
        tasks: its certifications.
        partial: accept a run in a --reuse folder that is unfinished or has fewer layer-wise stages.
    """

    name: str
    recipe: Recipe
    tasks: tuple[Task, ...] = ()
    partial: bool = False

    @property
    def seed(self) -> int:
        """Seed of the recipe."""
        return self.recipe.seed


def run_spec(
    ask: Ask,
    setting: Setting,
    *,
    net: str,
    method: str,
    eps: float,
    seed: int,
    tasks: Sequence[Task] = (),
    partial: bool = False,
    **changes: Any,
) -> RunSpec:
    """Return a run at the scale of `ask`; `changes` are recipe keys."""
    base = _base(ask, setting, net, method, eps, seed)
    recipe = base.changed(**changes)
    return RunSpec(name=_name(ask, base, recipe, changes), recipe=recipe, tasks=tuple(tasks), partial=partial)


def _base(ask: Ask, setting: Setting, net: str, method: str, eps: float, seed: int) -> Recipe:
    row = METHODS[method]
    fusion = {"loss_fusion": False} if "loss_fusion" in row.recipe_keys else {}  # as in the paper and the stored runs
    keys: dict[str, Any] = {"batch_size": 256, **_STORED_WARM_UP, **row.recipe, **fusion}  # the paper's batch size
    if ask.scale == "tiny":
        keys = {**TINY, **row.recipe}
    elif ask.scale == "paper":
        # The paper's epochs for every method; phases that a method does not have are omitted.
        keys = {**read(setting.recipes[eps]), **row.recipe, **fusion, "published": None}
        keys |= {} if row.latent else {"stages": 0}
    keys |= {"data": ask.data or setting.data, "net": net, "method": method, "eps": eps, "seed": seed}
    return Recipe.load(None, **keys, **ask.where)


def _name(ask: Ask, base: Recipe, recipe: Recipe, changes: Mapping[str, Any]) -> str:
    parts = [Path(recipe.data).stem, recipe.net, recipe.method, f"{recipe.eps:g}", f"{recipe.epochs:g}e"]
    parts += [f"{recipe.stages}x{recipe.stage_epochs:g}e"] if recipe.stages else []
    parts += [f"{recipe.limit}n"] if recipe.limit else []
    parts += [] if ask.scale != "paper" else ["paper"]
    included = ("epochs", "stages", "stage_epochs", "limit", "seed")
    changed = [k for k in changes if k not in included and getattr(recipe, k) != getattr(base, k)]
    parts += [f"{k}-{getattr(recipe, k)}" for k in changed]
    return re.sub(r"[^\w.,=%+-]+", "_", "-".join([*parts, f"s{recipe.seed}"]))


def make_task(
    ask: Ask,
    eps: Sequence[float],
    *,
    by: Sequence[str] = ("ibp",),
    steps: int = 200,
    sample: int | None = None,
    stage: int | None = None,
    folder: str | None = None,
) -> Task:
    """Return a certification at the scale of `ask`: PGD with `steps`, and 60 seconds per image for bab and milp."""
    tiny, searching = ask.scale == "tiny", any(name in searches() for name in by)
    return Task(
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
