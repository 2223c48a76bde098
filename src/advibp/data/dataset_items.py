"""Checks of the items of a user's Dataset and of the batches of a user's DataLoader."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from advibp.bounds.box import Range, is_unit_range
from advibp.data.assembly import MAX_CLASSES
from advibp.data.features import PIXELS
from advibp.errors import UserError

Shape = tuple[int, ...]
Name = Callable[[int], str]  # names the k-th image of a batch in an error

_NORMALIZE = "let the network subtract its mean and divide by its std (nets.build(..., mean=..., std=...))"


def image(value: Any, where: str) -> Tensor:
    """Convert a tensor, array or PIL image to float32 (C, H, W). uint8 is divided by 255; the range is not checked.

    A tensor or array of one dimension is the row of a table, (F,), and keeps its values.
    """
    x = _tensor(value, where)
    if x.dim() == 1 and x.numel():
        return features(x, where)
    if x.dim() == 2:
        x = x[None]
    if x.dim() != 3 or 0 in x.shape:
        raise UserError(f"{where} has an image of shape {tuple(x.shape)}; expected (C, H, W), (H, W) or (F,).")
    if isinstance(value, np.ndarray) and x.shape[0] not in (1, 3, 4) and x.shape[2] in (1, 3, 4):
        raise UserError(f"{where} has an image of shape {tuple(x.shape)}, channels last; expected (C, H, W).")
    return scaled(x, where)


def features(x: Tensor, where: str) -> Tensor:
    """Convert the rows of a table to float32."""
    if x.is_complex() or x.dtype == torch.bool:
        raise UserError(f"{where} has values of type {x.dtype}; expected numbers.")
    return x.detach().float()


def scaled(x: Tensor, where: str) -> Tensor:
    """Convert pixels to float32; uint8 is divided by 255."""
    if x.dtype == torch.uint8:
        return x.float() / 255
    if not x.is_floating_point():
        raise UserError(f"{where} has pixels of type {x.dtype}; expected uint8 from 0 to 255 or floats in [0, 1].")
    return x.detach().float()


def _tensor(value: Any, where: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Image.Image):
        if value.mode[0] in "IF":
            raise UserError(f"{where} has more than 8 bits a pixel; convert it to 8 bits first.")
        grayscale = value.mode in ("1", "L", "LA")
        pixels = np.array(value.convert("L" if grayscale else "RGB"))
        return torch.from_numpy(pixels if grayscale else pixels.transpose(2, 0, 1))
    if isinstance(value, np.ndarray):
        try:
            return torch.tensor(value)
        except (TypeError, ValueError) as error:
            raise UserError(f"{where} has an image of type {value.dtype}; expected uint8 or floats.") from error
    raise UserError(f"{where} has a {type(value).__name__} as image; expected a tensor, an array or a PIL image.")


def label(value: Any, where: str) -> int:
    """Convert an integer, or a tensor or array with one integer, to a label."""
    if isinstance(value, Tensor | np.ndarray | np.generic) and value.ndim == 0:
        value = value.item()
    if not isinstance(value, int) or isinstance(value, bool):
        shown = f"a {type(value).__name__}" if not isinstance(value, float) else repr(value)
        raise UserError(f"{where} has {shown} as label; expected an integer from 0.")
    if not 0 <= value < MAX_CLASSES:
        raise UserError(f"{where} has the label {value}; expected 0 to {MAX_CLASSES - 1}.")
    return value


def pair(value: Any, where: str) -> tuple[Any, Any]:
    """Return the image and the label of an item, or the images and labels of a batch."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise UserError(f"{where} is a {type(value).__name__}; expected a pair (image, label).")
    return value[0], value[1]


def check_shape(x: Tensor, shape: Shape, where: str) -> None:
    """Raise an error unless an image has this shape."""
    if tuple(x.shape) != shape:
        raise UserError(
            f"{where} has an image of shape {tuple(x.shape)}, but the first image has {shape}; all must be equal."
        )


def check_batch(
    x: Tensor, y: Tensor, shape: Shape | None, classes: int | None, name: Name, within: Range | str = "auto"
) -> None:
    """Check a batch.

    Args:
        x: Inputs of shape (B, ...), in their range.
        y: Labels of shape (B,). They must be less than ``classes``.
        shape: Expected (C, H, W). If None, it is not checked.
        classes: Number of classes. Default: `MAX_CLASSES`.
        name: Names an image in an error.
        within: Range of valid inputs; "auto": [0, 1] for images, no limit for tables.
    """
    if shape is not None:
        check_shape(x[0], shape, name(0))
    if isinstance(within, str):
        within = PIXELS if x.dim() > 2 else None
    low, high = within or (-torch.inf, torch.inf)
    valid = ((x >= low) & (x <= high) & x.isfinite()).flatten(1).all(dim=1)  # NaN compares false
    if not valid.all():
        k = int(valid.int().argmin())
        if not is_unit_range(within):
            raise UserError(f"{name(k)} has NaN, infinite values or values outside of input_range; correct them.")
        if not x[k].isfinite().all():
            raise UserError(f"{name(k)} contains NaN or infinite pixels; every pixel must be in [0, 1].")
        lowest, highest = float(x[k].min()), float(x[k].max())
        raise UserError(f"{name(k)} has pixels from {lowest:g} to {highest:g}; scale them to [0, 1], and {_NORMALIZE}.")
    in_range = (y >= 0) & (y < (classes or MAX_CLASSES))
    if not in_range.all():
        k = int(in_range.int().argmin())
        raise UserError(f"{name(k)} has the label {int(y[k])}; expected 0 to {(classes or MAX_CLASSES) - 1}.")


def quote(error: BaseException) -> str:
    """Return an exception as one line. Errors of worker processes contain a traceback, whose last line is used."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and "Traceback" in str(error):
        return lines[-1]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
