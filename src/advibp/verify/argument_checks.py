"""Checks of arguments that several public functions take. A mistake raises a UserError of one sentence."""

from __future__ import annotations

import math
import operator
import os
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from advibp.errors import UserError
from advibp.parsers import number


def check_net(net: Any, other: Any, usage: str) -> nn.Module:
    """Check that the network is a module with weights.

    Args:
        net: The argument for the network.
        other: The next argument. If it is a network, the two were swapped.
        usage: How to call the function, for the message.
    """
    if not isinstance(net, nn.Module):
        if isinstance(other, nn.Module):
            raise UserError(f"The network comes first, and the images after it: call {usage}.")
        kind = f"the class {net.__name__}, not an instance of it" if isinstance(net, type) else named(net)
        raise UserError(f"The network is {kind}, but must be an nn.Module: call {usage}.")
    tensors = [*net.parameters(), *net.buffers()]
    if any(is_lazy(tensor) for tensor in tensors):
        raise UserError("The network has lazy layers without weights; call it on one batch of images first.")
    if any(tensor.is_meta for tensor in tensors):
        raise UserError("The network is on the meta device, where it has no weights; load them onto a real device.")
    return net


def check_eps(eps: Any, largest: float = 1.0) -> float:
    """Convert a radius: a number in (0, largest], a tensor of one number, or a text such as 8/255."""
    value = eps
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_meta and value.dtype != torch.bool:
        value = value.item()
    try:
        if isinstance(value, str):
            return float(number(0, largest, above=True)(value))
        if is_finite(value) and 0 < value <= largest:
            return float(value)
    except ValueError:
        pass
    shown = value if _is_number(value) else shortened(eps)
    if largest < math.inf:
        raise UserError(f"eps is {shown}, but must be a number in (0, 1], a pixel difference such as 0.3 or 8/255.")
    raise UserError(f"eps is {shown}, but must be a number above 0, in the units of the features.")


def check_whole(name: str, value: Any, least: int | None = None) -> int:
    """Convert a whole number of Python, NumPy or torch, at least `least`. A bool is refused."""
    try:
        whole = None if _is_bool(value) else operator.index(value)
    except TypeError:
        whole = None
    if whole is None or (least is not None and whole < least):
        bound = "" if least is None else f" of at least {least}"
        raise UserError(f"{name} is {shortened(value)}, but must be a whole number{bound}.")
    return whole


def check_seconds(name: str, value: Any, what: str) -> float:
    """Convert a number of seconds above 0, which may be infinite. `what` describes it in the message."""
    if not _is_number(value) or not value > 0:
        raise UserError(f"{name} is {shortened(value)}, but must be {what}: a number above 0.")
    return float(value)


def check_folder(name: str, value: Any) -> Path | None:
    """Convert the path of a folder, which need not exist. None stays None."""
    if value is None:
        return None
    path = check_path(name, value)
    for part in (path, *path.parents):
        if part.exists() and not part.is_dir():
            raise UserError(f"{name} is {path}, but {part} is a file; give the path of a folder.")
    return path


def check_path(name: str, value: Any) -> Path:
    """Convert a path."""
    if not isinstance(value, str | os.PathLike) or "\0" in os.fsdecode(value):
        raise UserError(f"{name} is {shortened(value)}, but must be a path.")
    return Path(value)


def make_folder(path: Path) -> None:
    """Create a folder and its parents."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{path} can't be created ({error.strerror}); choose another folder.") from None


def check_callable(name: str, value: Any, usage: str) -> None:
    """Raise a UserError unless the value is a function or None."""
    if value is not None and not callable(value):
        raise UserError(f"{name} is {shortened(value)}, but must be a function, called as {usage}, or None.")


def named(value: Any) -> str:
    """The type of a value for a message: a list, None, a Tensor."""
    return "None" if value is None else f"a {type(value).__name__}"


def shortened(value: Any) -> str:
    """The repr of a value in one line of at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def is_finite(value: Any) -> bool:
    """Whether a value is a finite number."""
    return _is_number(value) and math.isfinite(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not _is_bool(value)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or getattr(value, "dtype", None) in (torch.bool, bool)
