"""Handle Ctrl-C and SIGTERM: finish and save the current step before the program ends."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any, Self


class Stopped(KeyboardInterrupt):
    """Raised after a run has stopped because of a signal. The message says how to continue.

    Attributes:
        signal: number of the signal.
    """

    def __init__(self, number: int, message: str) -> None:
        super().__init__(message)
        self.signal = number


class StopRequest:
    """Context manager that records the first Ctrl-C or SIGTERM; a second one ends the program at once.

    Python delivers signals only to the main thread, so that nothing is recorded in other threads.

    Attributes:
        signal: number of the recorded signal; None if there was none.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._record) for number in self.SIGNALS}
        return self

    def _record(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
