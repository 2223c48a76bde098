"""A DataLoader of one's own: its order, its batches, its augmentation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from advibp.data import dataset_items
from advibp.data.dataset_items import Shape
from advibp.data.lazy import STATISTICS_IMAGES, STATISTICS_VALUES
from advibp.data.user_randomness import Randomness, seed_all
from advibp.errors import UserError


@dataclass(frozen=True, eq=False)
class Loader:
    """The batches of ``loader``, pairs (images, labels), each checked; its length is that in batches.

    An epoch's order and augmentation are a pure function of the seed given to `batches`, as far as they are drawn from
    torch, numpy or Python, or from the generator of the loader or its sampler. Not so with persistent workers, which
    carry their random numbers from one epoch to the next: their order is reproduced, their augmentation is not.
    """

    loader: DataLoader[Any]
    classes: int

    def __post_init__(self) -> None:
        try:
            length = len(self.loader)
        except TypeError:
            raise UserError(
                "The DataLoader has no length, as its IterableDataset has none; give that a __len__ that tells how "
                "many images an epoch has."
            ) from None
        if length == 0:
            raise UserError("The DataLoader is empty; give at least one batch.")

    def __len__(self) -> int:
        """Batches in an epoch."""
        return len(self.loader)

    @cached_property
    def batch_size(self) -> int:
        """Images in a batch; where a sampler of one's own decides, in the first one."""
        stated = self.loader.batch_size or getattr(self.loader.batch_sampler, "batch_size", None)
        return stated if isinstance(stated, int) else len(self._first)

    @property
    def shape(self) -> Shape:
        """(C, H, W)."""
        channels, height, width = self._first.shape[1:]
        return channels, height, width

    @cached_property
    def _first(self) -> Tensor:
        return next(self._batches(0, None))[0]

    def batches(self, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        """One epoch."""
        return self._batches(seed, self.shape)

    def _batches(self, seed: int, shape: Shape | None) -> Iterator[tuple[Tensor, Tensor]]:
        stream = _Stream(self.loader, seed)
        try:
            for number in range(len(self)):
                yield self._checked(stream.next(number), number, shape)
        finally:
            stream.batches = None  # ends its workers now, not when garbage is collected

    def _checked(self, batch: Any, number: int, shape: Shape | None) -> tuple[Tensor, Tensor]:
        where = f"Batch {number} of the DataLoader"
        x, y = dataset_items.pair(batch, where)
        if not isinstance(x, Tensor) or not isinstance(y, Tensor):
            raise UserError(f"{where} holds no tensors; expected images (B, C, H, W) and labels (B,).")
        if x.dim() == 3:
            x = x[:, None]
        if x.dim() != 4 or 0 in x.shape or y.shape != x.shape[:1]:
            raise UserError(
                f"{where} has images of shape {tuple(x.shape)} and labels of shape {tuple(y.shape)}; expected "
                "(B, C, H, W) and (B,)."
            )
        if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
            raise UserError(f"{where} has labels of type {y.dtype}; expected integers.")
        x, y = dataset_items.scaled(x, where), y.long()
        dataset_items.check_batch(x, y, shape, self.classes, lambda k: f"Image {k} in batch {number} of the DataLoader")
        return x, y

    def sample(self) -> dict[str, Tensor]:
        """What a fingerprint is taken of: sizes alone, as nothing else is safe from shuffling."""
        images = getattr(self.loader.dataset, "__len__", lambda: -1)()
        facts = {"shape": self.shape, "batches": (len(self), self.batch_size), "images": (images,)}
        return {name: torch.tensor(numbers) for name, numbers in facts.items()} | {
            "classes": torch.tensor([self.classes])
        }

    def pixels(self) -> Tensor:
        """The images that mean and std are taken of: the first 10,000 of an epoch, or a gibibyte, as they come."""
        most = max(1, min(STATISTICS_IMAGES, STATISTICS_VALUES // torch.Size(self.shape).numel()))
        return self.read(most)[0]

    def read(self, most: int) -> tuple[Tensor, Tensor]:
        """The first images of the epoch with seed 0, ``most`` of them or all."""
        found: list[tuple[Tensor, Tensor]] = []
        count = 0
        for x, y in self.batches(0):
            found.append((x, y))
            count += len(x)
            if count >= most:
                break
        xs, ys = zip(*found, strict=True)
        return torch.cat(xs)[:most], torch.cat(ys)[:most]


class _Stream:
    """An epoch of a DataLoader with random numbers of its own: the caller's are as they were after each batch."""

    def __init__(self, loader: DataLoader[Any], seed: int) -> None:
        self.loader = loader
        self.batches: Iterator[Any] | None = None
        outside = Randomness.now()
        mixed = seed_all(seed)
        self.inside = Randomness.now()
        outside.restore()
        for generator in _generators(loader):
            generator.manual_seed(mixed)

    def next(self, number: int) -> Any:
        outside = Randomness.now()
        self.inside.restore()
        try:
            if self.batches is None:
                self.batches = iter(self.loader)
            return next(self.batches)
        except StopIteration:
            raise UserError(
                f"The DataLoader ended after {number} batches, but its length promised more; mend its __len__."
            ) from None
        except UserError:
            raise
        except Exception as error:  # a dataset of one's own may raise anything
            raise UserError(
                f"Batch {number} of the DataLoader cannot be read ({dataset_items.quote(error)}); mend its dataset."
            ) from error
        finally:
            self.inside = Randomness.now()
            outside.restore()


def _generators(loader: DataLoader[Any]) -> Iterator[torch.Generator]:
    owners = (loader, loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    for owner in owners:
        generator = getattr(owner, "generator", None)
        if isinstance(generator, torch.Generator):
            yield generator
