"""The one exception for mistakes that a user can mend."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in what the user gave us: one sentence that says what was wrong, what was expected, what to do.

    The command line prints it without a traceback and exits with code 2.
    """
