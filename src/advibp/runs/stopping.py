"""Ctrl-C and SIGTERM: the step is finished and saved before the program ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Stopped(KeyboardInterrupt):
    """A run was asked to stop, and has; `signal` is what asked, the text says how to go on."""

    def __init__(self, asked: int, told: str) -> None:
        super().__init__(told)
        self.signal = asked


class StopRequest:
    """While this is open, the first signal is noted (`asked`); a second one ends the program at once.

    Signals reach the main thread alone, so elsewhere nothing is caught.
    """

    CAUGHT = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.asked: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in self.CAUGHT}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.asked = number
        self._restore()

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
