"""The trace of a search as tables and charts of a page."""

from __future__ import annotations

import math

from advibp.report.sections import ChartSection, Section, Series, TableSection
from advibp.verify.exact.trace import Trace


def trace_sections(trace: Trace, command: str = "") -> list[Section]:
    """Return the time of each method as a table, and the bound and the open subproblems over time as charts.

    Args:
        trace: the trace of one property.
        command: the command that produced it.
    """
    methods = [
        [row["method"], "" if row["seconds"] is None else f"{row['seconds']:.2f}", f"{row['subproblems']:,}"]
        for row in trace.summary()["methods"]
    ]
    sections: list[Section] = [
        TableSection(
            title="Time of each method",
            head=["method", "seconds", "bounded subproblems"],
            rows=methods,
            notes=["neuron-split and input-split are parts of bab."],
            command=command,
        )
    ]
    bounds, still_open = _over_time(trace, "bound"), _over_time(trace, "open")
    if bounds:
        note = "The property is proved when the bound is above 0."
        sections.append(
            ChartSection(title="Lowest bound", x="seconds", y="bound of the margin", series=bounds, notes=[note])
        )
        sections.append(
            ChartSection(title="Open subproblems", x="seconds", y="number of subproblems", series=still_open)
        )
    return sections


def _over_time(trace: Trace, name: str) -> list[Series]:
    """Return a series per method of a number of the trace's progress. Rows with infinite bounds are left out."""
    rows = [row for row in trace.summary()["progress"] if math.isfinite(row["bound"])]
    series = {method: [row for row in rows if row["method"] == method] for method in (row["method"] for row in rows)}
    return [
        Series(name=method, x=[row["seconds"] for row in of], y=[float(row[name]) for row in of])
        for method, of in series.items()
    ]
