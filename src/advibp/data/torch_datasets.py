"""From torch's Datasets and DataLoaders to Data."""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from advibp.data import file_limits
from advibp.data.assembly import (
    MAX_CLASSES,
    as_array,
    check_images,
    check_labels,
    count_classes,
    hold_out,
    is_int,
    split_of,
)
from advibp.data.lazy import Lazy
from advibp.data.loaders import Loader
from advibp.data.sets import Data, Split
from advibp.errors import UserError

READ_AT_MOST = 10_000  # images of a validation set, which is kept in memory

Images: TypeAlias = "Dataset[Any] | DataLoader[Any] | Split | tuple[Any, Any]"


def from_datasets(
    train: Dataset[Any] | DataLoader[Any] | Split,
    test: Images,
    *,
    validation: int | Images,
    classes: int | None = None,
    name: str = "dataset",
    workers: int = 0,
) -> Data:
    """Your own torch data, which need not fit into memory.

    ``train`` is a map-style Dataset, read by ``workers`` processes, or a DataLoader with its own order and
    augmentation, or images in memory. ``validation`` is how many training images to hold out (always the same ones;
    not from a DataLoader), or images of their own, of which the first 10,000 are read into memory. ``test`` stays a
    Dataset if it is one, or a DataLoader that only walks through one; the first 10,000 images of any other DataLoader
    are read. ``classes`` can be left out where the labels are at hand: in tensors, or as the dataset's ``targets``.
    """
    classes = _classes(classes, [s for s in (train, test, validation) if not isinstance(s, int)], name)
    images = _training_images(train, classes, name, workers)
    if isinstance(validation, int):
        images, held = _hold_out(images, validation, name)
    else:
        held = _in_memory(validation, "validation", classes, name)
    data = Data(
        name=name, train=images, validation=held, test=_test_images(test, classes, name, workers), classes=classes
    )
    for part, found in (("validation", data.validation.shape), ("test", data.test.shape)):
        if found != data.input_shape:
            raise UserError(f"Images of {name} differ in shape: {data.input_shape} to train, {found} in {part}.")
    return data


def _training_images(train: Any, classes: int, name: str, workers: int) -> Split | Lazy | Loader:
    if isinstance(train, DataLoader):
        return Loader(train, classes)
    if isinstance(train, Split | tuple):
        return _tensors(train, "train", name)
    return Lazy(train, workers=workers, classes=classes)


def _test_images(test: Images, classes: int, name: str, workers: int) -> Split | Lazy:
    if isinstance(test, DataLoader) and _only_walks(test):
        return Lazy(test.dataset, workers=test.num_workers, classes=classes)
    if isinstance(test, DataLoader | Split | tuple):
        return _in_memory(test, "test", classes, name)
    return Lazy(test, workers=workers, classes=classes)


def from_loader(loader: DataLoader[Any]) -> Split | Lazy:
    """The images of a DataLoader, in its order: read when needed if it only walks through its dataset, else at once.

    In a loader that shuffles or augments, the order and the images are those of one epoch, always the same one.
    """
    if isinstance(loader, DataLoader) and _only_walks(loader) and not isinstance(loader.dataset, IterableDataset):
        return Lazy(loader.dataset, workers=loader.num_workers)
    images = Loader(loader, MAX_CLASSES)
    file_limits.check(len(images) * images.batch_size * torch.Size(images.shape).numel(), "The DataLoader")
    return Split(*images.read(sys.maxsize))


def _only_walks(loader: DataLoader[Any]) -> bool:
    """Whether the loader gives the items of its dataset, all of them in order and as they are."""
    plain = isinstance(loader.sampler, SequentialSampler) and not loader.drop_last
    return plain and loader.collate_fn is default_collate


def _in_memory(source: Images, part: str, classes: int, name: str) -> Split:
    if isinstance(source, Split | tuple):
        return _tensors(source, part, name)
    images = Loader(source, classes) if isinstance(source, DataLoader) else Lazy(source, classes=classes)
    file_limits.check(READ_AT_MOST * torch.Size(images.shape).numel(), f"The {part} set of {name}")
    if isinstance(images, Loader):
        return Split(*images.read(READ_AT_MOST))
    return Split(*images.batch(torch.arange(min(READ_AT_MOST, len(images)))))


def _tensors(source: Split | tuple[Any, Any], part: str, name: str) -> Split:
    if isinstance(source, Split):
        return source
    if len(source) != 2:
        raise UserError(f"The {part} set of {name} is a tuple of {len(source)}; expected a pair (images, labels).")
    x, y = (as_array(f"{letter}_{part}", values, name) for letter, values in zip("xy", source, strict=True))
    check_images(x, f"x_{part}", name)
    check_labels(y, len(x), f"y_{part}", name)
    return split_of(x, y)


def _hold_out(images: Split | Lazy | Loader, validation: int, name: str) -> tuple[Split | Lazy, Split]:
    if isinstance(images, Loader):
        raise UserError(
            f"validation is {validation}, but nothing can be held out of a DataLoader; give a Dataset, a DataLoader or "
            "a pair of tensors as validation."
        )
    held, kept = (torch.from_numpy(rows) for rows in hold_out(len(images), validation, None, name))
    return images.select(kept), Split(*images.batch(held))


def _classes(stated: int | None, sources: list[Any], name: str) -> int:
    labels = [y for source in sources if (y := _labels(source)) is not None]
    found = max((int(y.max()) + 1 for y in labels if y.numel()), default=0)
    if _labels(sources[0]) is None and stated is None:
        raise UserError(f"How many classes {name} has cannot be told without reading it all; give classes=.")
    if stated is not None and not is_int(stated):
        raise UserError(f"classes is {stated!r}; expected an integer from 2.")
    return count_classes(max(found, 1), stated, name)


def _labels(source: Any) -> Tensor | None:
    """All labels, where they can be had without reading the images."""
    if isinstance(source, Split):
        return source.y
    if isinstance(source, DataLoader):
        return _labels(source.dataset)
    if isinstance(source, Subset):
        whole = _labels(source.dataset)
        return None if whole is None else whole[list(source.indices)]
    targets = source.tensors[-1] if isinstance(source, TensorDataset) else getattr(source, "targets", None)
    if isinstance(source, tuple) and len(source) == 2:
        targets = source[1]
    try:
        found = torch.as_tensor(targets) if targets is not None else None
    except (TypeError, ValueError, RuntimeError):
        return None
    plain = found is not None and found.dim() == 1 and not found.is_floating_point()
    return found if plain else None
