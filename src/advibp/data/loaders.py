"""A user's DataLoader with its order, batches and augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from advibp.bounds.box import Range
from advibp.data import dataset_items
from advibp.data.dataset_items import Shape
from advibp.data.features import PIXELS
from advibp.data.lazy import STATISTICS_IMAGES, STATISTICS_VALUES
from advibp.data.user_randomness import Randomness, seed_all
from advibp.errors import UserError


@dataclass(frozen=True, eq=False)
class Loader:
    """The batches of a DataLoader. Every batch is checked when it is read.

    The order and the augmentation of an epoch depend only on the seed given to `batches`, if they are drawn from torch,
    numpy or Python, or from the generator of the loader or its sampler. With persistent workers only the order is
    reproducible, because they keep their random states from one epoch to the next.

    Args:
        loader: A DataLoader of pairs (images, labels). Images have shape (B, C, H, W) or (B, H, W), uint8 or floating
            point in [0, 1]; labels have shape (B,), integers from 0.
        classes: Number of classes.
        within: Range of valid inputs, as `Data.input_range`. Default: "auto", (0, 1) for images, no limit for tables.
        feature_names: Names of the columns of a table. Default: not known.

    Raises:
        UserError: If the loader has no length or is empty.

    Examples:
        >>> import torch
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> from advibp.data import Loader
        >>> dataset = TensorDataset(torch.rand(6, 1, 8, 8), torch.arange(6) % 2)
        >>> loader = Loader(DataLoader(dataset, batch_size=4, shuffle=True), classes=2)
        >>> len(loader), loader.batch_size, loader.shape
        (2, 4, (1, 8, 8))
        >>> [tuple(x.shape) for x, y in loader.batches(seed=0)]
        [(4, 1, 8, 8), (2, 1, 8, 8)]
    """

    loader: DataLoader[Any]
    classes: int
    within: Range | str = field(default="auto", kw_only=True)
    feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        try:
            length = len(self.loader)
        except TypeError:
            raise UserError(
                "The DataLoader has no length, as its IterableDataset has none; give that a __len__ that returns the "
                "number of images in an epoch."
            ) from None
        if length == 0:
            raise UserError("The DataLoader is empty; give at least one batch.")

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self.loader)

    @cached_property
    def batch_size(self) -> int:
        """Number of images in a batch; with a custom batch sampler, in the first batch."""
        size = self.loader.batch_size or getattr(self.loader.batch_sampler, "batch_size", None)
        return size if isinstance(size, int) else len(self._first)

    @property
    def shape(self) -> Shape:
        """Shape of an input, (C, H, W) or (F,)."""
        return tuple(self._first.shape[1:])

    @property
    def input_range(self) -> Range:
        """Range of valid inputs; None for no limit."""
        if isinstance(self.within, str):
            return PIXELS if len(self.shape) > 1 else None
        return self.within

    @cached_property
    def _first(self) -> Tensor:
        return next(self._batches(0, None))[0]

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one epoch.

        Args:
            seed: Seed of the order and the augmentation.

        Yields:
            Images of shape (B, C, H, W), float32 in [0, 1], and labels of shape (B,), int64.

        Raises:
            UserError: If a batch cannot be read or is invalid.
        """
        return self._batches(seed, self.shape)

    def _batches(self, seed: int, shape: Shape | None) -> Iterator[tuple[Tensor, Tensor]]:
        stream = _Stream(self.loader, seed)
        try:
            for number in range(len(self)):
                yield self._checked(stream.next(number), number, shape)
        finally:
            stream.batches = None  # ends its workers now and not at the next garbage collection

    def _checked(self, batch: Any, number: int, shape: Shape | None) -> tuple[Tensor, Tensor]:
        where = f"Batch {number} of the DataLoader"
        x, y = dataset_items.pair(batch, where)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise UserError(f"{where} does not contain tensors; expected images (B, C, H, W) and labels (B,).")
        if x.dim() == 3:
            x = x[:, None]
        if x.dim() not in (2, 4) or 0 in x.shape or y.shape != x.shape[:1]:
            raise UserError(
                f"{where} has images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}; expected "
                "(B, C, H, W) or (B, F), and (B,)."
            )
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise UserError(f"{where} has labels of type {y.dtype}; expected integers.")
        x = dataset_items.features(x, where) if x.dim() == 2 else dataset_items.scaled(x, where)
        y, name = y.long(), f"in batch {number} of the DataLoader"
        dataset_items.check_batch(x, y, shape, self.classes, lambda k: f"Image {k} {name}", self.within)
        return x, y

    def sample(self) -> dict[str, Tensor]:
        """Return the tensors that identify the data: only sizes, because the loader may shuffle."""
        images = getattr(self.loader.dataset, "__len__", lambda: -1)()
        return {
            "shape": torch.tensor(self.shape),
            "batches": torch.tensor((len(self), self.batch_size)),
            "images": torch.tensor([images]),
            "classes": torch.tensor([self.classes]),
        }

    def pixels(self) -> Tensor:
        """Return the images from which mean and standard deviation are computed.

        They are the first images of the epoch with seed 0, and at most 10,000 images or 1 GiB.
        """
        count = max(1, min(STATISTICS_IMAGES, STATISTICS_VALUES // torch.Size(self.shape).numel()))
        return self.read(count)[0]

    def read(self, limit: int) -> tuple[Tensor, Tensor]:
        """Return the first ``limit`` images and labels of the epoch with seed 0, or all if there are fewer."""
        batches: list[tuple[Tensor, Tensor]] = []
        count = 0
        for x, y in self.batches(0):
            batches.append((x, y))
            count += len(x)
            if count >= limit:
                break
        xs, ys = zip(*batches, strict=True)
        return torch.cat(xs)[:limit], torch.cat(ys)[:limit]


class _Stream:
    """An epoch of a DataLoader with separate random states. The states of the caller are restored after each batch."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader = loader
        self.batches: Iterator[Any] | None = None
        callers = Randomness.now()
        mixed = seed_all(seed)
        self.randomness = Randomness.now()
        callers.restore()
        for generator in _generators(loader):
            generator.manual_seed(mixed)

    def next(self, number: int) -> Any:
        callers = Randomness.now()
        self.randomness.restore()
        try:
            if self.batches is None:
                self.batches = iter(self.loader)
            return next(self.batches)
        except StopIteration:
            raise UserError(
                f"The DataLoader ended after {number} batches, but its length is larger; fix its __len__."
            ) from None
        except UserError:
            raise
        except Exception as error:  # a user's dataset may raise anything
            raise UserError(
                f"Batch {number} of the DataLoader cannot be read ({dataset_items.quote(error)}); fix its dataset."
            ) from error
        finally:
            self.randomness = Randomness.now()
            callers.restore()


def _generators(loader: DataLoader[Any]) -> Iterator[torch.Generator]:
    """Yield the generators of the loader and its samplers."""
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
