"""Shows progress over images or bytes: a bar on a terminal or in a notebook, otherwise a line every few seconds."""

from __future__ import annotations

import html
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from advibp.display.eps import format_eps
from advibp.display.notebook_output import NotebookOutput
from advibp.display.terminal import Terminal

#: Seconds before the first output, and between lines.
_PATIENCE = 2.0

_hidden: list[bool] = []  # not empty: progress is hidden


@contextmanager
def hidden_progress() -> Iterator[None]:
    """Show no progress of images, bytes and training steps."""
    _hidden.append(True)
    try:
        yield
    finally:
        _hidden.pop()


def progress_is_hidden() -> bool:
    """Return whether progress is hidden."""
    return bool(_hidden)


class Counting:
    """Progress over images. Work that takes less than two seconds prints nothing.

    Examples:
        >>> with Counting("certifying") as counting:
        ...     counting.progress(0.1, 5, 10)
    """

    def __init__(self, verb: str, console: Console | None = None) -> None:
        self.verb, self.console = verb, console or Terminal(stderr=True, highlight=False)
        self.bar = Progress(console=self.console, transient=True)
        self.output, self.lines = NotebookOutput(), dict[float, str]()  # in a notebook
        self.tasks: dict[float, TaskID] = {}
        self.last_line = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.tasks:  # a bar that never started would print an empty line
            self.bar.stop()
        if self.lines:
            self._show_in_notebook(now=True)

    def progress(self, eps: float, done: int, total: int, counts: Counter[str] | None = None) -> None:
        """Show that `done` of `total` images are decided. `counts`: number of images with each verdict."""
        if progress_is_hidden():
            return
        so_far = "".join(f", {number} {verdict}" for verdict, number in (counts or {}).items())
        now = time.perf_counter()
        if now - self.last_line < _PATIENCE and not self.tasks and not self.lines:
            return
        if self.console.is_jupyter:
            self.lines[eps] = f"{self.verb}, eps {format_eps(eps)}: {done} of {total} images{so_far}"
            self._show_in_notebook()
            return
        if not self.console.is_terminal:
            if now - self.last_line >= _PATIENCE:
                self.last_line = now
                self.console.print(
                    f"{self.verb}, eps {format_eps(eps)}: {done} of {total} images{so_far}", soft_wrap=True
                )
            return
        self.bar.start()
        if eps not in self.tasks:
            self.tasks[eps] = self.bar.add_task(f"{self.verb}, eps {format_eps(eps)}", total=total)
        self.bar.update(self.tasks[eps], completed=done, description=f"{self.verb}, eps {format_eps(eps)}{so_far}")

    def _show_in_notebook(self, now: bool = False) -> None:
        self.output.show(f"<pre>{html.escape(chr(10).join(self.lines.values()))}</pre>", now=now)


class Fetching:
    """Progress over bytes. Without a total, `what` is printed once.

    Examples:
        >>> with Fetching() as fetching:
        ...     fetching.progress("mnist", 5, 10)
    """

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Terminal(stderr=True, highlight=False)
        columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
        self.bar = Progress(*columns, console=self.console, transient=True)
        self.output = NotebookOutput()
        self.what, self.task = "", TaskID(-1)
        self.last_line = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.what and self.console.is_terminal:
            self.bar.stop()

    def progress(self, what: str, done: int, total: int | None) -> None:
        """Show that `done` of `total` bytes of `what` are there."""
        if progress_is_hidden():
            return
        if self.console.is_jupyter:
            size = "" if total is None else f": {done / 1e6:.1f} of {total / 1e6:.1f} MB"
            self.output.show(f"<pre>{html.escape(what + size)}</pre>", now=what != self.what or done == total)
        elif self.console.is_terminal:
            self._draw(what, done, total)
        elif total is None and what != self.what:
            self.console.print(what, markup=False, soft_wrap=True)
        elif total is not None and time.perf_counter() - self.last_line >= _PATIENCE:
            self.last_line = time.perf_counter()
            self.console.print(f"{what}: {done / 1e6:.1f} of {total / 1e6:.1f} MB", markup=False, soft_wrap=True)
        self.what = what

    def _draw(self, what: str, done: int, total: int | None) -> None:
        """Update the bar. A new `what` replaces the bar of the last one."""
        if what != self.what:
            if self.what:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(escape(what), total=total)
            self.bar.start()
        self.bar.update(self.task, completed=done, total=total)
