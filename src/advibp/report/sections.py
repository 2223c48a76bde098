"""Tables and charts as plain data, which the page and the terminal draw."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TableSection:
    """A table.

    Examples:
        >>> TableSection(title="Errors", head=["eps", "error"], rows=[["0.1", "3.20 %"]]).head
        ['eps', 'error']

    Attributes:
        title: Title of the section.
        head: Names of the columns.
        rows: Cells as text; "" for an empty cell.
        notes: Sentences below the table.
        command: The command that produces the table.
    """

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()
    command: str = ""


@dataclass(frozen=True, kw_only=True)
class Series:
    """A series of a chart.

    Examples:
        >>> Series(name="advibp", x=[0.1, 0.2], y=[3.2, 5.1]).name
        'advibp'

    Attributes:
        name: Name in the key.
        x: Positions on the x axis.
        y: Values.
        low: Lower ends of the error bars, for example over seeds. Default: no error bars.
        high: Upper ends of the error bars.
    """

    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    low: Sequence[float] | None = None
    high: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class ChartSection:
    """A chart of one or more series.

    Examples:
        >>> ChartSection(title="Errors", x="eps", y="error, %", series=[Series(name="a", x=[0.1], y=[3.2])]).kind
        'line'

    Attributes:
        title: Title of the section.
        x: Label of the x axis.
        y: Label of the y axis.
        series: The series.
        kind: Type of the chart. Default: "line".
        square: Whether both axes have the same scale. Default: False.
        log: Whether the y axis is logarithmic. Default: False.
        notes: Sentences below the chart.
        command: The command that produces the chart.
    """

    title: str
    x: str
    y: str
    series: Sequence[Series]
    kind: Literal["line", "bar", "points"] = "line"
    square: bool = False
    log: bool = False
    notes: Sequence[str] = ()
    command: str = ""


Section = TableSection | ChartSection
