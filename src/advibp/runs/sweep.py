"""Several runs that differ in a few keys of one recipe, each trained and certified, in one table.

A sweep is a folder of runs. What is finished is not done again, and a run that was interrupted continues.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from torch import nn

from advibp.data import Data
from advibp.errors import UserError
from advibp.execution.hardware import hardware
from advibp.methods import Method
from advibp.recipe import Recipe
from advibp.runs import first_net, open_run, train
from advibp.runs.estimate import SPANS, estimated_seconds, fitted
from advibp.runs.recipe_data import load_data
from advibp.runs.resuming import check_same_run, recipe_of
from advibp.runs.training_display import Display, Silent
from advibp.storage import checkpoint
from advibp.storage.run_folder import RunFolder
from advibp.verify import Attack, Certificate, certify
from advibp.verify.argument_checks import check_eps
from advibp.verify.arguments import Images
from advibp.verify.records import verified_errors
from advibp.verify.verifiers import in_order

Changes = dict[str, Any]
#: Of a certification and the training before it, in percent and seconds.
COLUMNS = ("standard", "PGD", "verified (IBP)", "verified (best)", "epochs", "s/epoch", "minutes")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """How a network is judged."""

    eps: tuple[float, ...] = ()  # none: at the radius it was trained at
    split: Literal["test", "validation"] = "test"  # what is chosen by a table must not be chosen on test images
    by: tuple[str, ...] = ("ibp",)
    attack: Attack = Attack(steps=40)
    sample: int | None = None
    budget: float | None = None
    arithmetic: str | None = None  # that proofs cover; none: the network's own

    def __post_init__(self) -> None:
        in_order(self.by)
        for eps in self.eps:
            check_eps(eps)
        if self.budget is not None and not 0 < self.budget < math.inf:
            raise UserError(f"budget is {self.budget}, but must be a number of seconds above 0.")


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What its runs have in common."""

    out: Path
    load: Callable[[Recipe], Data]
    examination: Examination = Examination()
    seconds: float | None = None  # the most that a training may take
    methods: Mapping[str, Method] = field(default_factory=dict)  # of one's own, by what the recipes call them
    show: Callable[[str], Display] = lambda name: Silent()


def combined(vary: Mapping[str, Sequence[Any]], *, one_by_one: bool = False) -> list[Changes]:
    """All combinations of values, or the base, {}, and each value alone."""
    if one_by_one:
        return [{}, *({key: value} for key, values in vary.items() for value in values)]
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def name_of(changes: Changes) -> str:
    """A folder's name."""
    told = "-".join(f"{key}-{value}" if key != "method" else str(value) for key, value in changes.items()) or "base"
    return re.sub(r"[^\w.,=%+-]+", "_", told)


def sweep(of: Sweep, recipes: Sequence[tuple[Changes, Recipe]]) -> list[dict[str, Any]]:
    """Train and certify one run for each recipe, which is told by how it differs from the others.

    A run that can't be made has a row too, which says why.
    """
    rows = []
    for change, recipe in recipes:
        name = name_of(change)
        row: dict[str, Any] = {"name": name, "changes": change}
        try:
            row |= _one(of, recipe, of.out / name, of.show(name))
        except UserError as error:
            row["failed"] = str(error)
        rows.append(row)
        told = {"rows": rows, "examination": _told(of.examination), "hardware": hardware()}
        checkpoint.write_atomically(of.out / "sweep.json", json.dumps(told, indent=1, default=str) + "\n")
    return rows


def _told(examination: Examination) -> dict[str, Any]:
    return {**vars(examination), "attack": str(examination.attack)}


def _one(of: Sweep, recipe: Recipe, path: Path, show: Display) -> dict[str, Any]:
    folder, data, method, look = RunFolder(path), of.load(recipe), of.methods.get(recipe.method), of.examination
    if of.seconds is not None and folder.exists:  # its epochs were settled when it began
        kept = recipe_of(folder)
        recipe = dataclasses.replace(recipe, **{key: getattr(kept, key) for key in SPANS})
    elif of.seconds is not None:
        # Each epoch ends with an evaluation, and the machine may get busier.
        recipe = fitted(recipe, 0.9 * of.seconds, estimated_seconds(first_net(recipe, data), data, recipe, method))
    net = trained(recipe, data, path, method=method, show=show)
    images = data.validation if look.split == "validation" else data.test
    certificate = examined(net, images, look, list(look.eps or [recipe.eps]), path / "certify")
    told, history = folder.summary(), folder.history()
    return {
        "recipe": recipe.as_dict(),
        "epochs": len(history),
        "s/epoch": sum(epoch["seconds"] for epoch in history) / len(history),
        "minutes": told["seconds"] / 60,
        "percent": {f"{eps:g}": _percent(certificate, eps, look.by) for eps in certificate.eps},
    }


def trained(recipe: Recipe, data: Data, path: Path, *, method: Method | None = None, show: Display) -> nn.Module:
    """The network of a recipe, trained into a folder: a finished one is opened, an interrupted one goes on."""
    folder = RunFolder(path)
    net = first_net(recipe, data, weights=not folder.begun)
    if folder.finished:
        check_same_run(folder, recipe)
        open_run(path, net)
    else:
        train(net, data, recipe=recipe, method=method, out=path, resume=True, show=show)
    return net


def examined(
    net: nn.Module, images: Images, look: Examination, eps: Sequence[float], out: Path, command: str = ""
) -> Certificate:
    """Certify into a folder; what is decided there is not decided again."""
    return certify(
        net,
        images,
        list(eps),
        by=look.by,
        arithmetic=look.arithmetic,
        attack=look.attack,
        budget=look.budget,
        sample=look.sample,
        out=out,
        command=command,
    )


class Loaded:
    """Data for each recipe, read once for all that ask for the same."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], Data] = {}

    def __call__(self, recipe: Recipe) -> Data:
        key = (recipe.data, recipe.limit, recipe.validation, recipe.size, recipe.data_root)
        if key not in self._known:
            data = load_data(recipe, recipe.data, recipe.limit)
            self._known = {key: data}  # one at a time, for memory's sake
        return self._known[key]


def _percent(certificate: Certificate, eps: float, by: Sequence[str]) -> dict[str, float | None]:
    errors = certificate.errors(eps)
    verified = verified_errors(certificate.flow(eps), by)
    return {
        "standard": 100 * errors["standard_error"],
        "PGD": 100 * errors["attack_error"],
        "verified (IBP)": 100 * verified["ibp"] if "ibp" in by else None,
        "verified (best)": 100 * errors["verified_error"],
    }


def table(rows: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Header and a row per run and eps, as text."""
    keys = list(dict.fromkeys(key for row in rows for key in row["changes"]))
    body = []
    for row in rows:
        first = [str(row["changes"].get(key, "")) for key in keys]
        if "failed" in row:
            body.append([*first, "", row["failed"], *[""] * (len(COLUMNS) - 1)])
        for eps, percent in row.get("percent", {}).items():
            measured = ["-" if percent[name] is None else f"{percent[name]:.2f}" for name in COLUMNS[:4]]
            body.append([*first, eps, *measured, f"{row['epochs']}", f"{row['s/epoch']:.2f}", f"{row['minutes']:.1f}"])
    return [[*keys, "test eps", *COLUMNS], *body]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)) + "\n"
