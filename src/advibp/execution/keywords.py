"""Refuse unknown keyword arguments with a suggestion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from advibp.errors import NORM_NAMES, ONLY_LINF, UserError, suggestion

F = TypeVar("F", bound=Callable[..., Any])


def known_keywords(function: F) -> F:
    """Decorate a function or a class: an unknown keyword argument raises a UserError, not a TypeError.

    The message suggests a similar name. For the names that other libraries give to the norm, it says that only l_inf is
    supported.

    Args:
        function: the function, or a class whose constructor is checked.

    Returns:
        The function, with the same signature.
    """
    if isinstance(function, type):
        function.__init__ = known_keywords(function.__init__)  # type: ignore[misc]
        return function
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    label = function.__qualname__.removesuffix(".__init__")

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        for name in options:
            if name not in names:
                raise UserError(unknown_keyword(label, name, names))
        return function(*args, **options)

    return cast(F, call)


def unknown_keyword(label: str, name: str, known: list[str]) -> str:
    """Return the message about an unknown keyword argument of the function `label`."""
    if name in NORM_NAMES:
        return f"{label} takes no argument {name}, because {ONLY_LINF}; leave {name} out."
    return f"{label} takes no argument {name}; {suggestion(name, known)}"
