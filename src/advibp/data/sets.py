"""Inputs in memory with their labels (`Split`), and a data set of three splits (`Data`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from advibp.bounds.box import Range
from advibp.data.features import PIXELS
from advibp.data.origin import Origin
from advibp.display.object_summary import Summarized
from advibp.errors import UserError

if TYPE_CHECKING:
    from advibp.data.lazy import Lazy
    from advibp.data.loaders import Loader


@dataclass(frozen=True, eq=False, repr=False)
class Split(Summarized):
    """Inputs in memory and their labels.

    Args:
        x: Inputs of shape (N, ...), float32: images (N, C, H, W) in [0, 1], or the rows of a table (N, F).
        y: Labels of shape (N,), int64.
        input_range: Lowest and highest valid value, numbers or tensors per feature; None for no limit. Default: (0, 1),
            the range of pixels.
        feature_names: Names of the columns of a table. Default: None, if they are not known.

    Examples:
        >>> import torch
        >>> from advibp.data import Split
        >>> split = Split(torch.rand(5, 3, 8, 8), torch.tensor([0, 1, 0, 1, 0]))
        >>> len(split), split.shape
        (5, (3, 8, 8))
        >>> x, y = split.batch(torch.tensor([1, 3]))
        >>> y
        tensor([1, 1])
    """

    x: Tensor
    y: Tensor
    input_range: Range = field(default=PIXELS, kw_only=True)
    feature_names: tuple[str, ...] | None = field(default=None, kw_only=True)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.y)

    def _summary(self) -> dict[str, object]:
        return {"images": len(self), "shape": tuple(self.x.shape[1:])}

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an input: (C, H, W) for images, (F,) for a table."""
        return tuple(self.x.shape[1:])

    def batch(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the images and labels with these indices.

        Args:
            rows: Indices of shape (B,), int64.

        Returns:
            Images of shape (B, C, H, W) and labels of shape (B,).
        """
        return self.x[rows], self.y[rows]

    def batches(self, index_batches: Iterable[Tensor], *, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield one batch for each tensor of indices.

        Args:
            index_batches: Tensors of indices, each of shape (B,).
            seed: Not used. `Lazy.batches` uses it for random augmentation.
        """
        return (self.batch(rows) for rows in index_batches)

    def select(self, rows: Tensor) -> Split:
        """Return a split with the images of these indices."""
        x, y = self.batch(rows)
        return replace(self, x=x, y=y)

    def take(self, n: int) -> Split:
        """Return a split with the first ``n`` images, or all if there are fewer."""
        check_take(n)
        return replace(self, x=self.x[:n], y=self.y[:n])

    def sample(self) -> dict[str, Tensor]:
        """Return the tensors that identify the data: all labels, and about 1000 evenly spaced images."""
        return {"x": self.x[:: max(1, len(self.x) // 1000)], "y": self.y}

    def pixels(self) -> Tensor:
        """Return the images from which mean and standard deviation are computed: all of them."""
        return self.x


@dataclass(frozen=True, eq=False, repr=False)
class Data(Summarized):
    """A data set. Use `load`, `from_tensors` or `from_datasets` to create one.

    Args:
        name: Name of the data set.
        train: Training images: in memory (`Split`), read from a Dataset (`Lazy`), or in the batches of a DataLoader
            (`Loader`).
        validation: Validation images, in memory.
        test: Test images: in memory, or read from a Dataset.
        classes: Number of classes.
        class_names: Names of the classes in the order of their labels. Default: None, if they are not known.
        origin: How `load` has loaded it. Default: None, if it was created in Python.

    Examples:
        >>> import torch
        >>> from advibp.data import Data, Split
        >>> split = Split(torch.ones(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))
        >>> data = Data("ones", split, split, split, classes=2)
        >>> data.input_shape, data.mean, data.std
        ((1, 8, 8), (1.0,), (0.0,))
    """

    name: str
    train: Split | Lazy | Loader
    validation: Split
    test: Split | Lazy
    classes: int
    class_names: tuple[str, ...] | None = None
    origin: Origin | None = None

    def _summary(self) -> dict[str, object]:
        batches = hasattr(self.train, "loader")  # the length of a Loader is its number of batches
        sizes: dict[str, object] = {"train_batches" if batches else "train": len(self.train)}
        sizes |= {"validation": len(self.validation), "test": len(self.test)}
        shape = tuple(self.validation.x.shape[1:])  # in memory; `input_shape` may read a file
        names = {"class_names": self.class_names} if self.class_names else {}
        return {"name": self.name, **sizes, "input_shape": shape, "classes": self.classes, **names}

    @property
    def input_range(self) -> Range:
        """Lowest and highest valid value of the inputs; None for no limit. (0, 1) for images."""
        return self.train.input_range

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the columns of a table, in their order; None if they are not known."""
        return getattr(self.train, "feature_names", None)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an input: (C, H, W) for images, (F,) for a table."""
        return self.train.shape

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of the training inputs per channel, or per feature of a table.

        If they are not in memory, at most 10,000 inputs are used.
        """
        return self._statistics[0]

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of the training inputs per channel or feature (divided by N), as for `mean`."""
        return self._statistics[1]

    @cached_property
    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        x = self.train.pixels()
        count = x.numel() // x.shape[1]
        others = (0, *range(2, x.dim()))
        mean = x.sum(dim=others, dtype=torch.float64) / count
        # Two passes, so that a constant channel has a deviation of 0; in chunks, to avoid a float64 copy of all images.
        center = mean.view(-1, *[1] * (x.dim() - 2))
        squares = [(part.double() - center).square_().sum(dim=others) for part in torch.split(x, 2048)]
        std = (torch.stack(squares).sum(dim=0) / count).sqrt()
        return tuple(mean.tolist()), tuple(std.tolist())


def check_take(n: int) -> None:
    """Raise an error if ``n`` is negative."""
    if n < 0:
        raise UserError(f"Cannot take {n} images; give 0 or more.")
