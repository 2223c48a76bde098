"""What a page may hold besides runs: a table, or a chart of a few series. Plain data; page and terminal draw it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class TableSection:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]  # cells as they are read by people; "" where there is nothing to say
    notes: Sequence[str] = ()
    command: str = ""  # what makes it again


@dataclass(frozen=True, kw_only=True)
class Series:
    name: str
    x: Sequence[float | str]
    y: Sequence[float]
    low: Sequence[float] | None = None  # of a band or of error bars, where several seeds were measured
    high: Sequence[float] | None = None


@dataclass(frozen=True, kw_only=True)
class ChartSection:
    title: str
    x: str  # what the axes are of
    y: str
    series: Sequence[Series]
    kind: Literal["line", "bar", "points"] = "line"
    square: bool = False  # one unit is as long on both axes
    log: bool = False  # a logarithmic y axis
    notes: Sequence[str] = ()
    command: str = ""


Section = TableSection | ChartSection
