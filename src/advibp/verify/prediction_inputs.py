"""Check what a predictor is given: names, a shape, arrays, and the mode of the device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from advibp.errors import UserError
from advibp.verify.argument_checks import check_whole, shortened


def list_names(name: str, values: Any) -> list[str] | None:
    """Return names as texts; None stays None."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise UserError(f"{name} is {shortened(values)}, but must be a list of names.")
    return [str(each) for each in values]


def image_shape(values: Any) -> tuple[int, ...] | None:
    """Return the shape of an input; None stays None."""
    if values is None:
        return None
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise UserError(f"input_shape is {shortened(values)}, but must be the shape of one input, such as (1, 28, 28).")
    return tuple(check_whole("A number in input_shape", each, 1) for each in values)


def plain_array(x: Any) -> Any:
    """Return an array that torch can read: without missing values, in the machine's byte order, not reversed."""
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        raise UserError("The images are an array with masked values; fill them in, or leave these images out.")
    if isinstance(x, np.ndarray) and (any(step < 0 for step in x.strides) or not x.dtype.isnative):
        return x.astype(x.dtype.newbyteorder("="), order="C")
    if isinstance(x, np.ndarray) and not x.flags.writeable:  # torch warns about these
        return x.copy()
    return x


def check_autocast(like: Tensor) -> None:
    """Refuse autocast on the device of a tensor, because it changes the arithmetic of the network."""
    if torch.is_autocast_enabled(like.device.type):
        raise UserError(f"autocast is on for {like.device.type}; predict outside of torch.autocast.")
