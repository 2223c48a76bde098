"""The tables of a sweep: a row per run and eps, means over seeds, and the choice on validation images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

from advibp.display.eps import format_eps
from advibp.verify.verifiers import VERIFIERS

#: Columns of the table: errors in percent, and the time of the training.
COLUMNS = ("standard", "PGD", "verified (IBP)", "verified (best)", "epochs", "s/epoch", "minutes")
#: Errors of a row that are averaged over seeds: head, and where they are.
_AVERAGED = {
    "standard": ("percent", "standard"),
    "PGD": ("percent", "PGD"),
    "verified": ("percent", "verified (best)"),
    "validation: standard": ("validation", "standard"),
    "validation: verified": ("validation", "verified (best)"),
}
Row = Mapping[str, Any]


class _Column(NamedTuple):
    head: str
    cell: Callable[[Row, str], str]  # of a row and an eps
    optional: bool = False  # left out if it is empty in all rows


def _error(place: str, name: str) -> Callable[[Row, str], str]:
    def cell(row: Row, eps: str) -> str:
        errors = row.get(place, {}).get(eps)
        return "" if errors is None else "-" if errors[name] is None else f"{errors[name]:.2f}"

    return cell


def _images(row: Row, eps: str) -> str:
    return str(row.get("images", ""))


def _verifiers(row: Row, eps: str) -> str:
    return ", ".join(VERIFIERS[name].label for name in row.get("by", ()))


_TABLE = (
    _Column("images", _images, optional=True),
    _Column("standard", _error("percent", "standard")),
    _Column("PGD", _error("percent", "PGD")),
    _Column("verified (IBP)", _error("percent", "verified (IBP)")),
    _Column("verified (best)", _error("percent", "verified (best)")),
    _Column("best of", _verifiers, optional=True),
    _Column("validation: standard", _error("validation", "standard"), optional=True),
    _Column("validation: verified", _error("validation", "verified (best)"), optional=True),
    _Column("epochs", lambda row, eps: f"{row['epochs']}"),
    _Column("s/epoch", lambda row, eps: f"{row['s/epoch']:.2f}"),
    _Column("minutes", lambda row, eps: f"{row['minutes']:.1f}"),
)


def table(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table as strings: a header, and a row per run and eps.

    Columns that only some sweeps have are left out if they are empty: the number of images, the verifiers whose best
    result is shown, and the errors on validation images.
    """
    keys = _keys(rows)
    done = [(row, eps) for row in rows for eps in row.get("percent", {})]
    columns = [c for c in _TABLE if not c.optional or any(c.cell(row, eps) for row, eps in done)]
    body = []
    for row in rows:
        first = [str(row["changes"].get(key, "")) for key in keys]
        if "failed" in row:
            body.append([*first, "", row["failed"], *[""] * (len(columns) - 1)])
        for eps in row.get("percent", {}):
            body.append([*first, format_eps(float(eps)), *(column.cell(row, eps) for column in columns)])
    return [[*keys, "test eps", *(column.head for column in columns)], *body]


def seed_table(rows: Sequence[Row]) -> list[list[str]]:
    """Return mean and standard deviation over seeds as strings; [] unless runs differ only in their seeds."""
    groups = _over_seeds(rows)
    if all(len(group) < 2 for group in groups.values()):
        return []
    keys = [key for key in _keys(rows) if key != "seed"]
    heads = [head for head, (place, _) in _AVERAGED.items() if any(place in row for row in rows)]
    body = []
    for (changes, eps), group in groups.items():
        cells = [_spread([row[place][eps][name] for row in group]) for place, name in map(_AVERAGED.__getitem__, heads)]
        body.append([*(dict(changes).get(key, "") for key in keys), format_eps(float(eps)), str(len(group)), *cells])
    return [[*keys, "test eps", "seeds", *heads], *body]


def choices(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each eps: which run has the lowest verified error on validation images.

    Runs that differ only in their seeds are compared by their mean. Test images have no influence.
    """
    groups = {key: group for key, group in _over_seeds(rows).items() if all("validation" in row for row in group)}
    sentences = []
    for eps in dict.fromkeys(eps for _, eps in groups):
        means = {
            changes: [fmean(row[place][eps]["verified (best)"] for row in group) for place in ("validation", "percent")]
            for (changes, at), group in groups.items()
            if at == eps
        }
        if len(means) < 2:
            continue
        best = min(means, key=lambda changes: means[changes][0])
        name = ", ".join(f"{key}={value}" for key, value in best) or "the run without changes"
        validation, test = means[best]
        sentence = f"eps {format_eps(float(eps))}: {name} has the lowest verified error on validation images, "
        tested = all(row.get("split", "test") == "test" for row in groups[best, eps])
        sentences.append(
            f"{sentence}{validation:.2f} %" + (f"; on test images it has {test:.2f} %." if tested else ".")
        )
    return sentences


def _keys(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(key for row in rows for key in row["changes"]))


def _over_seeds(rows: Sequence[Row]) -> dict[tuple[tuple[tuple[str, str], ...], str], list[Row]]:
    """Group finished rows by their changes other than the seed, and by eps."""
    groups: dict[tuple[tuple[tuple[str, str], ...], str], list[Row]] = {}
    for row in rows:
        changes = tuple((key, str(value)) for key, value in row["changes"].items() if key != "seed")
        for eps in row.get("percent", {}):
            groups.setdefault((changes, eps), []).append(row)
    return groups


def _spread(values: Sequence[float]) -> str:
    mean = f"{fmean(values):.2f}"
    return f"{mean} ± {stdev(values):.2f}" if len(values) > 1 else mean


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table, whose first row is the header, as Markdown."""
    head, *body = rows
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)) + "\n"
