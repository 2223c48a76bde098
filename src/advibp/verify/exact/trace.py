"""Records what a search does: its bound over time, its subproblems, and who spent the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Trace:
    """The progress of the searches of one question.

    Attributes:
        rows: (seconds, method, lowest bound, open subproblems, bounded subproblems), at most `most` of them.
        most: when there are more rows, every second one is dropped.
    """

    rows: list[tuple[float, str, float, int, int]] = field(default_factory=list)
    most: int = 400
    _started: float = field(default_factory=time.monotonic)
    _subproblems: dict[str, int] = field(default_factory=dict)
    _seconds: dict[str, float] = field(default_factory=dict)
    _method: str = ""
    _every: int = 1
    _calls: int = 0

    def note(self, method: str, bound: float, open_subproblems: int) -> None:
        """Record the lowest bound and the number of open subproblems of a method."""
        self._method = method
        self._calls += 1
        if self._calls % self._every:
            return
        elapsed = time.monotonic() - self._started
        self.rows.append((elapsed, method, bound, open_subproblems, self._subproblems.get(method, 0)))
        if len(self.rows) > self.most:
            self.rows, self._every = self.rows[::2], self._every * 2

    def count(self, subproblems: int) -> None:
        """Add bounded subproblems of the method that was noted last."""
        if self._method:
            self._subproblems[self._method] = self._subproblems.get(self._method, 0) + subproblems

    @contextmanager
    def timed(self, method: str) -> Iterator[None]:
        """Add the time of the block to the seconds of a method."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[method] = self._seconds.get(method, 0.0) + time.monotonic() - began

    def lines(self, most: int = 20) -> list[str]:
        """Return two tables as lines of text: the time of each method, and the bound over time."""
        summary = self.summary()
        lines = [f"{'method':<14} {'seconds':>9} {'subproblems':>12}"]
        for row in summary["methods"]:
            seconds = "" if row["seconds"] is None else f"{row['seconds']:.2f}"
            lines.append(f"{row['method']:<14} {seconds:>9} {row['subproblems']:>12,}")
        if self.rows:
            lines.append(f"{'seconds':>9} {'method':<12} {'lowest bound':>13} {'open':>8} {'bounded':>10}")
            step = -(-len(self.rows) // most)
            for elapsed, method, bound, still_open, bounded in [*self.rows[:-1:step], self.rows[-1]]:
                lines.append(f"{elapsed:>9.2f} {method:<12} {bound:>13.5g} {still_open:>8,} {bounded:>10,}")
        return lines

    def summary(self) -> dict[str, Any]:
        """Return plain data: seconds and subproblems of each method, and the rows."""
        methods = dict.fromkeys([*self._seconds, *self._subproblems])
        return {
            "methods": [
                {"method": name, "seconds": self._seconds.get(name), "subproblems": self._subproblems.get(name, 0)}
                for name in methods
            ],
            "progress": [
                dict(zip(("seconds", "method", "bound", "open", "bounded"), row, strict=True)) for row in self.rows
            ],
        }
