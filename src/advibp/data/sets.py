"""Images with their labels, and the data set they make up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from advibp.errors import UserError


@dataclass(frozen=True, eq=False)
class Split:
    """Images ``x`` (N, C, H, W), float32 in [0, 1], and their labels ``y`` (N,), int64."""

    x: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, n: int) -> Split:
        """The first ``n`` images, or all if there are fewer."""
        if n < 0:
            raise UserError(f"Cannot take {n} images; give 0 or more.")
        return Split(self.x[:n], self.y[:n])


@dataclass(frozen=True, eq=False)
class Data:
    """A data set; ``mean`` and ``std`` are those of its training images."""

    name: str
    train: Split
    validation: Split
    test: Split
    classes: int

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = self.train.x.shape[1:]
        return channels, height, width

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
        x = self.train.x
        count = x.numel() // x.shape[1]
        mean = x.sum(dim=(0, 2, 3), dtype=torch.float64) / count
        # Two passes, in chunks: exact enough for a constant channel to give 0, without a float64 copy of all images.
        centre = mean[:, None, None]
        squares = [(part.double() - centre).square_().sum(dim=(0, 2, 3)) for part in torch.split(x, 2048)]
        std = (torch.stack(squares).sum(dim=0) / count).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())
