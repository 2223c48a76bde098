"""Several runs that differ in a few keys of one recipe, each trained and certified, in one table.

A sweep is a folder of runs. What is finished is not done again, and a run that was interrupted continues.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from advibp import checkpoint
from advibp.data import Data
from advibp.display import Display
from advibp.errors import UserError
from advibp.estimate import estimated_seconds, fitted
from advibp.folder import RunFolder, hardware
from advibp.recipe import Recipe
from advibp.runs import first_net, open_run, train
from advibp.verify import Attack, certify

Changes = dict[str, Any]
#: Of a certification and the training before it, in percent and seconds.
COLUMNS = ("standard", "PGD", "verified (IBP)", "verified (best)", "epochs", "s/epoch", "minutes")


@dataclass(frozen=True, kw_only=True)
class Examination:
    """How each network of a sweep is judged."""

    eps: tuple[float, ...]
    by: tuple[str, ...] = ("ibp",)
    attack: Attack = Attack(steps=40)
    sample: int | None = None
    budget: float | None = None


def combined(vary: Mapping[str, Sequence[Any]], *, one_by_one: bool = False) -> list[Changes]:
    """All combinations of values, or the base, {}, and each value alone."""
    if one_by_one:
        return [{}, *({key: value} for key, values in vary.items() for value in values)]
    return [dict(zip(vary, values, strict=True)) for values in itertools.product(*vary.values())]


def name_of(changes: Changes) -> str:
    """A folder's name."""
    told = "-".join(f"{key}-{value}" if key != "method" else str(value) for key, value in changes.items()) or "base"
    return re.sub(r"[^\w.,=%+-]+", "_", told)


def sweep(
    base: Mapping[str, Any],
    changes: Sequence[Changes],
    data: Data,
    out: Path,
    examination: Examination,
    *,
    seconds: float | None = None,
    show: Callable[[str], Display],
    recipe: str | None = None,
) -> list[dict[str, Any]]:
    """Train and certify one run for each of `changes`; `seconds` is the most that a training may take.

    A run that can't be made has a row too, which says why.
    """
    rows = []
    for change in changes:
        name = name_of(change)
        row: dict[str, Any] = {"name": name, "changes": change}
        try:
            row |= _one(Recipe.load(recipe, **{**base, **change}), data, out / name, examination, seconds, show(name))
        except UserError as error:
            row["failed"] = str(error)
        rows.append(row)
        told = {"rows": rows, "examination": _told(examination), "hardware": hardware()}
        checkpoint.write_atomically(out / "sweep.json", json.dumps(told, indent=1, default=str) + "\n")
    return rows


def _told(examination: Examination) -> dict[str, Any]:
    return {**vars(examination), "attack": str(examination.attack)}


def _one(
    recipe: Recipe, data: Data, path: Path, examination: Examination, seconds: float | None, show: Display
) -> dict[str, Any]:
    folder = RunFolder(path)
    if folder.exists:
        recipe = folder.recipe()  # its epochs were settled when it began
    elif seconds is not None:
        recipe = fitted(recipe, seconds, estimated_seconds(first_net(recipe, data), data, recipe))
    if not folder.finished:
        net = first_net(recipe, data, weights=not folder.exists)
        train(net, data, recipe=recipe, out=path, resume=True, show=show)
    net, _ = open_run(path)
    certificate = certify(
        net,
        data.test,
        list(examination.eps),
        by=examination.by,
        attack=examination.attack,
        budget=examination.budget,
        sample=examination.sample,
        out=path / "certify",
    )
    summary, history = folder.summary(), folder.history()
    return {
        "recipe": recipe.as_dict(),
        "epochs": len(history),
        "s/epoch": sum(epoch["seconds"] for epoch in history) / len(history),
        "minutes": summary["seconds"] / 60,
        "percent": {f"{eps:g}": _percent(certificate, eps) for eps in certificate.eps},
    }


def _percent(certificate: Any, eps: float) -> dict[str, float]:
    errors, records = certificate.errors(eps), [r for r in certificate.records if r.eps == eps]
    by_ibp = sum(r.verdict == "robust" and r.by == "ibp" for r in records)
    return {
        "standard": 100 * errors["standard_error"],
        "PGD": 100 * errors["pgd_error"],
        "verified (IBP)": 100 * (1 - by_ibp / len(records)),
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
            measured = [f"{percent[name]:.2f}" for name in COLUMNS[:4]]
            body.append([*first, eps, *measured, f"{row['epochs']}", f"{row['s/epoch']:.2f}", f"{row['minutes']:.1f}"])
    return [[*keys, "eps", *COLUMNS], *body]


def markdown(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)) + "\n"
