"""Draw charts into one SVG file with matplotlib, which is optional."""

from __future__ import annotations

import io
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from advibp.report.sections import ChartSection, Series
from advibp.storage import checkpoint


def installed() -> bool:
    return find_spec("matplotlib") is not None


def write_svg(path: Path, charts: Sequence[ChartSection], description: str) -> None:
    """Write all charts into one file, two per row; `description` becomes the description in its metadata."""
    from matplotlib.figure import Figure  # not pyplot, which looks for a screen

    columns = min(len(charts), 2)
    rows = -(-len(charts) // columns)
    figure = Figure(figsize=(5.5 * columns, 4 * rows), layout="constrained")
    for k, chart in enumerate(charts):
        _draw(figure.add_subplot(rows, columns, k + 1), chart)
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None, "Creator": None, "Description": description})
    checkpoint.write_atomically(path, drawn.getvalue().decode("utf-8"))


def _draw(axes: Any, chart: ChartSection) -> None:
    axes.set_title(chart.title, fontsize=10)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    for k, series in enumerate(chart.series):
        if chart.square:
            _arrow(axes, series, f"C{k}")
        elif chart.kind == "bar":
            width = 0.8 / len(chart.series)
            places = [i - 0.4 + (k + 0.5) * width for i in range(len(series.x))]
            axes.bar(places, series.y, width, label=series.name, yerr=_whiskers(series), capsize=3)
            axes.set_xticks(range(len(series.x)), [str(x) for x in series.x])
        else:
            style = "o" if chart.kind == "points" else "o-"
            axes.errorbar(series.x, series.y, yerr=_whiskers(series), fmt=style, capsize=3, label=series.name)
    if chart.log:
        axes.set_yscale("log")
    if chart.square:
        axes.set_aspect("equal", adjustable="datalim")
        axes.margins(0.15)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)


def _arrow(axes: Any, series: Series, color: str) -> None:
    """Draw an arrow from the first point to the last. The line sets the limits of the axes, which an arrow does not."""
    axes.plot(series.x, series.y, color=color, label=series.name)
    axes.annotate(
        "",
        xy=(series.x[-1], series.y[-1]),
        xytext=(series.x[0], series.y[0]),
        arrowprops={"arrowstyle": "-|>", "color": color, "lw": 2, "shrinkA": 0, "shrinkB": 0},
    )


def _whiskers(series: Series) -> list[list[float]] | None:
    if series.low is None or series.high is None:
        return None
    below = [max(0.0, y - low) for y, low in zip(series.y, series.low, strict=True)]
    return [below, [max(0.0, high - y) for y, high in zip(series.y, series.high, strict=True)]]
