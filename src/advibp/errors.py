"""UserError, the exception for wrong input, and suggestions for mistyped names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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


def suggestion(name: object, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of a message about an unknown name.

    Args:
        name: what the user wrote.
        known: the names that exist.
        otherwise: the end if no name is similar; by default a list of all names.

    Returns:
        "did you mean NAME?", or `otherwise`.
    """
    names = list(known)
    near = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {near[0]}?" if near else otherwise or f"choose from {', '.join(names)}."


#: Names by which other libraries choose the norm of the perturbation.
NORM_NAMES = ("norm", "p", "ord", "p_norm", "threat_model")
ONLY_LINF = "only l_inf is supported: eps is the largest change of each input"
