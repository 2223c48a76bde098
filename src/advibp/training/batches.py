"""The batches of a training, in an order that depends on the seed and the epoch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from advibp.data import Data, Lazy, Loader, Split
from advibp.data.augment import augment
from advibp.data.lazy import sample_few
from advibp.execution.seeds import mix
from advibp.recipe import Recipe
from advibp.storage import checkpoint

#: With batch_size auto: the batch sizes, largest first, and the smallest numbers of steps per epoch and per run.
SIZES, FEWEST_STEPS, FEWEST_STEPS_OF_A_RUN = (256, 128, 64, 32, 16), 40, 500


def choose_batch_size(requested: int | str, images: int, epochs: float) -> int:
    """Return the batch size for a number of images and epochs.

    Args:
        requested: a number, or "auto": the largest of SIZES with FEWEST_STEPS per epoch and FEWEST_STEPS_OF_A_RUN, or
            else the smallest.
        images: number of training images; a batch is not larger.
        epochs: number of epochs that the run was started with.
    """
    if isinstance(requested, str):
        fewest = max(FEWEST_STEPS, FEWEST_STEPS_OF_A_RUN / epochs)
        requested = next((size for size in SIZES if math.ceil(images / size) >= fewest), SIZES[-1])
    return min(requested, images)


class Feed:
    """Yields training batches on the device. A data set that is in memory is moved to the device once."""

    def __init__(self, data: Data, recipe: Recipe, device: torch.device) -> None:
        self.images: Split | Lazy | Loader = data.train
        self.recipe, self.device = recipe, device
        self._examples: dict[int, tuple[Tensor, Tensor]] = {}
        if isinstance(self.images, Split):
            self.images = replace(self.images, x=self.images.x.to(device), y=self.images.y.to(device))
        if isinstance(self.images, Loader):
            self.batch_size, self.steps_per_epoch = self.images.batch_size, len(self.images)
        else:
            self.batch_size = choose_batch_size(recipe.batch_size, len(self.images), recipe.planned_epochs)
            # An incomplete last batch is dropped. The data order differs in each epoch, so no image is always dropped.
            self.steps_per_epoch = len(self.images) // self.batch_size

    def example(self, count: int) -> tuple[Tensor, Tensor]:
        """Return the first `count` images and labels, to examine the network with. They are read once."""
        if count not in self._examples:
            if isinstance(self.images, Loader):
                x, y = next(self.images.batches(0))
            else:
                x, y = self.images.batch(torch.arange(min(count, len(self.images))))
            self._examples[count] = x[:count].to(self.device), y[:count].to(self.device)
        return self._examples[count]

    @cached_property
    def fingerprint(self) -> str:
        """Fingerprint of a sample of the images, to recognize the data set."""
        return checkpoint.fingerprint(self.images.sample())

    def accept(self, fingerprint: str) -> bool:
        """Return whether these images have a fingerprint, and keep it, because a run has one fingerprint.

        A Dataset has another fingerprint than tensors of the same images. Tensors accept both.
        """
        few = isinstance(self.images, Split) and checkpoint.fingerprint(sample_few(self.images))
        if fingerprint not in (self.fingerprint, few):
            return False
        self.fingerprint = fingerprint
        return True

    def order(self, epoch: int) -> Tensor:
        """Return the order of the images in an epoch (counted from 0), as indices (N,)."""
        generator = torch.Generator().manual_seed(mix(self.recipe.seed, 2, epoch))
        return torch.randperm(len(self.images), generator=generator)

    def batches(self, epoch: int, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches `begin` to `end` of an epoch, augmented: x (B, ...), y (B,)."""
        for k, (x, y) in enumerate(self._read(epoch, begin, end), begin):
            x, y = x.to(self.device), y.to(self.device)
            if self.recipe.flip or self.recipe.crop:
                seed = mix(self.recipe.seed, 3, epoch * self.steps_per_epoch + k)
                generator = torch.Generator().manual_seed(seed)
                x = augment(
                    x,
                    flip=self.recipe.flip,
                    crop=self.recipe.crop,
                    padding=self.recipe.crop_padding,
                    generator=generator,
                )
            yield x, y

    def plain_batches(self) -> Iterator[Tensor]:
        """Yield all training images (B, ...) without augmentation, in an order that is always the same."""
        if isinstance(self.images, Loader):
            yield from (x.to(self.device) for x, _ in self.images.batches(0))
            return
        for rows in torch.arange(len(self.images), device=self.device).split(self.batch_size):
            yield self.images.batch(rows if isinstance(self.images, Split) else rows.cpu())[0].to(self.device)

    def _read(self, epoch: int, begin: int, end: int) -> Iterator[tuple[Tensor, Tensor]]:
        seed = mix(self.recipe.seed, 4, epoch)
        if isinstance(self.images, Loader):
            all_batches = self.images.batches(seed)
            return (batch for k, batch in enumerate(all_batches) if begin <= k < end)
        order = self.order(epoch).to(self.device if isinstance(self.images, Split) else "cpu")
        return self.images.batches(list(order.split(self.batch_size))[begin:end], seed=seed)
