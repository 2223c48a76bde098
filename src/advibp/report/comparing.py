"""Compares several runs: their recipes, the cost of their training, and their errors on test images.

Errors alone do not show whether two networks differ: on 1,000 images half a percent is five images. If two runs were
certified on the same images, McNemar's test is applied to the images that only one of them proves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from advibp.display.eps import exact_eps, format_eps
from advibp.display.terminal import printable
from advibp.report.naming import names_of
from advibp.report.pairing import Certified, Paired
from advibp.report.sections import TableSection
from advibp.report.watching import epochs_of
from advibp.runs.run_files import RunFiles
from advibp.verify.verifiers import cascade_position

#: Runs are columns up to this number, and rows above it.
COLUMNS = 4
NOTHING = "–"


class Row(NamedTuple):
    """A row of a table: a name, and a cell for each run."""

    name: str
    cells: list[str]


@dataclass
class Comparison:
    """A comparison of runs with the first of them.

    Examples:
        >>> import torch, advibp
        >>> x, y = torch.rand(60, 1, 2, 2), torch.arange(60) % 2
        >>> data = advibp.data.from_tensors(x, y, x, y, validation=10)
        >>> net = advibp.nets.build("FC 4", input_shape=(1, 2, 2), classes=2, seed=0)
        >>> options = dict(eps=0.1, method="standard", epochs=1, batch_size=10)
        >>> for name in ("first", "second"):
        ...     run = advibp.train(net, data, out=f"runs/{name}", **options)
        >>> comparison = Comparison([advibp.read_run("runs/first"), advibp.read_run("runs/second")])
        >>> [section.title for section in comparison.sections()]
        ['recipes: keys that differ', 'training', 'errors on test images']

    Attributes:
        runs: The runs, as `read_run` returns them.
        names: Their names, which differ.
    """

    runs: Sequence[RunFiles]
    names: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = names_of(self.runs)

    def sections(self) -> list[TableSection]:
        """Tables of recipes, training and errors, with notes."""
        stages: dict[int | None, None] = {stage: None for run in self.runs for stage in run.certified}
        ordered = sorted(stages.keys() | {None}, key=lambda stage: (stage is None, stage or 0))
        return [*self._recipes(), *self._training(), *(s for stage in ordered for s in self._tests(stage))]

    def _recipes(self) -> list[TableSection]:
        recipes = [run.recipe for run in self.runs]
        keys = [key for key in dict.fromkeys(k for recipe in recipes for k in recipe) if key != "published"]
        rows = [Row(key, [format_value(recipe, key) for recipe in recipes]) for key in keys]
        rows = [row for row in rows if len(set(row.cells)) > 1]
        return self._laid_out("recipes: keys that differ", rows, [] if rows else ["The recipes are the same."])

    def _training(self) -> list[TableSection]:
        seconds = [spent(run) for run in self.runs]
        rows = [
            Row("epochs", [_epochs(run) for run in self.runs]),
            Row("minutes", [f"{s / 60:.1f}" if s >= 60 else f"{s / 60:.2f}" for s in seconds]),
            Row("standard error, validation", [_validation(run, "standard_error") for run in self.runs]),
            Row("verified error, validation", [_validation(run, "verified_error") for run in self.runs]),
            Row("hardware", [_hardware(run) for run in self.runs]),
        ]
        notes = [
            f"{name} is not finished; minutes and errors are those of its epochs so far."
            for name, run in zip(self.names, self.runs, strict=True)
            if run.summary is None
        ]
        if _differ(run.recipe.get("eps") for run in self.runs):
            notes.append("Not comparable: verified errors on validation images, because the eps differ.")
        if _differ(cell for cell in rows[-1].cells if cell != NOTHING):
            notes.append("Not comparable: minutes, because the hardware differs.")
        return self._laid_out("training", rows, notes)

    def _tests(self, stage: int | None) -> list[TableSection]:
        """Errors of the trained networks, or of the networks after a layer-wise stage."""
        certified_runs = [
            Certified(name, str(run.recipe.get("data")), run.certified.get(stage))
            for name, run in zip(self.names, self.runs, strict=True)
        ]
        title = "errors on test images" + ("" if stage is None else f" after stage {stage}")
        notes = [
            f"{certified.run} is not certified{'' if stage is None else ' after this stage'}."
            for certified in certified_runs
            if not certified.eps
        ]
        notes += [printable(run.stale[stage]) for run in self.runs if stage in run.stale]
        radii = sorted({eps for certified in certified_runs for eps in certified.eps}, key=float)
        groups = {eps: rows_at(certified_runs, eps) for eps in radii}
        paired = {
            eps: [p for other in certified_runs[1:] if (p := Paired.of(certified_runs[0], other, eps))] for eps in radii
        }
        if any(paired.values()):
            notes.append(
                "p: p-value of McNemar's exact test, two-sided, on the images that only one of the two proves. It is "
                "about other images from the same distribution, not about other seeds."
            )
        sentences = {eps: [f"eps {_shown(eps)}: {p.sentence()}" for p in pairs] for eps, pairs in paired.items()}
        notes = [*warnings(certified_runs), *notes]
        if len(self.runs) <= COLUMNS:
            rows = [row for eps in radii for row in groups[eps]]
            return self._laid_out(title, rows, [*(s for eps in radii for s in sentences[eps]), *notes])
        parts = [(f"{title}, eps {_shown(eps)}", groups[eps], list(sentences[eps])) for eps in radii] or [
            (title, [], [])
        ]
        parts[-1][2].extend(notes)
        return [section for part in parts for section in self._laid_out(*part)]

    def _laid_out(self, title: str, rows: list[Row], notes: list[str]) -> list[TableSection]:
        """A table with runs as columns, or as rows if there are many. Without rows, only the notes."""
        lines = [[row.name, *row.cells] for row in rows]
        head, *body = [["", *self.names], *lines]
        if len(self.runs) > COLUMNS:
            head, *body = [list(column) for column in zip(head, *body, strict=True)] if rows else [[]]
        if not rows:
            head, body = [], []
        return [TableSection(title=title, head=head, rows=body, notes=notes)] if rows or notes else []


def rows_at(certified_runs: Sequence[Certified], eps: str) -> list[Row]:
    """Rows of all errors at one eps, with the differences from the first run."""
    errors = [certified.errors.get(eps) for certified in certified_runs]
    known = [e for e in errors if e is not None]
    rows = [
        Row(f"eps {_shown(eps)}", [f"{e.images:,} images" if e else NOTHING for e in errors]),
        Row("standard error", _shares([e.standard if e else None for e in errors])),
        Row("attack error", _shares([e.attack if e else None for e in errors])),
    ]
    asked = sorted({name for e in known for name in e.verified}, key=cascade_position)
    rows += [
        Row(f"not proved by {name}", _shares([e.verified.get(name) if e else None for e in errors])) for name in asked
    ]
    if _differ(tuple(e.verified) for e in known):
        rows.append(Row("not proved by any", _shares([e.best if e and e.verified else None for e in errors])))
    return rows


def warnings(certified_runs: Sequence[Certified]) -> list[str]:
    """Notes about differences between certifications that make their numbers incomparable."""
    certified_runs = [certified for certified in certified_runs if certified.files and certified.eps]
    lines = []
    attacks: dict[str, list[str]] = {}
    for certified in certified_runs:
        attacks.setdefault(certified.files.attack if certified.files else "", []).append(certified.run)
    if len(attacks) > 1:
        names = "; ".join(f"{', '.join(runs)}: {printable(attack) or 'unknown'}" for attack, runs in attacks.items())
        lines.append(f"Not comparable: attack errors, because the attacks differ ({names}).")
    if _differ(certified.files.arithmetic for certified in certified_runs if certified.files):
        names = "; ".join(f"{c.run}: {printable(c.files.arithmetic)}" for c in certified_runs if c.files)
        lines.append(f"Not comparable: verified errors, because the proofs cover different arithmetics ({names}).")
    if _differ(certified.files.perturbation for certified in certified_runs if certified.files):
        lines.append("Not comparable: attack and verified errors, because the ranges or radii of the features differ.")
    radii = sorted({eps for certified in certified_runs for eps in certified.eps}, key=float)
    if apart := [eps for eps in radii if _other_images([c for c in certified_runs if eps in c.eps], eps)]:
        lines.append(f"Not comparable: errors at eps {', '.join(map(_shown, apart))}, because the images differ.")
    if apart := [
        eps for eps in radii if _differ(tuple(c.errors[eps].verified) for c in certified_runs if eps in c.eps)
    ]:
        lines.append(
            f"Not comparable: verified errors at eps {', '.join(map(_shown, apart))} by all verifiers, or by one "
            "that ran after others, because the verifiers differ."
        )
    return lines


def _other_images(certified_runs: Sequence[Certified], eps: str) -> bool:
    """Whether the images differ: by fingerprint if there are records, otherwise by their number and data set."""
    prints = [frozenset(certified.proved(eps)) for certified in certified_runs]
    return _differ(kept for kept in prints if kept) or (
        not all(prints) and _differ((c.errors[eps].images, c.data) for c in certified_runs)
    )


def _shown(eps: str) -> str:
    return format_eps(float(eps))


def _shares(percents: Sequence[float | None]) -> list[str]:
    first = percents[0]
    cells = [NOTHING if p is None else f"{p:6.2f} %" for p in percents]
    return [
        cell if k == 0 or first is None or p is None else f"{cell} ({p - first:+.2f})"
        for k, (cell, p) in enumerate(zip(cells, percents, strict=True))
    ]


def _differ(values: Iterable[Any]) -> bool:
    return len(set(values)) > 1


def format_value(recipe: dict[str, Any], key: str) -> str:
    if key not in recipe:
        return NOTHING
    value = recipe[key]
    if value is None or isinstance(value, bool):
        return {None: "none", True: "true", False: "false"}[value]
    if isinstance(value, float):
        if key == "eps":
            return exact_eps(value)
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return printable(",".join(map(str, value)) if isinstance(value, list) else str(value)) or '""'


def spent(run: RunFiles) -> float:
    """Seconds of training, or of the epochs so far if the run is not finished."""
    stored = (run.summary or {}).get("seconds")
    if isinstance(stored, int | float):
        return float(stored)
    return sum(float(s) for m in run.history if isinstance(s := m.get("seconds"), int | float))


def _epochs(run: RunFiles) -> str:
    done, total = max((m["epoch"] for m in run.history), default=0), epochs_of(run)
    if run.summary is not None:
        return str(done or total)
    return f"{done} of {total}"


def _validation(run: RunFiles, key: str) -> str:
    stored = (run.summary or {}).get("validation") or (run.history[-1] if run.history else {})
    share = stored.get(key) if isinstance(stored, dict) else None
    return f"{100 * share:6.2f} %" if isinstance(share, int | float) else NOTHING


def _hardware(run: RunFiles) -> str:
    stored = (run.summary or {}).get("hardware")
    if not isinstance(stored, dict):
        return NOTHING
    threads = stored.get("threads", "?")
    return printable(
        f"{stored.get('processor') or stored.get('machine') or '?'}, {threads} thread{'s' * (threads != 1)}, "
        f"torch {stored.get('torch', '?')}"
    )
