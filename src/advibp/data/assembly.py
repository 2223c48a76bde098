"""Construction of `Data` from arrays, and the checks of inputs and labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from advibp.bounds import Perturbation
from advibp.bounds.box import Range, is_unit_range
from advibp.data.features import PIXELS
from advibp.data.features import input_range as parse_range
from advibp.data.sets import Data, Split
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords

PARTS = ("x_train", "y_train", "x_test", "y_test")
MAX_CLASSES = 100_000
#: Default number of validation images, if there are twice as many training images.
VALIDATION = 1000

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
    images: bool | None = None,
    input_range: Any = "auto",
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Data:
    """Create a data set from tensors or arrays in memory, which are copied.

    Args:
        x_train: Training inputs: images of shape (N, C, H, W) or (N, H, W), uint8 or floating point in [0, 1]; or the
            rows of a table, (N, F), numbers of any type and size.
        y_train: Training labels of shape (N,), integers from 0.
        x_test: Test inputs, shaped as ``x_train``.
        y_test: Test labels, shaped as ``y_train``.
        name: Name of the data set.
        classes: Number of classes. Default: the largest label + 1, or the number of ``class_names``.
        validation: Number of training inputs that become the validation set. They are the same in every call.
            "auto": 1000, or a tenth of fewer than 10,000 inputs.
        limit: Number of the remaining training inputs to keep. Default: all.
        images: Whether the inputs are images. False keeps inputs of any shape (N, ...) as they are, for example signals
            (N, C, L). Default: False for tables (N, F), True otherwise.
        input_range: Range of valid inputs: (lowest, highest), numbers or one number per feature; a mapping from names
            of features to such pairs; or None for no limit. Default: (0, 1) for images, otherwise None.
        feature_names: Names of the columns of a table. Default: x0, x1, ...
        class_names: Names of the classes in the order of their labels. Default: not known.

    Returns:
        The data set. Inputs are float32, images in [0, 1] of shape (N, C, H, W), and labels are int64 of shape (N,).

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
    return assemble(
        arrays,
        name,
        name,
        validation,
        limit,
        classes,
        None if class_names is None else tuple(map(str, class_names)),
        images=images,
        input_range=input_range,
        feature_names=feature_names,
    )


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
    *,
    images: bool | None = None,
    input_range: Any = "auto",
    feature_names: Sequence[str] | None = None,
) -> Data:
    """Check the four arrays and split off the validation set.

    Args:
        arrays: One array for each name in `PARTS`. Without those of the test set, it is empty.
        name: Name of the data set.
        origin: Named in errors, for example a path.
        validation: Number of validation images, or "auto".
        limit: Number of the remaining training images to keep. Default: all.
        classes: Number of classes. Default: the largest label + 1, or the number of ``class_names``.
        class_names: Names of the classes in the order of their labels.

    The other arguments are those of `from_tensors`.
    """
    x_train, y_train = arrays["x_train"], arrays["y_train"]
    x_test, y_test = arrays.get("x_test", x_train[:0]), arrays.get("y_test", y_train[:0])
    are_images = x_train.ndim != 2 if images is None else images
    check = check_images if are_images else check_features
    check(x_train, "x_train", origin)
    if "x_test" in arrays:
        check(x_test, "x_test", origin)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"Images of {origin} differ in shape: {x_train.shape[1:]} for training, {x_test.shape[1:]} for testing."
        )
    check_labels(y_train, len(x_train), "y_train", origin)
    if "y_test" in arrays:
        check_labels(y_test, len(x_test), "y_test", origin)
    if classes is None and class_names:
        classes = len(class_names)
    classes = count_classes(int(max(y_train.max(), y_test.max(initial=0))) + 1, classes, origin)
    if class_names is not None and len(class_names) != classes:
        raise UserError(
            f"There are {len(class_names)} class names for the {classes} classes of {origin}; give {classes}."
        )
    names = None if are_images else _feature_names(feature_names, x_train.shape[1:], origin)
    within = range_of_inputs(input_range, are_images, names, x_train.shape[1:])
    held_out, kept = hold_out(len(x_train), validation, limit, origin)

    def split(x: Array, y: Array, part: str) -> Split:
        made = replace(split_of(x, y, are_images), input_range=within, feature_names=names)
        check_range(made, f"{part} of {origin}")
        return made

    return Data(
        name=name,
        train=split(x_train[kept], y_train[kept], "x_train"),
        validation=split(x_train[held_out], y_train[held_out], "x_train"),
        test=split(x_test, y_test, "x_test"),
        classes=classes,
        class_names=class_names,
    )


def range_of_inputs(value: Any, are_images: bool, names: Sequence[str] | None, shape: Sequence[int]) -> Range:
    """Return the range of valid inputs; "auto" stands for [0, 1] for images, and for no limit otherwise."""
    if isinstance(value, str) and value == "auto":
        return PIXELS if are_images else None
    within = parse_range(value, names)
    if are_images and not is_unit_range(within):
        raise UserError("Images are in [0, 1]; leave input_range out, or give images=False to keep the values.")
    Perturbation(*(within or (None, None))).check_shape(shape)
    return within


def check_range(split: Split, where: str) -> None:
    """Raise an error unless all inputs are in their range."""
    if split.input_range is None or is_unit_range(split.input_range):  # pixels are checked before they are converted
        return
    low, high = split.input_range
    outside = ~((split.x >= low) & (split.x <= high))
    if bool(outside.any()):
        row, *at = outside.nonzero()[0].tolist()
        name = split.feature_names[at[0]] if split.feature_names and len(at) == 1 else f"element {tuple(at)}"
        value = float(split.x[row][tuple(at)])
        raise UserError(f"{where} has {value:g} in {name} of row {row}, outside of input_range; correct one of them.")


def _feature_names(names: Sequence[str] | None, shape: Sequence[int], origin: str) -> tuple[str, ...] | None:
    if len(shape) != 1:
        if names is not None:
            raise UserError(f"feature_names are for tables (N, F), and {origin} has inputs of shape {tuple(shape)}.")
        return None
    if names is None:
        return tuple(f"x{k}" for k in range(shape[0]))
    if len(names) != shape[0] or len({*map(str, names)}) != len(names):
        raise UserError(f"There are {len({*map(str, names)})} feature names for the {shape[0]} features of {origin}.")
    return tuple(map(str, names))


def check_features(x: Array, part: str, origin: str) -> None:
    """Raise an error unless ``x`` has shape (N, ...) and finite numbers that float32 can represent."""
    where = f"{part} of {origin}"
    if x.ndim < 2 or 0 in x.shape:
        raise UserError(f"{where} has shape {x.shape}; expected inputs as (N, F) or (N, ...), with no size 0.")
    if x.dtype.kind not in "fiub":
        raise UserError(f"{where} is of type {x.dtype}; expected numbers.")
    if not np.isfinite(x.astype(np.float32)).all():
        raise UserError(f"{where} contains NaN, infinite or very large values; every value must be a finite float32.")


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


def split_of(x: Array, y: Array, images: bool = True) -> Split:
    """Convert inputs and labels to tensors in new, contiguous memory, which is not shared with the caller."""
    if not images:
        values = torch.from_numpy(np.ascontiguousarray(x.astype(np.float32)))
        return Split(values, torch.from_numpy(y.astype(np.int64)), input_range=None)
    if x.ndim == 3:
        x = x[:, None]
    scaled = np.divide(x, np.float32(255), dtype=np.float32) if x.dtype == np.uint8 else x.astype(np.float32)
    return Split(torch.from_numpy(np.ascontiguousarray(scaled)), torch.from_numpy(y.astype(np.int64)))


def is_int(value: object) -> bool:
    """Return True for integers, but not for booleans."""
    return isinstance(value, int) and not isinstance(value, bool)
