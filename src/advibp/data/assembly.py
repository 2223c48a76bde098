"""Construction of `Data` from arrays, and the checks of images and labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from advibp.data.sets import Data, Split
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords

PARTS = ("x_train", "y_train", "x_test", "y_test")
MAX_CLASSES = 100_000

_SPLIT_SEED = 2021  # independent of the seed of a run, so that all runs have the same validation set

Array = npt.NDArray[Any]


@known_keywords
def from_tensors(
    x_train: Tensor | npt.ArrayLike,
    y_train: Tensor | npt.ArrayLike,
    x_test: Tensor | npt.ArrayLike,
    y_test: Tensor | npt.ArrayLike,
    *,
    name: str = "tensors",
    classes: int | None = None,
    validation: int | str = "auto",
    limit: int | None = None,
) -> Data:
    """Create a data set from tensors or arrays in memory, which are copied.

    Args:
        x_train: Training images of shape (N, C, H, W) or (N, H, W), uint8 or floating point in [0, 1].
        y_train: Training labels of shape (N,), integers from 0.
        x_test: Test images, shaped as ``x_train``.
        y_test: Test labels, shaped as ``y_train``.
        name: Name of the data set.
        classes: Number of classes. Default: the largest label + 1.
        validation: Number of training images that become the validation set. They are the same in every call.
            "auto": 1000, or a tenth of fewer than 10,000 images.
        limit: Number of the remaining training images to keep. Default: all.

    Returns:
        The data set. Images are float32 in [0, 1] of shape (N, C, H, W), labels are int64 of shape (N,).

    Raises:
        UserError: If shapes, types, pixels or labels are invalid, or an option is out of range.

    Examples:
        >>> import torch
        >>> from advibp import data
        >>> x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
        >>> digits = data.from_tensors(x[:50], y[:50], x[50:], y[50:], validation=10)
        >>> digits.classes, len(digits.train), len(digits.validation), len(digits.test)
        (3, 40, 10, 10)
    """
    values = dict(zip(PARTS, (x_train, y_train, x_test, y_test), strict=True))
    arrays = {part: as_array(part, value, name) for part, value in values.items()}
    return assemble(arrays, name, name, validation, limit, classes)


def as_array(part: str, values: Tensor | npt.ArrayLike, name: str) -> Array:
    """Convert a tensor or a nested list to a numpy array; ``part`` and ``name`` are for the error message."""
    try:
        if isinstance(values, Tensor):
            values = values.detach().cpu()
            return (values.float() if values.is_floating_point() else values).numpy()
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:
        message = f"{part} of {name} cannot be converted to an array ({error}); give a dense tensor or array."
        raise UserError(message) from error


def assemble(
    arrays: Mapping[str, Array],
    name: str,
    origin: str,
    validation: int | str,
    limit: int | None,
    classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
) -> Data:
    """Check the four arrays and split off the validation set.

    Args:
        arrays: One array for each name in `PARTS`.
        name: Name of the data set.
        origin: Named in errors, for example a path.
        validation: Number of validation images, or "auto".
        limit: Number of the remaining training images to keep. Default: all.
        classes: Number of classes. Default: the largest label + 1.
        class_names: Names of the classes in the order of their labels.
    """
    x_train, y_train, x_test, y_test = (arrays[part] for part in PARTS)
    check_images(x_train, "x_train", origin)
    check_images(x_test, "x_test", origin)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Images of {origin} differ in shape: {x_train.shape[1:]} for training, {x_test.shape[1:]} for testing."
        )
    check_labels(y_train, len(x_train), "y_train", origin)
    check_labels(y_test, len(x_test), "y_test", origin)
    classes = count_classes(int(max(y_train.max(), y_test.max())) + 1, classes, origin)
    held_out, kept = hold_out(len(x_train), validation, limit, origin)
    return Data(
        name=name,
        train=split_of(x_train[kept], y_train[kept]),
        validation=split_of(x_train[held_out], y_train[held_out]),
        test=split_of(x_test, y_test),
        classes=classes,
        class_names=class_names,
    )


def validation_size(validation: int | str, total: int) -> int | str:
    """Return the number of validation images for "auto": 1000, or a tenth of fewer than 10,000. Others are returned.

    Args:
        validation: A number, or "auto".
        total: Number of images that are split into training and validation images.
    """
    return max(1, min(1000, total // 10)) if validation == "auto" else validation


def hold_out(total: int, validation: int | str, limit: int | None, origin: str) -> tuple[Array, Array]:
    """Return the indices of the validation and the training images. Their order depends only on ``total``."""
    validation = validation_size(validation, total)
    if isinstance(validation, str) or not is_int(validation) or not 0 <= validation < total:
        raise UserError(
            f"validation is {validation!r}; expected auto, or 0 to {total - 1} of the {total} images of {origin}."
        )
    if limit is not None and (not is_int(limit) or limit < 1):
        raise UserError(f"limit is {limit!r}; expected at least 1 training image, or None to keep all.")
    # The numbers of RandomState are the same in all versions of numpy; those of default_rng are not.
    order = np.random.RandomState(_SPLIT_SEED).permutation(total)
    return order[:validation], order[validation:][:limit]


def check_images(x: Array, part: str, origin: str) -> None:
    """Raise an error unless ``x`` has shape (N, H, W) or (N, C, H, W) and is uint8 or floating point in [0, 1]."""
    where = f"{part} of {origin}"
    if x.ndim not in (3, 4) or 0 in x.shape:
        raise UserError(f"{where} has shape {x.shape}; expected images as (N, H, W) or (N, C, H, W), with no size 0.")
    if x.dtype == np.uint8:
        return
    if x.dtype.kind != "f":
        raise UserError(f"{where} is of type {x.dtype}; expected uint8 from 0 to 255 or floats in [0, 1].")
    low, high = float(x.min()), float(x.max())  # NaN if any pixel is
    if not (np.isfinite(low) and np.isfinite(high)):
        raise UserError(f"{where} contains NaN or infinite pixels; every pixel must be in [0, 1].")
    if low < 0 or high > 1:
        raise UserError(f"{where} has pixels from {low:g} to {high:g}; scale them to [0, 1].")


def check_labels(y: Array, images: int, part: str, origin: str) -> None:
    """Raise an error unless ``y`` has one integer label per image."""
    where = f"{part} of {origin}"
    if y.ndim != 1:
        raise UserError(f"{where} has shape {y.shape}; expected one label per image, (N,).")
    if len(y) != images:
        raise UserError(f"{where} has {len(y)} labels for {images} images; expected one label per image.")
    if y.dtype.kind not in "iu":
        raise UserError(f"{where} is of type {y.dtype}; expected labels as integers.")
    if y.min() < 0 or y.max() >= MAX_CLASSES:
        raise UserError(f"{where} has labels from {y.min()} to {y.max()}; expected 0 to {MAX_CLASSES - 1}.")


def count_classes(minimum: int, classes: int | None, origin: str) -> int:
    """Return ``classes``, which must not be less than ``minimum`` (the largest label + 1), or else ``minimum``."""
    if classes is not None and (not is_int(classes) or classes < minimum):
        raise UserError(
            f"classes is {classes!r}, but {origin} has labels up to {minimum - 1}; give at least {minimum}."
        )
    classes = minimum if classes is None else classes
    if classes < 2:
        raise UserError(f"{origin} has a single class; give images of at least two classes.")
    return classes


def split_of(x: Array, y: Array) -> Split:
    """Convert images and labels to tensors in new, contiguous memory, which is not shared with the caller."""
    if x.ndim == 3:
        x = x[:, None]
    scaled = np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x.astype(np.float32)
    return Split(torch.from_numpy(np.ascontiguousarray(scaled)), torch.from_numpy(y.astype(np.int64)))


def is_int(value: object) -> bool:
    """Return True for integers, but not for booleans."""
    return isinstance(value, int) and not isinstance(value, bool)
