"""Images with their labels, and the data set they make up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advibp.errors import UserError

if TYPE_CHECKING:
    from advibp.data.lazy import Lazy
    from advibp.data.loaders import Loader


@dataclass(frozen=True, eq=False)
class Split:
    """Images ``x`` (N, C, H, W), float32 in [0, 1], and their labels ``y`` (N,), int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.x.shape[1:]
        return channels, height, width

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels with these indices."""
        return self.x[rows], self.y[rows]

    def batches(self, index_batches: Iterable[Tensor], *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """One batch for each tensor of indices; ``seed`` is for sets whose images are drawn anew each time."""
        return (self.batch(rows) for rows in index_batches)

    def select(self, rows: Tensor) -> Split:
        return Split(*self.batch(rows))

    def take(self, n: int) -> Split:
        """The first ``n`` images, or all if there are fewer."""
        check_take(n)
        return Split(self.x[:n], self.y[:n])

    def sample(self) -> dict[str, Tensor]:
        """What a fingerprint is taken of: the labels, and a thousand or so evenly spaced images."""
        return {"x": self.x[:: max(1, len(self.x) // 1000)], "y": self.y}

    def pixels(self) -> Tensor:
        """The images that mean and std are taken of: all."""
        return self.x


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; ``mean`` and ``std`` are those of its training images, of at most 10,000 if they are not in memory.

    ``train`` may be read from a Dataset of one's own (`Lazy`) or come in the batches of a DataLoader (`Loader`);
    ``validation`` is always in memory. ``class_names`` are known for folders of images.
    """

    name: str
    train: Split | Lazy | Loader
    validation: Split
    test: Split | Lazy
    classes: int
    class_names: tuple[str, ...] | None = None

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.train.shape

    @property
    def mean(self) -> tuple[float, ...]:
        """Per channel."""
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Per channel, of the population (divided by N)."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        x = self.train.pixels()
        count = x.numel() // x.shape[1]
        mean = x.sum(dim=(0, 2, 3), dtype=torch.float64) / count
        # Two passes, in chunks: exact enough for a constant channel to give 0, without a float64 copy of all images.
        centre = mean[:, None, None]
        squares = [(part.double() - centre).square_().sum(dim=(0, 2, 3)) for part in torch.split(x, 2048)]
        std = (torch.stack(squares).sum(dim=0) / count).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())


def check_take(n: int) -> None:
    if n < 0:
        raise UserError(f"Cannot take {n} images; give 0 or more.")
