"""A user's Dataset whose images are read when they are needed, because they need not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from advibp.bounds.box import Range
from advibp.data import dataset_items
from advibp.data.dataset_items import Shape
from advibp.data.features import PIXELS
from advibp.data.sets import Split, check_take
from advibp.data.user_randomness import Randomness, seed_all
from advibp.errors import UserError

STATISTICS_IMAGES = 10_000
STATISTICS_VALUES = 2**28  # 1 GiB as float32
_MIN_FOR_WORKERS = 64  # fewer images are read faster without starting worker processes


@dataclass(frozen=True, eq=False)
class Lazy:
    """A map-style Dataset of pairs (image, label), with the interface of a `Split`.

    An image is a tensor or array of shape (C, H, W) or (H, W), uint8 or floating point in [0, 1], or a PIL image. The
    row of a table is a tensor or array of shape (F,). A label is an integer from 0. Every item is checked when it is
    read. Random numbers that the dataset draws from torch, numpy or Python depend only on the seed given to `batches`
    and on the index of the item.

    Args:
        dataset: The Dataset. It needs ``__getitem__`` and ``__len__``.
        workers: Number of processes that read batches ahead. Default: 0, i.e. batches are read in this process.
        classes: Number of classes; labels are checked against it. Default: None, i.e. not known.
        rows: Indices of the items to use, shape (N,), int64. Default: all items.
        within: Range of valid inputs, as `Data.input_range`. Default: "auto", (0, 1) for images, no limit for tables.
        feature_names: Names of the columns of a table. Default: not known.

    Raises:
        UserError: If the dataset cannot be read by index, has no length or is empty, or if ``workers`` is negative.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> from advibp.data import Lazy
        >>> lazy = Lazy(TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6)), classes=6)
        >>> len(lazy), lazy.shape
        (6, (1, 8, 8))
        >>> x, y = lazy.batch(torch.tensor([4, 2]))
        >>> y
        tensor([4, 2])
    """

    dataset: Dataset[Any]
    workers: int = field(default=0, kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    rows: Tensor | None = field(default=None, kw_only=True)
    within: Range | str = field(default="auto", kw_only=True)
    feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        kind = type(self.dataset).__name__
        if isinstance(self.dataset, IterableDataset) or not hasattr(self.dataset, "__getitem__"):
            raise UserError(f"{kind} cannot be read by index; give a map-style Dataset, or a DataLoader with a length.")
        try:
            length = len(self)
        except TypeError:
            raise UserError(f"{kind} has no length; give it a __len__.") from None
        if self.rows is None and length == 0:
            raise UserError(f"{kind} is empty; give at least one image.")
        if self.workers < 0:
            raise UserError(f"workers is {self.workers}; expected 0 (read in this process) or more.")

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.dataset) if self.rows is None else len(self.rows)  # type: ignore[arg-type]

    @cached_property
    def shape(self) -> Shape:
        """Shape of an input, (C, H, W) or (F,), of the first item of the dataset."""
        x, _ = _raise_if_failed(_Reader(self.dataset, None, self.classes, 0, self.within)[[0]])
        return tuple(x.shape[1:])

    @property
    def input_range(self) -> Range:
        """Range of valid inputs; None for no limit."""
        if isinstance(self.within, str):
            return PIXELS if len(self.shape) > 1 else None
        return self.within

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels with these indices.

        Args:
            rows: Indices of shape (B,), int64.

        Returns:
            Images of shape (B, C, H, W), float32 in [0, 1], and labels of shape (B,), int64.

        Raises:
            UserError: If an item cannot be read or is not a valid image with a label.
        """
        pieces = rows.chunk(self.workers) if self.workers and len(rows) > _MIN_FOR_WORKERS else (rows,)
        x, y = zip(*self.batches(pieces), strict=True)
        return torch.cat(x), torch.cat(y)

    def batches(self, index_batches: Iterable[Tensor], *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one batch for each tensor of indices, as `batch` returns it. The workers read ahead.

        Args:
            index_batches: Tensors of indices, each of shape (B,).
            seed: Seed of the random numbers that the dataset draws.
        """
        reader = _Reader(self.dataset, self.shape, self.classes, seed, self.within)
        item_batches = (self._items(rows) for rows in index_batches)
        if self.workers:
            return _read_ahead(reader, item_batches, self.workers)
        return map(_raise_if_failed, map(reader.read, item_batches))

    def _items(self, rows: Tensor) -> list[int]:
        items: list[int] = (rows if self.rows is None else self.rows[rows]).tolist()
        return items

    def select(self, rows: Tensor) -> Lazy:
        """Return the images with these indices, without reading them."""
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def take(self, n: int) -> Lazy:
        """Return the first ``n`` images, or all if there are fewer, without reading them."""
        check_take(n)
        return self.select(torch.arange(min(n, len(self))))

    def sample(self) -> dict[str, Tensor]:
        """Return the tensors that identify the data: the length, and 16 evenly spaced items."""
        return sample_few(self)

    def pixels(self) -> Tensor:
        """Return the images from which mean and standard deviation are computed.

        They are evenly spaced, and at most 10,000 images or 1 GiB.
        """
        count = min(STATISTICS_IMAGES, STATISTICS_VALUES // torch.Size(self.shape).numel())
        return self.batch(_evenly_spaced(len(self), max(1, count)))[0]


def sample_few(images: Lazy | Split) -> dict[str, Tensor]:
    """Return the tensors that identify images without reading all of them: their number, and 16 evenly spaced items."""
    x, y = images.batch(_evenly_spaced(len(images), 16))
    return {"x": x, "y": y, "length": torch.tensor([len(images)])}


def _evenly_spaced(length: int, count: int) -> Tensor:
    """Return ``count`` indices below ``length``, or all indices if there are fewer."""
    return torch.arange(count) * length // count if length > count else torch.arange(length)


@dataclass(frozen=True)
class _Failed:
    """An error of a reader. Workers return it as a value, because an exception would include its traceback."""

    message: str


_Read = tuple[Tensor, Tensor] | _Failed


def _raise_if_failed(batch: _Read) -> tuple[Tensor, Tensor]:
    if isinstance(batch, _Failed):
        raise UserError(batch.message)
    return batch


class _Reader(Dataset[_Read]):
    """Reads a batch for a list of indices. It is a Dataset, so that the workers of a DataLoader can run it."""

    def __init__(
        self, dataset: Dataset[Any], shape: Shape | None, classes: int | None, seed: int, within: Range | str
    ) -> None:
        # The shape is None when `Lazy.shape` reads the first item.
        self.dataset, self.shape, self.classes, self.seed, self.within = dataset, shape, classes, seed, within

    def __getitem__(self, rows: list[int]) -> _Read:
        before = Randomness.now()
        try:
            return self._read(rows)
        except UserError as error:
            return _Failed(str(error))
        finally:
            before.restore()

    read = __getitem__

    def _read(self, rows: list[int]) -> tuple[Tensor, Tensor]:
        images, labels = [], []
        for row in rows:
            where = f"Item {row} of the dataset"
            value, label = dataset_items.pair(self._item(row, where), where)
            image = dataset_items.image(value, where)
            if self.shape is not None:
                dataset_items.check_shape(image, self.shape, where)
            images.append(image)
            labels.append(dataset_items.label(label, where))
        x = torch.stack(images) if images else torch.zeros(0, *(self.shape or ()))
        y = torch.tensor(labels, dtype=torch.int64)
        name = "Item {} of the dataset".format
        dataset_items.check_batch(x, y, None, self.classes, lambda k: name(rows[k]), self.within)
        return x, y

    def _item(self, row: int, where: str) -> Any:
        seed_all(self.seed, row)
        try:
            return self.dataset[row]
        except Exception as error:  # a user's dataset may raise anything
            raise UserError(f"{where} cannot be read ({dataset_items.quote(error)}); fix the dataset.") from error


def _read_ahead(reader: _Reader, item_batches: Iterable[list[int]], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield batches in order, read by processes of which each is up to two batches ahead."""
    loader = DataLoader(
        reader,
        sampler=item_batches,
        batch_size=None,
        num_workers=workers,
        collate_fn=_identity,
        generator=torch.Generator(),  # so that it does not draw from the global generator
    )
    batches = None
    try:
        batches = iter(loader)  # a worker may end before the first request
        for batch in batches:
            yield _raise_if_failed(batch)
    except RuntimeError as error:
        raise UserError(
            f"A worker that reads the dataset ended ({dataset_items.quote(error)}); use fewer workers."
        ) from error
    finally:
        del batches  # ends the workers now; the garbage collector would wait ten seconds for them


def _identity(batch: Any) -> Any:
    return batch
