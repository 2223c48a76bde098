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
    bounds, still_open = _over_time(trace, 2), _over_time(trace, 3)
    if bounds:
        note = "The property is proved when the bound is above 0."
        sections.append(
            ChartSection(title="Lowest bound", x="seconds", y="bound of the margin", series=bounds, notes=[note])
        )
        sections.append(
            ChartSection(title="Open subproblems", x="seconds", y="number of subproblems", series=still_open)
        )
    return sections


def _over_time(trace: Trace, column: int) -> list[Series]:
    """Return a series per method of a column of the trace's rows. Infinite values are left out."""
    rows = [row for row in trace.rows if math.isfinite(row[2])]
    return [
        Series(
            name=method,
            x=[row[0] for row in rows if row[1] == method],
            y=[float(row[column]) for row in rows if row[1] == method],
        )
        for method in dict.fromkeys(row[1] for row in rows)
    ]
