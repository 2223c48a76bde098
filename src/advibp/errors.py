"""UserError, the exception for wrong input."""

from __future__ import annotations


class UserError(ValueError):
    """The user's input is wrong. The message says what was wrong, what was expected and what to do.

    The command line prints the message without a traceback and exits with code 2.

    Examples:
        ```python
        try:
            advibp.data.load("nowhere")
        except advibp.UserError as error:
            print(error)
        ```
    """
