"""Construction of `Data` from torch's Datasets and DataLoaders."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    default_collate,
)

from advibp.data import file_limits
from advibp.data.assembly import (
    MAX_CLASSES,
    as_array,
    check_features,
    check_images,
    check_labels,
    count_classes,
    hold_out,
    is_int,
    range_of_inputs,
    split_of,
)
from advibp.data.lazy import Lazy
from advibp.data.loaders import Loader
from advibp.data.sets import Data, Split
from advibp.errors import UserError
from advibp.execution.keywords import known_keywords

MAX_IN_MEMORY = 10_000  # images of a validation set, which is kept in memory

Images: TypeAlias = "Dataset[Any] | DataLoader[Any] | Split | tuple[Any, Any]"


@known_keywords
def from_datasets(
    train: Dataset[Any] | DataLoader[Any] | Split,
    test: Images | None,
    *,
    validation: int | str | Images = "auto",
    classes: int | None = None,
    name: str = "dataset",
    workers: int = 0,
    input_range: Any = "auto",
    feature_names: Sequence[str] | None = None,
    class_names: Sequence[str] | None = None,
) -> Data:
    """Create a data set from torch's Datasets and DataLoaders, whose images need not fit into memory.

    Images are tensors or arrays of shape (C, H, W) or (H, W), uint8 or floating point in [0, 1], or PIL images. Labels
    are integers from 0. The rows of a table are tensors or arrays of shape (F,).

    Args:
        train: A map-style Dataset, a DataLoader, which keeps its order and augmentation, or images in memory.
        test: A Dataset, a DataLoader, a `Split` or a pair (images, labels). Of a DataLoader that shuffles, drops
            images or has its own ``collate_fn``, the first 10,000 images are read into memory. None: there are no test
            images.
        validation: Number of training images that become the validation set, the same ones in every call; "auto":
            1000, or a tenth of fewer than 10,000 images; or a Dataset, a DataLoader, a `Split` or a pair (images,
            labels), of which the first 10,000 images are read into memory. A DataLoader can be split by a number if it
            reads a map-style Dataset in order or shuffled.
        classes: Number of classes. Default: the largest label + 1, if the labels are tensors or the attribute
            ``targets`` of the dataset; otherwise it is required.
        name: Name of the data set.
        workers: Number of processes that read a Dataset. Default: 0, i.e. it is read in this process.
        input_range: Range of valid inputs of a table, as in `from_tensors`. Default: no limit; (0, 1) for images.
        feature_names: Names of the columns of a table. Default: not known.
        class_names: Names of the classes in the order of their labels. Default: not known.

    Returns:
        The data set.

    Raises:
        UserError: If a source is empty or cannot be read, if shapes differ, or if ``classes`` is missing or too small.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from advibp import data
        >>> train = TensorDataset(torch.rand(50, 1, 8, 8), torch.arange(50) % 3)
        >>> test = TensorDataset(torch.rand(10, 1, 8, 8), torch.arange(10) % 3)
        >>> digits = data.from_datasets(train, test, validation=5)
        >>> digits.classes, len(digits.train), len(digits.validation), len(digits.test)
        (3, 45, 5, 10)
    """
    sources = [s for s in (train, test, validation) if s is not None and not isinstance(s, int | str)]
    classes = _classes(classes, sources, name)
    images = _training_images(train, classes, name, workers)
    if isinstance(validation, int | str):
        images, held_out = _hold_out(images, validation, name)
    else:
        held_out = _in_memory(validation, "validation", classes, name)
    tested = _test_images(test, classes, name, workers) if test is not None else held_out.take(0)
    names = None if class_names is None else tuple(map(str, class_names))
    data = Data(name=name, train=images, validation=held_out, test=tested, classes=classes, class_names=names)
    for part, shape in (("validation", data.validation.shape), ("test", data.test.shape)):
        if shape != data.input_shape:
            raise UserError(f"Images of {name} differ in shape: {data.input_shape} in train, {shape} in {part}.")
    return (
        data if isinstance(input_range, str) and feature_names is None else _described(data, input_range, feature_names)
    )


def _described(data: Data, input_range: Any, feature_names: Sequence[str] | None) -> Data:
    """Add a range of valid inputs and the names of features."""
    names = data.feature_names if feature_names is None else tuple(map(str, feature_names))
    within = range_of_inputs(input_range, len(data.input_shape) == 3, names, data.input_shape)

    def part(images: Any) -> Any:
        key = "input_range" if isinstance(images, Split) else "within"
        return replace(images, feature_names=names, **{key: within})

    return replace(data, train=part(data.train), validation=part(data.validation), test=part(data.test))


def _training_images(train: Any, classes: int, name: str, workers: int) -> Split | Lazy | Loader:
    if isinstance(train, DataLoader):
        return Loader(train, classes)
    if isinstance(train, Split | tuple):
        return _tensors(train, "train", name)
    return Lazy(train, workers=workers, classes=classes)


def _test_images(test: Images, classes: int, name: str, workers: int) -> Split | Lazy:
    if isinstance(test, DataLoader) and _is_sequential(test):
        return Lazy(test.dataset, workers=test.num_workers, classes=classes)
    if isinstance(test, DataLoader | Split | tuple):
        return _in_memory(test, "test", classes, name)
    return Lazy(test, workers=workers, classes=classes)


def from_loader(loader: DataLoader[Any]) -> Split | Lazy:
    """Return the images of a DataLoader in its order.

    If the loader returns the items of its dataset in order, they are read when they are needed. Otherwise the epoch
    with seed 0 is read into memory.
    """
    if isinstance(loader, DataLoader) and _is_sequential(loader) and not isinstance(loader.dataset, IterableDataset):
        return Lazy(loader.dataset, workers=loader.num_workers)
    images = Loader(loader, MAX_CLASSES)
    file_limits.check(len(images) * images.batch_size * torch.Size(images.shape).numel(), "The DataLoader")
    return _read(images, sys.maxsize)


def _is_sequential(loader: DataLoader[Any]) -> bool:
    """Return True if the loader returns all items of its dataset, in order and unchanged."""
    complete = isinstance(loader.sampler, SequentialSampler) and not loader.drop_last
    return complete and loader.collate_fn is default_collate


def _in_memory(source: Images, part: str, classes: int, name: str) -> Split:
    if isinstance(source, Split | tuple):
        return _tensors(source, part, name)
    images = Loader(source, classes) if isinstance(source, DataLoader) else Lazy(source, classes=classes)
    file_limits.check(MAX_IN_MEMORY * torch.Size(images.shape).numel(), f"The {part} set of {name}")
    if isinstance(images, Loader):
        return _read(images, MAX_IN_MEMORY)
    x, y = images.batch(torch.arange(min(MAX_IN_MEMORY, len(images))))
    return Split(x, y, input_range=images.input_range)


def _read(images: Loader, limit: int) -> Split:
    x, y = images.read(limit)
    return Split(x, y, input_range=images.input_range)


def _tensors(source: Split | tuple[Any, Any], part: str, name: str) -> Split:
    if isinstance(source, Split):
        return source
    if len(source) != 2:
        raise UserError(f"The {part} set of {name} has {len(source)} elements; expected a pair (images, labels).")
    x, y = (as_array(f"{letter}_{part}", values, name) for letter, values in zip("xy", source, strict=True))
    are_images = x.ndim != 2
    (check_images if are_images else check_features)(x, f"x_{part}", name)
    check_labels(y, len(x), f"y_{part}", name)
    return split_of(x, y, are_images)


def _hold_out(images: Split | Lazy | Loader, validation: int | str, name: str) -> tuple[Split | Lazy | Loader, Split]:
    if isinstance(images, Loader):
        return _hold_out_of_loader(images, validation, name)
    held_out, kept = (torch.from_numpy(rows) for rows in hold_out(len(images), validation, None, name))
    x, y = images.batch(held_out)
    return images.select(kept), Split(x, y, input_range=images.input_range, feature_names=images.feature_names)


def _hold_out_of_loader(images: Loader, validation: int | str, name: str) -> tuple[Loader, Split]:
    """Split the dataset of a DataLoader. The other images keep its batch size, order and options."""
    loader = images.loader
    in_order, shuffled = type(loader.sampler) is SequentialSampler, _shuffles(loader.sampler)
    if not (in_order or shuffled) or type(loader.batch_sampler) is not BatchSampler:
        raise UserError(
            f"validation is {validation}, but a DataLoader with its own sampler cannot be split; give a Dataset, a "
            "DataLoader or a pair of tensors as validation."
        )
    held_out, kept = hold_out(len(loader.dataset), validation, None, name)  # type: ignore[arg-type]
    options: dict[str, Any] = {
        option: getattr(loader, option)
        for option in (
            "batch_size",
            "num_workers",
            "collate_fn",
            "pin_memory",
            "drop_last",
            "timeout",
            "generator",
            "worker_init_fn",
            "multiprocessing_context",
            "prefetch_factor",
            "persistent_workers",
        )
    }
    rest: DataLoader[Any] = DataLoader(Subset(loader.dataset, kept.tolist()), shuffle=shuffled, **options)
    unshuffled = {**options, "drop_last": False, "persistent_workers": False}
    parts: DataLoader[Any] = DataLoader(Subset(loader.dataset, held_out.tolist()), **unshuffled)
    return Loader(rest, images.classes), _read(Loader(parts, images.classes), len(held_out))


def _shuffles(sampler: Any) -> bool:
    """Return whether a sampler draws every item once, in random order."""
    return type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None


def _classes(classes: int | None, sources: list[Any], name: str) -> int:
    labels = [y for source in sources if (y := known_labels(source)) is not None]
    minimum = max((int(y.max()) + 1 for y in labels if y.numel()), default=1)
    if known_labels(sources[0]) is None and classes is None:
        raise UserError(f"The number of classes of {name} is not known without reading all labels; give classes=.")
    if classes is not None and not is_int(classes):
        raise UserError(f"classes is {classes!r}; expected an integer from 2.")
    return count_classes(max(minimum, 1), classes, name)


def known_labels(source: Any) -> Tensor | None:
    """Return all labels of a set of images, or None if they cannot be read without the images."""
    if isinstance(source, Split):
        return source.y
    if isinstance(source, DataLoader):
        return known_labels(source.dataset)
    if isinstance(source, Subset):
        labels = known_labels(source.dataset)
        return None if labels is None else labels[list(source.indices)]
    targets = source.tensors[-1] if isinstance(source, TensorDataset) else getattr(source, "targets", None)
    if isinstance(source, tuple) and len(source) == 2:
        targets = source[1]
    try:
        labels = torch.as_tensor(targets) if targets is not None else None
    except (TypeError, ValueError, RuntimeError):
        return None
    return labels if labels is not None and labels.dim() == 1 and not labels.is_floating_point() else None
