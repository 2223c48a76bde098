"""Progress over images: a bar on a terminal, anywhere else a plain line every few seconds."""

from __future__ import annotations

import time
from typing import Any, Self

from rich.console import Console
from rich.progress import Progress, TaskID

# What is done sooner needs no progress.
_PATIENCE = 2.0


class Counting:
    """Call `progress(eps, done, total)` now and then; what takes less than two seconds stays silent."""

    def __init__(self, verb: str, console: Console | None = None) -> None:
        self.verb, self.console = verb, console or Console(stderr=True, highlight=False)
        self.bar = Progress(console=self.console, transient=True)
        self.tasks: dict[float, TaskID] = {}
        self.last_line = time.perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        if self.tasks:  # a bar that never started would print an empty line
            self.bar.stop()

    def progress(self, eps: float, done: int, total: int) -> None:
        now = time.perf_counter()
        if now - self.last_line < _PATIENCE and not self.tasks:
            return
        if not self.console.is_terminal:
            if now - self.last_line >= _PATIENCE:
                self.last_line = now
                self.console.print(f"{self.verb}, eps {eps:g}: {done} of {total} images", soft_wrap=True)
            return
        self.bar.start()
        if eps not in self.tasks:
            self.tasks[eps] = self.bar.add_task(f"{self.verb}, eps {eps:g}", total=total)
        self.bar.update(self.tasks[eps], completed=done)
