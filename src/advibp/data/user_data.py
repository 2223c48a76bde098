"""Conversion of the data that `train` and `certify` take: tensors, arrays, Datasets, DataLoaders, `Split` and `Data`.

`as_data` returns a data set to train on, `as_images` images with labels that are read in batches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from advibp.data.assembly import MAX_CLASSES, from_tensors
from advibp.data.lazy import Lazy
from advibp.data.loaders import Loader
from advibp.data.sets import Data, Split
from advibp.data.torch_datasets import from_datasets, from_loader, known_labels
from advibp.errors import UserError

_PAIR = "a pair (x, y) of images and labels, a Split, a Dataset or a DataLoader"
_DATA = (
    "a Data set, a pair (x, y) of images and labels, (x_train, y_train, x_test, y_test), a Dataset, a DataLoader, or a "
    "tuple (train, test) or (train, validation, test) of such sets"
)


@runtime_checkable
class Images(Protocol):
    """Inputs and labels that are read in batches: batch(rows) returns x (B, ...) and y (B,).

    The inputs are in [0, 1], unless there is an attribute `input_range`.
    """

    def __len__(self) -> int: ...
    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]: ...


def as_data(
    value: Any,
    *,
    validation: int | str = "auto",
    classes: int | Callable[[Tensor], int] | None = None,
    name: str = "data",
) -> Data:
    """Convert what `train` takes to a data set.

    Args:
        value: One of:

            - a `Data` set, which is returned unchanged;
            - (x_train, y_train, x_test, y_test), tensors or arrays;
            - one set of images with labels to train on: a pair (x, y), a `Split`, a Dataset or a DataLoader. The data
              set then has no test images;
            - (train, test) or (train, validation, test), where each is one set of images with labels.
        validation: Number of training images to hold out. "auto": one in ten, at most 1000. It is not used if the
            validation images are given. A DataLoader is split if it reads a map-style Dataset in order or shuffled.
        classes: Number of classes, or a function that returns it for one image (1, C, H, W). It is used if the labels
            can't be read without reading all images. Default: the largest label + 1.
        name: Name of the data set.

    Returns:
        The data set.

    Raises:
        UserError: If the value is none of these, or the images or labels are invalid.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from advibp.data import as_data
        >>> x, y = torch.rand(60, 1, 8, 8), torch.arange(60) % 3
        >>> data = as_data(TensorDataset(x, y))
        >>> len(data.train), len(data.validation), len(data.test)
        (54, 6, 0)
        >>> len(as_data((x, y, x, y), validation=10).test)
        60
    """
    if isinstance(value, Data):
        return value
    parts = list(value) if isinstance(value, tuple | list) and not _is_pair(value) else [value]
    if len(parts) == 4 and all(isinstance(part, Tensor | np.ndarray) for part in parts):
        number = classes if isinstance(classes, int) else None
        return from_tensors(*parts, name=name, classes=number, validation=validation)
    if not 1 <= len(parts) <= 3 or not all(_is_set(part) for part in parts):
        raise UserError(f"data is {_kind(value)}, but must be {_DATA}.")
    train: Any
    train, *others = (tuple(part) if isinstance(part, list) else part for part in parts)
    test = others[-1] if others else None
    if callable(classes):
        classes = classes(_first_image(train)) if known_labels(train) is None else None
    held_out = others[0] if len(others) == 2 else validation
    return from_datasets(train, test, validation=held_out, classes=classes, name=name)


def as_images(value: Any) -> Images:
    """Convert what `certify` takes to images with labels that are read in batches. Labels in memory become int64.

    Args:
        value: A pair (x, y) of tensors or arrays, a `Split`, a Dataset or a DataLoader; or a `Data` set or
            (x_train, y_train, x_test, y_test), of which the test images are used.

    Raises:
        UserError: If the value is none of these, or the images or labels are invalid.

    Examples:
        >>> import torch
        >>> from advibp.data import as_images
        >>> len(as_images((torch.rand(6, 1, 8, 8), torch.arange(6))))
        6
    """
    if isinstance(value, tuple | list):
        if not _is_pair(value[-2:]) or len(value) not in (2, 4):
            raise UserError(f"The images are {_kind(value)}, but must be {_PAIR}.")
        x, y = (part if isinstance(part, Tensor) else _tensor(part) for part in value[-2:])
        return _checked(x, y)
    if isinstance(value, Data):
        if len(value.test) == 0:
            raise UserError(f"The data set {value.name} has no test images; give images with labels.")
        value = value.test
    if isinstance(value, Split):
        return _checked(value.x, value.y, value)
    if isinstance(value, DataLoader):
        return from_loader(value)
    if isinstance(value, Dataset) and not isinstance(value, Lazy):
        return Lazy(value)
    if not isinstance(value, Images):
        raise UserError(f"The images are {_kind(value)}, but must be {_PAIR}.")
    return value


def _is_pair(value: Any) -> bool:
    """Return whether a value is a pair of tensors or arrays."""
    return (
        isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, Tensor | np.ndarray) for v in value)
    )


def _is_set(value: Any) -> bool:
    return _is_pair(value) or isinstance(value, Split | Dataset | DataLoader)


def _first_image(train: Any) -> Tensor:
    """Return one image (1, C, H, W) of a set whose labels are not known."""
    if isinstance(train, DataLoader):
        return Loader(train, MAX_CLASSES).read(1)[0]
    return Lazy(train).batch(torch.zeros(1, dtype=torch.int64))[0]


def _kind(value: Any) -> str:
    """Return the type of a value for a message: None, a Tensor, a tuple of 3 (Tensor, Tensor, Tensor)."""
    if not isinstance(value, tuple | list):
        return "None" if value is None else f"a {type(value).__name__}"
    kinds = ", ".join(type(part).__name__ for part in value[:3])
    return f"a {type(value).__name__} of {len(value)}" + (f" ({kinds})" if kinds else "")


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Convert an array to a tensor."""
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"An array is of type {array.dtype}; give floats for images, integers for labels.") from None


def _checked(x: Tensor, y: Tensor, like: Split | None = None) -> Split:
    """Check inputs and labels in memory. `like` has the range and the names of the features."""
    for name, part in (("images", x), ("labels", y)):
        if not isinstance(part, Tensor) or part.layout != torch.strided or part.is_meta:
            kind = f"{part.layout} on {part.device}" if isinstance(part, Tensor) else type(part).__name__
            raise UserError(f"The {name} are {kind}; give a dense tensor that holds numbers.")
    if not x.is_floating_point():
        raise UserError(f"The images are of type {x.dtype}; expected floats in [0, 1], such as x.float() / 255.")
    if x.dim() == 0 or len(x) == 0 or y.shape != x.shape[:1]:
        shapes = f"images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}"
        raise UserError(f"There are {shapes}; expected (N, ...) and (N,), one label per image and at least one image.")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise UserError(f"The labels are of type {y.dtype}; expected integers, the class of each image.")
    return replace(like or Split(x, y), x=x.detach(), y=y.long())
