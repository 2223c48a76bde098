"""The checks, and the one way from arrays to Data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from advibp.data.sets import Data, Split
from advibp.errors import UserError

PARTS = ("x_train", "y_train", "x_test", "y_test")
MAX_CLASSES = 100_000

_SPLIT_SEED = 2021  # never the run's seed: all runs must share one validation set

Array = npt.NDArray[Any]


def from_tensors(
    x_train: Tensor | npt.ArrayLike,
    y_train: Tensor | npt.ArrayLike,
    x_test: Tensor | npt.ArrayLike,
    y_test: Tensor | npt.ArrayLike,
    *,
    name: str = "tensors",
    classes: int | None = None,
    validation: int = 1000,
    limit: int | None = None,
) -> Data:
    """Your own images (N, C, H, W) or (N, H, W), uint8 or floats in [0, 1], and labels (N,); they are copied.

    ``classes`` defaults to the largest label + 1.
    """
    given = dict(zip(PARTS, (x_train, y_train, x_test, y_test), strict=True))
    arrays = {part: as_array(part, values, name) for part, values in given.items()}
    return assemble(arrays, name, name, validation, limit, classes)


def as_array(part: str, values: Tensor | npt.ArrayLike, name: str) -> Array:
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            return (values.float() if values.is_floating_point() else values).numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{part} of {name} is no plain array ({error}); give a dense tensor or array.") from error


def assemble(
    arrays: Mapping[str, Array],
    name: str,
    origin: str,
    validation: int,
    limit: int | None,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Data:
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    check_images(x_train, "x_train", origin)
    check_images(x_test, "x_test", origin)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Images of {origin} differ in shape: {x_train.shape[1:]} to train, {x_test.shape[1:]} to test."
        )
    check_labels(y_train, len(x_train), "y_train", origin)
    check_labels(y_test, len(x_test), "y_test", origin)
    classes = count_classes(int(max(y_train.max(), y_test.max())) + 1, classes, origin)
    held, kept = hold_out(len(x_train), validation, limit, origin)
    return Data(
        name=name,
        train=split_of(x_train[kept], y_train[kept]),
        validation=split_of(x_train[held], y_train[held]),
        test=split_of(x_test, y_test),
        classes=classes,
        class_names=class_names,
    )


def hold_out(total: int, validation: int, limit: int | None, origin: str) -> tuple[Array, Array]:
    """Which of ``total`` training images are held out, and which are kept: for each ``total`` always the same."""
    if not is_int(validation) or not 0 <= validation < total:
        raise UserError(f"validation is {validation!r}; expected 0 to {total - 1}, as {origin} has {total} images.")
    if limit is not None and (not is_int(limit) or limit < 1):
        raise UserError(f"limit is {limit!r}; expected at least 1 training image, or none to keep all.")
    # RandomState's stream is frozen for all numpy versions to come; default_rng's is not.
    order = np.random.RandomState(_SPLIT_SEED).permutation(total)
    return order[:validation], order[validation:][:limit]


def check_images(x: Array, part: str, origin: str) -> None:
    where = f"{part} of {origin}"
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise UserError(f"{where} has shape {x.shape}; expected images as (N, H, W) or (N, C, H, W), none of them 0.")
    if x.dtype == np.uint8:
        return
    if x.dtype.kind != "f":
        raise UserError(f"{where} is of type {x.dtype}; expected uint8 from 0 to 255 or floats in [0, 1].")
    low, high = float(x.min()), float(x.max())  # NaN wins both
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"{where} holds NaN or infinite pixels; every pixel must lie in [0, 1].")
    if low < 0 or high > 1:
        raise UserError(f"{where} has pixels from {low:g} to {high:g}; scale them to [0, 1].")


def check_labels(y: Array, images: int, part: str, origin: str) -> None:
    where = f"{part} of {origin}"
    if y.ndim != 1:
        raise UserError(f"{where} has shape {y.shape}; expected one label per image, (N,).")
    if len(y) != images:
        raise UserError(f"{where} has {len(y)} labels for {images} images; expected one label per image.")
    if y.dtype.kind not in "iu":
        raise UserError(f"{where} is of type {y.dtype}; expected labels as integers.")
    if y.min() < 0 or y.max() >= MAX_CLASSES:
        raise UserError(f"{where} has labels from {y.min()} to {y.max()}; expected 0 to {MAX_CLASSES - 1}.")


def count_classes(found: int, stated: int | None, origin: str) -> int:
    if stated is not None and (not is_int(stated) or stated < found):
        raise UserError(f"classes is {stated!r}, but {origin} has labels up to {found - 1}; give at least {found}.")
    classes = found if stated is None else stated
    if classes < 2:
        raise UserError(f"{origin} has a single class; expected labels from 0 to 1 at least.")
    return classes


def split_of(x: Array, y: Array) -> Split:
    """Always fresh, contiguous memory: a Data never shares it with a file or with its caller."""
    if x.ndim == 3:
        x = x[:, None]
    scaled = np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x.astype(np.float32)
    return Split(torch.from_numpy(np.ascontiguousarray(scaled)), torch.from_numpy(y.astype(np.int64)))


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
