"""Run a command in a child process that is ended when its time is over.

Python handles signals between two of its own instructions, so a solver or a large matrix product can delay them by
seconds. A child process can be ended at any time.
"""

from __future__ import annotations

import math
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from typing import NoReturn


def run_supervised(command: Callable[[Callable[[], None]], int], deadline: float, late: Callable[[], int]) -> int:
    """Run a command, or end it at the deadline.

    Args:
        command: gets a function that it must call before it prints its result, and returns the exit code. Once that
            function was called the command is not ended any more.
        deadline: a time of `time.monotonic`.
        late: called in this process after the command was ended; returns the exit code.

    Returns:
        The exit code.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_child(command, writer)
    os.close(writer)
    before = signal.signal(signal.SIGTERM, _exit_by_signal)
    try:
        finished = _wait_for_result(reader, deadline)
        if finished:
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            child = 0
            return code if code >= 0 else 128 - code
    finally:
        os.close(reader)
        signal.signal(signal.SIGTERM, before)
        if child:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    return late()


def _run_child(command: Callable[[Callable[[], None]], int], writer: int) -> NoReturn:
    """Run the command and end the process without the parent's exit handlers."""
    code = 2
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        code = command(lambda: os.close(writer))
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:
        code = 130
    finally:
        os._exit(code)


def _wait_for_result(reader: int, deadline: float) -> bool:
    """Wait until the child has a result, or has ended; False if the deadline passes before."""
    left = None if math.isinf(deadline) else max(0.0, deadline - time.monotonic())
    return bool(select.select([reader], [], [], left)[0])  # readable when the other end is closed


def _exit_by_signal(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)
