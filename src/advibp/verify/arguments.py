"""Converts the images, labels and radii that `certify` takes into one form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from advibp.data import Data, Lazy, Split
from advibp.data.torch_datasets import from_loader
from advibp.errors import UserError
from advibp.verify.argument_checks import check_eps, named, shortened

USAGE = "certify(net, images, eps) or certify(net, x, y, eps)"

_PAIR = "a pair (x, y) of images and labels, a Split, a Dataset or a DataLoader"


@runtime_checkable
class Images(Protocol):
    """Images and labels that are read in batches: batch(rows) returns x (B, C, H, W) in [0, 1] and y (B,)."""

    def __len__(self) -> int: ...
    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]: ...


def parse_images_and_radii(images: Any, y: Any, eps: Any) -> tuple[Images, list[float]]:
    """Read the arguments of certify(net, images, eps) or certify(net, x, y, eps).

    If `images` is neither a tensor nor an array, it includes the labels, and a third positional argument is eps.
    """
    if images is None:
        raise UserError(f"There are no images; call {USAGE}.")
    if isinstance(images, Tensor | np.ndarray):
        if not isinstance(y, Tensor | np.ndarray) or y.ndim == 0:
            raise UserError(
                "These are images without labels; call certify(net, x, y, eps) or certify(net, data.test, eps)."
            )
        images = (images, y)
    elif y is not None and eps is not None:
        raise UserError(f"There are too many arguments; call {USAGE}, and give the rest by name, such as by=['ibp'].")
    elif eps is None:
        eps = y
    if eps is None:
        raise UserError(f"eps is missing; call {USAGE}, and give the rest by name, such as by=['ibp'].")
    return parse_images(images), parse_radii(eps)


def parse_radii(eps: Any) -> list[float]:
    """Convert one radius or several to a list without duplicates."""
    several = isinstance(eps, Iterable) and not isinstance(eps, str | bytes | Mapping)
    if isinstance(eps, Tensor | np.ndarray):
        several = eps.ndim > 0
    radii = list(dict.fromkeys(check_eps(e) for e in (eps if several else [eps])))
    if not radii:
        raise UserError(f"eps is {shortened(eps)}, which holds no radius; give at least one, such as 0.3 or 8/255.")
    return radii


def parse_images(images: Any) -> Images:
    """Convert images with labels to a form that is read in batches. Labels in memory become int64."""
    if isinstance(images, tuple | list):
        if len(images) != 2 or not all(isinstance(part, Tensor | np.ndarray) for part in images):
            kinds = ", ".join(type(part).__name__ for part in images[:3])
            description = f"{named(images)} of {len(images)}" + (f" ({kinds})" if kinds else "")
            raise UserError(f"The images are {description}, but must be {_PAIR}.")
        x, y = (part if isinstance(part, Tensor) else _tensor(part) for part in images)
        return _split(x, y)
    if isinstance(images, Data):
        raise UserError("The images are a whole Data set; give one part of it, such as data.test.")
    if isinstance(images, Split):
        return _split(images.x, images.y)
    if isinstance(images, DataLoader):
        return from_loader(images)
    if isinstance(images, Lazy):
        return images
    if isinstance(images, Dataset):
        return Lazy(images)
    if not isinstance(images, Images):
        raise UserError(f"The images are {named(images)}, but must be {_PAIR}.")
    return images


def _tensor(array: np.ndarray[Any, Any]) -> Tensor:
    """Convert an array to a tensor."""
    try:
        return torch.as_tensor(array)
    except (TypeError, ValueError, RuntimeError):
        raise UserError(f"An array is of type {array.dtype}; give floats for images, integers for labels.") from None


def _split(x: Tensor, y: Tensor) -> Split:
    """Check images and labels in memory."""
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
    return Split(x.detach(), y.long())
