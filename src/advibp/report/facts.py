"""Converts runs to plain data for the page, which JSON can represent."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from numbers import Real
from statistics import median
from typing import Any

from advibp.display.eps import format_eps
from advibp.report.samples import Samples
from advibp.runs.run_files import Certification, Errors, RunFiles
from advibp.verify.collapse import unproved_message
from advibp.verify.confidence import wilson
from advibp.verify.radius import Radius, curve
from advibp.verify.records import Certificate, Record
from advibp.verify.verifiers import cascade_position

#: Metrics that are drawn over epochs, if they were logged.
METRICS = (
    "eps", "loss_lower", "loss_upper", "fosc", "c_t", "kappa_lower", "kappa_upper", "kappa_reg", "angle",
    "branch_agree", "branch_lower", "branch_upper", "branch_conflict", "standard_error", "verified_error", "seconds",
)  # fmt: skip
_BARS = 60  # upper limit for the bins of a histogram


def run_facts(run: RunFiles, name: str, class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Name, recipe, training metrics and commands of a run."""
    summary = run.summary or {}
    return {
        "name": name,
        "about": about(run),
        "finished": run.summary is not None,
        "eps": None if (eps := finite(run.recipe.get("eps"))) is None else round_eps(eps),
        "facts": _training_facts(run),
        "warnings": run.warnings_with(class_names or None),
        "commands": _commands(run),
        "hardware": hardware(summary) or next(filter(None, (hardware(c.summary) for c in run.certified.values())), ""),
        "history": _history(run.history),
    }


def about(run: RunFiles) -> str:
    """One line about a run: method, network, data, eps and epochs."""
    recipe = run.recipe
    parts = [recipe.get("method"), recipe.get("net"), recipe.get("data")]
    eps, epochs = finite(recipe.get("eps")), finite(recipe.get("epochs"))
    parts += [f"trained for eps {format_eps(eps)}"] if eps is not None else []
    parts += ["1 epoch" if epochs == 1 else f"{epochs:g} epochs"] if epochs is not None else []
    return " · ".join(str(part) for part in parts if part is not None)


def _training_facts(run: RunFiles) -> list[list[str]]:
    summary, rows = run.summary or {}, []
    if (parameters := finite(summary.get("parameters"))) is not None:
        rows.append(["parameters", f"{parameters:,.0f}"])
    if (seconds := finite(summary.get("seconds"))) is not None:
        rows.append(["training time", format_seconds(seconds)])
    elif run.history:
        rows.append(["trained so far", f"{run.history[-1]['epoch']} epochs"])
    if "weights" in summary:
        rows.append(["weights", f"of the {summary['weights']} epoch"])
    for name, certified in run.certified.items():
        stage = "" if name is None else f" after stage {name}"
        if certified.attack:
            rows.append([f"attack{stage}", certified.attack])
    rows += [["certificates left out", note] for note in run.stale.values()]
    return rows


def _commands(run: RunFiles) -> list[str]:
    train = (run.summary or {}).get("command")
    if train and " --out " not in str(train):  # written by an older version
        train = f"{train} --out {shlex.quote(str(run.path))}"
    commands = [train, *(c.summary.get("command") for c in run.certified.values())]
    return [str(command) for command in commands if command]


def hardware(summary: dict[str, Any]) -> str:
    """The hardware of a summary as text."""
    stored = summary.get("hardware")
    if not isinstance(stored, dict):
        return ""
    before = {"torch": "torch ", "python": "Python ", "advibp": "advibp "}
    after = {"cores": " core", "threads": " thread"}
    plural = {key: word + "s" * (stored.get(key) != 1) for key, word in after.items()}
    return ", ".join(f"{before.get(key, '')}{value}{plural.get(key, '')}" for key, value in stored.items() if value)


def _history(epochs: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """A column for each metric that was logged."""
    columns: dict[str, list[Any]] = {"epoch": [m["epoch"] for m in epochs]}
    columns["phase"] = [str(m.get("phase", "")) for m in epochs]
    for name in METRICS:
        column = [finite(m.get(name)) for m in epochs]
        if any(value is not None for value in column):
            columns[name] = [short(value) for value in column]
    return columns


def recipes(runs: Sequence[RunFiles]) -> list[dict[str, Any]]:
    """Each key of the recipes with its value in each run."""
    keys = list(dict.fromkeys(key for run in runs for key in run.recipe))
    rows = [(key, [_value(run.recipe.get(key)) for run in runs]) for key in keys]
    return [{"key": key, "values": values, "differ": len(set(values)) > 1} for key, values in rows]


def _value(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_value, value)) or "–"
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def certified_facts(
    certified: Certification, samples: Samples | None = None, class_names: Sequence[str] = ()
) -> dict[str, Any]:
    """Errors, verdicts and radii of a certified network.

    Args:
        certified: The certification.
        samples: Where the sets of images are numbered.
        class_names: Names of the classes, if they are known.
    """
    samples = Samples() if samples is None else samples
    asked = {name for r in certified.radii for name in r.provers.split()}
    curve_of = _curve(certified.radii)
    return {
        "attack": certified.attack,
        "arithmetic": certified.arithmetic,
        "ownSet": bool(certified.perturbation),  # another range than [0, 1], or a radius for each feature
        "at": [
            {**at_eps(certified, eps, class_names), "sample": samples.of_records(certified, eps)}
            for eps in certified.eps
        ],
        "curve": curve_of and {**curve_of, "sample": samples.of_radii(certified)},
        "radii": [[short(r.proved), short(r.broken)] for r in certified.radii if r.prediction == r.label],
        "radiiOf": len(certified.radii),
        "radiiBy": " ".join(sorted(asked, key=cascade_position)),
        "confusion": confusion(certified.records),
    }


def at_eps(certified: Certification, eps: float, class_names: Sequence[str] = ()) -> dict[str, Any]:
    """Errors, counts and outcomes at one eps, for all images and for each class."""
    errors = certified.errors(eps)
    records = [r for r in certified.records if r.eps == eps]
    proved = [r.label for r in records if r.verdict == "robust"]
    message = unproved_message([r.label for r in records], proved, eps, class_names or None)
    return {
        "eps": round_eps(eps),
        "counts": certified.counts(eps) or _counts(errors),
        "flow": [asdict(outcome) for outcome in certified.outcomes(eps)],
        "classes": _by_class(records, eps),
        "warnings": [message] if message else [],
        "onRadii": _on_radii(records, certified.radii),
        **_with_intervals(errors.images, errors.standard, errors.attack, errors.verified),
    }


def _with_intervals(images: int, standard: float, attack: float, verified: Mapping[str, float]) -> dict[str, Any]:
    """Errors in percent, with the ends of their confidence intervals."""
    return {
        "images": images,
        "standard": standard,
        "attack": attack,
        "verified": [[name, error, *interval(error, images)] for name, error in verified.items()],
        "intervals": {"standard": interval(standard, images), "attack": interval(attack, images)},
    }


def interval(percent: float, images: int) -> list[float]:
    """Wilson's interval of an error, all in percent."""
    return [round(100 * end, 6) for end in wilson(round(percent * images / 100), images)]


def _on_radii(records: Sequence[Record], radii: Sequence[Radius]) -> dict[str, Any] | None:
    """Accuracies on the images whose radii were measured; None unless all of them have records."""
    known, wanted = {(r.index, r.image): r for r in records}, {(r.index, r.image) for r in radii}
    if not wanted or not wanted <= known.keys():
        return None
    errors = Certificate([known[which] for which in sorted(wanted)]).errors(records[0].eps)
    proved = 100 - 100 * errors["verified_error"]
    return {"proved": proved, "interval": interval(proved, len(wanted)), "images": len(wanted)}


def confusion(records: Sequence[Record]) -> list[list[int]]:
    """Label, predicted class of the unchanged image, and number of images, for each pair that occurs."""
    pairs = Counter((r.label, r.prediction) for r in {r.index: r for r in records}.values())
    return [[label, prediction, count] for (label, prediction), count in sorted(pairs.items())]


def _counts(errors: Errors) -> dict[str, int]:
    """Counts of verdicts, computed from percentages if the summary has no counts."""
    shares = [errors.standard, errors.attack - errors.standard, errors.best - errors.attack, 100 - errors.best]
    names = ("misclassified", "falsified", "unknown", "robust")
    return {name: round(share * errors.images / 100) for name, share in zip(names, shares, strict=True) if share > 0}


def _by_class(records: list[Record], eps: float) -> list[dict[str, Any]]:
    rows = []
    for label in sorted({r.label for r in records}):
        of_class = Certificate([r for r in records if r.label == label])
        errors = of_class.errors(eps)
        shares = [100 * errors[name] for name in ("standard_error", "attack_error", "verified_error")]
        rows.append(
            {"label": label, **_with_intervals(len(of_class.records), shares[0], shares[1], {"all": shares[2]})}
        )
    return rows


def _curve(radii: list[Radius]) -> dict[str, Any] | None:
    """Certified accuracy over eps, up to the largest radius."""
    if not radii:
        return None
    top = min(1.0, 1.05 * max([r.broken or 0 for r in radii] + [r.proved for r in radii]) + 1e-3)
    points = curve(radii, [top * k / 120 for k in range(121)])
    eps, proved, unbroken = zip(*points, strict=True)
    intervals = [wilson(round(share * len(radii)), len(radii)) for share in proved]
    return {
        "low": [round(100 * low, 3) for low, _ in intervals],
        "high": [round(100 * high, 3) for _, high in intervals],
        "eps": [round(e, 5) for e in eps],
        "proved": [round(100 * share, 3) for share in proved],
        "unbroken": [round(100 * share, 3) for share in unbroken],
    }


def histograms(entries: list[dict[str, Any]]) -> None:
    """Replace the radii of all runs by histograms with the same bins."""
    radii = [entry.pop("radii") for entry in entries]
    largest = max((value for pairs in radii for pair in pairs for value in pair if value is not None), default=0.0)
    width = next((w for w in (0.001, 0.002, 0.005, 0.01, 0.02, 0.025, 0.05) if w * _BARS >= largest), 0.05)
    bins = max(1, math.ceil(largest / width + 1e-9))
    for entry, pairs in zip(entries, radii, strict=True):
        entry["histogram"] = (
            None
            if not pairs
            else {
                "width": width,
                "proved": _binned([p for p, _ in pairs], width, bins),
                "broken": _binned([b for _, b in pairs if b is not None], width, bins),
                "never": sum(b is None for _, b in pairs),
                "right": len(pairs),
                "median": median(p for p, _ in pairs),
            }
        )


def _binned(values: list[float], width: float, bins: int) -> list[int]:
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int(value / width))] += 1
    return counts


def finite(value: Any) -> float | None:
    """A finite number, or None; JSON has no NaN."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer of hundreds of digits
        return None
    return number if math.isfinite(number) else None


def short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def round_eps(eps: float) -> float:
    """Round a radius to six digits as in a summary, so that 8/255 is the same in records and summaries."""
    return float(f"{eps:g}")


def format_seconds(seconds: float) -> str:
    """Format a time, such as 2.5 s, 3 min or 1 h 05 min."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
