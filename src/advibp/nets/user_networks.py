"""Load a user's network from ``path/to/file.py:function`` or ``package.module:function``.

This runs code. Call it only with a name that the user typed, never with a name that was read from a run's folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from advibp import user_code
from advibp.errors import UserError


def from_file(spec: str) -> nn.Module:
    """Call a user's function without arguments and return the network that it returns.

    Args:
        spec: ``path/to/file.py:function`` or ``package.module:function``. A class that needs no arguments also works.

    Returns:
        The network.

    Raises:
        UserError: if there is no such function, if it fails, or if it does not return an nn.Module.

    Examples:
        >>> from advibp import nets
        >>> nets.from_file("torch.nn:Identity")
        Identity()
    """
    net = user_code.load(
        spec,
        lambda function: _call(function, spec),
        like=callable,
        kind="function",
        wanted="it must return an nn.Module",
    )
    if isinstance(net, type):
        raise UserError(f"{spec} returned the class {net.__name__}; return an instance of it: {net.__name__}().")
    if not isinstance(net, nn.Module):
        raise UserError(f"{spec} returned {type(net).__name__}, but an nn.Module was expected.")
    return net


def _call(function: Callable[..., Any], spec: str) -> Any:
    """Call a function that needs no arguments."""
    if isinstance(function, nn.Module):
        raise UserError(f"{spec} is already a network; name a function that returns it.")
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        return function()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        raise UserError(
            f"{spec} needs arguments ({', '.join(needed)}), but it is called without any; give them defaults, or name "
            "another function."
        )
    return function()
