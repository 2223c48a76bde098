"""What `train` and `certify` take becomes a data set, or images with labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from samples import refused
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from advibp.data import Data, Loader, Split, as_data, as_images, from_tensors

X = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


class Unlabeled(Dataset[tuple[Tensor, int]]):
    """A data set that does not list its labels."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[i], int(Y[i])


PAIRS: dict[str, Any] = {
    "tensors": (X, Y),
    "list": [X, Y],
    "arrays": (X.numpy(), Y.numpy()),
    "bytes": ((255 * X).byte(), Y),
    "split": Split(X, Y),
    "dataset": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=8),
    "shuffled loader": DataLoader(TensorDataset(X, Y), batch_size=8, shuffle=True, drop_last=True),
}


def labels(part: Any) -> list[int]:
    if isinstance(part, Loader):
        return sorted(part.read(1000)[1].tolist())
    return sorted(part.batch(torch.arange(len(part)))[1].tolist())


@pytest.mark.parametrize("kind", PAIRS)
@pytest.mark.parametrize("form", ["one", "two", "three"])
def test_every_set_can_be_trained_on(kind: str, form: str) -> None:
    given = PAIRS[kind]
    value = {"one": given, "two": (given, (X[:5], Y[:5])), "three": (given, (X[:7], Y[:7]), TensorDataset(X, Y))}[form]
    data = as_data(value)
    assert data.classes == 3
    assert data.input_shape == data.validation.shape == data.test.shape == (1, 4, 4)
    assert len(data.validation) == (7 if form == "three" else 6)
    assert len(data.test) == {"one": 0, "two": 5, "three": 60}[form]
    if kind != "shuffled loader":  # it drops images
        assert labels(data.train) == labels(Split(X, Y)) if form == "three" else True
        held_out = [] if form == "three" else data.validation.y.tolist()
        assert sorted(labels(data.train) + held_out) == sorted(Y.tolist())


def test_a_split_loader_keeps_its_batches() -> None:
    """The images that are held out are not trained on, and the rest is shuffled in batches of the same size."""
    data = as_data(PAIRS["shuffled loader"], validation=12)
    assert isinstance(data.train, Loader)
    assert (len(data.train), data.train.batch_size) == (6, 8)
    first, second = (torch.cat([x for x, _ in data.train.batches(seed)]) for seed in (0, 1))
    assert not torch.equal(first, second)
    held_out = {tuple(x.flatten().tolist()) for x in data.validation.x}
    assert not held_out & {tuple(x.flatten().tolist()) for x in torch.cat([first, second])}
    assert len(held_out) == 12


def test_four_tensors_are_a_data_set() -> None:
    data = as_data((X, Y, X[:4], Y[:4]), validation=10)
    same = from_tensors(X, Y, X[:4], Y[:4], validation=10)
    assert torch.equal(data.train.x, same.train.x)  # type: ignore[union-attr]
    assert torch.equal(data.test.x, X[:4])  # type: ignore[union-attr]
    assert as_data(data) is data


def test_classes_may_be_counted_by_the_network() -> None:
    refused(lambda: as_data(Unlabeled()), "give classes=")
    shapes = []

    def count(x: Tensor) -> int:
        shapes.append(tuple(x.shape))
        return 5

    assert as_data(Unlabeled(), classes=count).classes == 5
    assert as_data(DataLoader(Unlabeled(), batch_size=8, shuffle=True), classes=count).classes == 5
    assert shapes == [(1, 1, 4, 4)] * 2
    assert as_data((X, Y), classes=count).classes == 3  # the labels are known


class Stream(IterableDataset[tuple[Tensor, int]]):
    def __iter__(self) -> Any:
        return iter(zip(X, Y.tolist(), strict=True))

    def __len__(self) -> int:
        return len(X)


@pytest.mark.parametrize("value", [None, "mnist", 3, X, {"x": X}, (X, Y, X), [], (X, "a"), ((X, Y), X)], ids=str)
def test_other_values_are_refused(value: Any) -> None:
    refused(lambda: as_data(value), "but must be a Data set, a pair (x, y)")
    refused(lambda: as_images(value), "but must be a pair (x, y)")


def test_a_stream_can_not_be_split() -> None:
    stream = DataLoader(Stream(), batch_size=4)
    refused(lambda: as_data(stream, classes=3), "cannot be split")
    assert len(as_data((stream, (X, Y), (X, Y)), classes=3).train) == 15


@pytest.mark.parametrize("kind", set(PAIRS) - {"bytes"})
def test_every_set_can_be_certified(kind: str) -> None:
    x, y = as_images(PAIRS[kind]).batch(torch.arange(3))
    assert x.shape == (3, 1, 4, 4)
    if kind != "shuffled loader":
        assert torch.equal(x, X[:3])
        assert y.tolist() == [0, 1, 2]


@pytest.mark.parametrize("value", [from_tensors(X, Y, X[:4], Y[:4], validation=10), (X, Y, X[:4], Y[:4])], ids=type)
def test_of_a_data_set_the_test_images_are_certified(value: Any) -> None:
    images = as_images(value)
    assert torch.equal(images.batch(torch.arange(4))[0], X[:4])
    assert len(images) == 4


def test_a_data_set_without_test_images() -> None:
    data = as_data(TensorDataset(X, Y))
    assert isinstance(data, Data)
    refused(lambda: as_images(data), "has no test images")
    assert np.isfinite(data.mean).all()
