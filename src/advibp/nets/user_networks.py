"""Networks of one's own, by the place they are made: ``path/to/file.py:function`` or ``package.module:function``.

This runs code. Only ever call it with what the user typed, never with a name read from a run's folder.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from advibp import user_code
from advibp.errors import UserError


def from_file(spec: str) -> nn.Module:
    """`path/to/file.py:function` or `package.module:function` -> what the function returns without arguments.

    A class that can be made without arguments will do for a function.
    """
    net = user_code.load(
        spec,
        lambda found: _made_by(found, spec),
        like=callable,
        kind="function",
        wanted="it must return an nn.Module",
    )
    if isinstance(net, type):
        raise UserError(f"{spec} returned the class {net.__name__}; return an instance of it: {net.__name__}().")
    if not isinstance(net, nn.Module):
        raise UserError(f"{spec} returned {type(net).__name__}, but an nn.Module was expected.")
    return net


def _made_by(found: Callable[..., Any], spec: str) -> Any:
    """What a function returns, which needs no arguments."""
    if isinstance(found, nn.Module):
        raise UserError(f"{spec} is a network already; name a function that makes and returns it.")
    try:
        parameters = inspect.signature(found).parameters.values()
    except (TypeError, ValueError):  # builtins may have no signature
        return found()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in variadic]
    if needed:
        raise UserError(
            f"{spec} needs arguments ({', '.join(needed)}), but it is called without any; give them defaults, or name "
            "another function."
        )
    return found()
