"""A Dataset of one's own, read when it is needed: for images that do not fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset

from advibp.data import dataset_items
from advibp.data.dataset_items import Shape
from advibp.data.sets import check_take
from advibp.data.user_randomness import Randomness, seed_all
from advibp.errors import UserError

STATISTICS_IMAGES = 10_000
STATISTICS_VALUES = 2**28  # a gibibyte of float32
_ALONE = 64  # so many images are read sooner than worker processes are started


@dataclass(frozen=True, eq=False)
class Lazy:
    """A map-style Dataset that gives pairs (image, label), with the interface of a `Split`.

    An image is a tensor or array (C, H, W) or (H, W), uint8 or floats in [0, 1], or a PIL image; a label is an integer
    from 0. All that is read is checked. ``workers`` processes read ahead. Random numbers that the dataset draws from
    torch, numpy or Python depend on the seed of `batches` and the item's index alone, whoever reads it and when.
    ``rows`` are the items that belong to it, all by default.
    """

    dataset: Dataset[Any]
    workers: int = field(default=0, kw_only=True)
    classes: int | None = field(default=None, kw_only=True)
    rows: Tensor | None = field(default=None, kw_only=True)

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
        return len(self.dataset) if self.rows is None else len(self.rows)  # type: ignore[arg-type]

    @cached_property
    def shape(self) -> Shape:
        """(C, H, W), of the dataset's first item."""
        x, _ = _unless_failed(_Reader(self.dataset, None, self.classes, 0)[[0]])
        channels, height, width = x.shape[1:]
        return channels, height, width

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels with these indices."""
        pieces = rows.chunk(self.workers) if self.workers and len(rows) > _ALONE else (rows,)
        x, y = zip(*self.batches(pieces), strict=True)
        return torch.cat(x), torch.cat(y)

    def batches(self, index_batches: Iterable[Tensor], *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """One batch for each tensor of indices, read ahead by the workers; another ``seed``, other random numbers."""
        reader = _Reader(self.dataset, self.shape, self.classes, seed)
        wanted = (self._items(rows) for rows in index_batches)
        if self.workers:
            return _ahead(reader, wanted, self.workers)
        return map(_unless_failed, map(reader.read, wanted))

    def _items(self, rows: Tensor) -> list[int]:
        found: list[int] = (rows if self.rows is None else self.rows[rows]).tolist()
        return found

    def select(self, rows: Tensor) -> Lazy:
        return replace(self, rows=rows if self.rows is None else self.rows[rows])

    def take(self, n: int) -> Lazy:
        """The first ``n`` images, or all if there are fewer."""
        check_take(n)
        return self.select(torch.arange(min(n, len(self))))

    def sample(self) -> dict[str, Tensor]:
        """What a fingerprint is taken of: the length, and 16 evenly spaced items."""
        x, y = self.batch(_evenly(len(self), 16))
        return {"x": x, "y": y, "length": torch.tensor([len(self)])}

    def pixels(self) -> Tensor:
        """The images that mean and std are taken of: evenly spaced, 10,000 or a gibibyte at most."""
        most = min(STATISTICS_IMAGES, STATISTICS_VALUES // torch.Size(self.shape).numel())
        return self.batch(_evenly(len(self), max(1, most)))[0]


def _evenly(length: int, most: int) -> Tensor:
    return torch.arange(most) * length // most if length > most else torch.arange(length)


@dataclass(frozen=True)
class _Failed:
    """A mistake met while reading. Workers hand it over as a value: an exception would bring its traceback."""

    message: str


_Read = tuple[Tensor, Tensor] | _Failed


def _unless_failed(found: _Read) -> tuple[Tensor, Tensor]:
    if isinstance(found, _Failed):
        raise UserError(found.message)
    return found


class _Reader(Dataset[_Read]):
    """Lists of indices -> batches. It looks like a Dataset, so that a DataLoader's workers can run it."""

    def __init__(self, dataset: Dataset[Any], shape: Shape | None, classes: int | None, seed: int) -> None:
        # Without a shape it reads single items: `shape` is found that way.
        self.dataset, self.shape, self.classes, self.seed = dataset, shape, classes, seed

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
        dataset_items.check_batch(x, y, None, self.classes, lambda k: f"Item {rows[k]} of the dataset")
        return x, y

    def _item(self, row: int, where: str) -> Any:
        seed_all(self.seed, row)
        try:
            return self.dataset[row]
        except Exception as error:  # a dataset of one's own may raise anything
            raise UserError(f"{where} cannot be read ({dataset_items.quote(error)}); mend the dataset.") from error


def _ahead(reader: _Reader, wanted: Iterable[list[int]], workers: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches in order, read by processes that stay two batches ahead each."""
    loader = DataLoader(
        reader,
        sampler=wanted,
        batch_size=None,
        num_workers=workers,
        collate_fn=_as_it_is,
        generator=torch.Generator(),  # its own, or it would draw from the run's
    )
    batches = None
    try:
        batches = iter(loader)  # a worker may end before it is asked for anything
        for found in batches:
            yield _unless_failed(found)
    except RuntimeError as error:
        raise UserError(
            f"A worker that reads the dataset ended ({dataset_items.quote(error)}); use fewer workers."
        ) from error
    finally:
        del batches  # ends the workers now: the garbage collector would wait for them in vain, ten seconds long


def _as_it_is(found: Any) -> Any:
    return found
