"""Print the messages that advibp logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from advibp.cli.parser import one_line


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return one_line(super().format(record))


@contextmanager
def log_to_stderr() -> Iterator[None]:
    """Print the warnings that advibp logs to stderr, one line each."""
    handler, logger = logging.StreamHandler(sys.stderr), logging.getLogger("advibp")
    handler.setFormatter(_OneLine("%(message)s"))
    handler.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
