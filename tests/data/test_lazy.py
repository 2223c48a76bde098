"""Datasets and DataLoaders of one's own give what the same images in memory give, and their mistakes are named."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from samples import arrays, refused
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, SubsetRandomSampler, TensorDataset

from advibp import data
from advibp.data import Lazy, Loader, Split
from advibp.data.user_randomness import Randomness
from advibp.errors import UserError


class Made(Dataset[Any]):
    """Items made by a function of their index."""

    def __init__(self, make: Callable[[int], Any], length: int = 10) -> None:
        self.make, self.length = make, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, k: int) -> Any:
        return self.make(k)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.zeros(1, 2, 2), 0)] * 7)


class StreamWithLength(Stream):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length


def grey(k: int) -> tuple[Tensor, int]:
    return torch.full((1, 2, 3), k % 10 / 10), k % 3


def noisy(k: int) -> tuple[Tensor, int]:
    """As an augmentation would: from all three sources of chance."""
    return torch.tensor([[[torch.rand(()).item(), np.random.rand(), random.random()]]]), k % 3


def except_third(wrong: Callable[[], Any]) -> Made:
    return Made(lambda k: wrong() if k == 3 else grey(k))


def fail() -> Any:
    raise KeyError("no such\nfile")


# Lazy.


@given(st.lists(st.integers(0, 9), max_size=20), st.booleans())
def test_lazy_is_a_split(rows: list[int], selected: bool) -> None:
    x, y = (torch.stack(parts) for parts in zip(*[(grey(k)[0], torch.tensor(k % 3)) for k in range(10)], strict=True))
    lazy: Lazy | Split = Lazy(Made(grey), classes=3)
    split: Lazy | Split = Split(x, y)
    if selected:
        order = torch.tensor([9, 3, 4, 4, 0, 1, 2, 8, 7, 6])
        lazy, split = lazy.select(order), split.select(order)
    index = torch.tensor(rows, dtype=torch.long)
    assert lazy.shape == split.shape == (1, 2, 3)
    assert len(lazy) == len(split)
    for mine, theirs in zip(lazy.batch(index), split.batch(index), strict=True):
        assert torch.equal(mine, theirs)
        assert mine.dtype == theirs.dtype
    for (mine, _), (theirs, _) in zip(lazy.batches(index.split(4)), split.batches(index.split(4)), strict=True):
        assert torch.equal(mine, theirs)
    first = lazy.take(4)
    assert torch.equal(first.batch(torch.arange(len(first)))[0], split.take(4).batch(torch.arange(4))[0])
    assert len(lazy.take(0)) == 0
    assert len(lazy.take(100)) == 10
    refused(lambda: lazy.take(-1), "-1")


@pytest.mark.parametrize("make", [grey, noisy])
def test_workers_change_nothing(make: Callable[[int], Any]) -> None:
    alone, helped = (Lazy(Made(make, 100), workers=workers, classes=3) for workers in (0, 2))
    rows = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    for seed in (0, 5):
        expected, found = (list(lazy.batches(rows.split(30), seed=seed)) for lazy in (alone, helped))
        assert all(
            torch.equal(a, b) for one, two in zip(expected, found, strict=True) for a, b in zip(one, two, strict=True)
        )
    assert torch.equal(alone.batch(rows)[0], helped.batch(rows)[0])  # enough to start the workers


@pytest.mark.parametrize("workers", [0, 1])
def test_chance_belongs_to_seed_and_item(workers: int) -> None:
    lazy = Lazy(Made(noisy), workers=workers)
    before = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())

    def epoch(seed: int, *batches: list[int]) -> Tensor:
        return torch.cat([x for x, _ in lazy.batches([torch.tensor(rows) for rows in batches], seed=seed)])

    one = epoch(1, [0, 1, 2], [3, 4, 5])
    assert torch.equal(one, epoch(1, [0], [1, 2, 3, 4], [5]))
    assert not torch.equal(one, epoch(2, [0, 1, 2], [3, 4, 5]))
    assert len(one.unique()) == one.numel()
    # and the run's own random numbers are as they were
    after = (torch.get_rng_state(), np.random.get_state()[1], random.getstate())
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]


@pytest.mark.parametrize(
    "item",
    [
        torch.full((1, 2, 3), 51, dtype=torch.uint8),
        torch.full((2, 3), 51, dtype=torch.uint8),
        torch.full((2, 3), 0.2, dtype=torch.float64),
        torch.full((2, 3), 0.2, requires_grad=True),
        np.full((2, 3), 51, dtype=np.uint8),
        np.full((1, 2, 3), 0.2),
        Image.new("L", (3, 2), 51),
        Image.new("LA", (3, 2), (51, 255)),
    ],
)
@pytest.mark.parametrize("label", [1, np.int32(1), np.array(1), torch.tensor(1), torch.tensor(1, dtype=torch.uint8)])
def test_all_kinds_of_items(item: Any, label: Any) -> None:
    x, y = Lazy(Made(lambda k: (item, label)), classes=2).batch(torch.tensor([0, 5]))
    assert torch.equal(x, torch.full((2, 1, 2, 3), 0.2))
    assert x.dtype == torch.float32
    assert y.tolist() == [1, 1]
    assert y.dtype == torch.int64


def test_colors_of_pil_come_first() -> None:
    image = Image.new("RGB", (3, 2), (0, 51, 255))
    x, _ = Lazy(Made(lambda k: (image, 0))).batch(torch.tensor([0]))
    assert x[0, :, 1, 2].tolist() == pytest.approx([0, 0.2, 1])


BAD_ITEMS: list[tuple[Callable[[], Any], str]] = [
    (lambda: (torch.full((1, 2, 3), float("nan")), 0), "NaN"),
    (lambda: (torch.full((1, 2, 3), float("inf")), 0), "infinite"),
    (lambda: (torch.full((1, 2, 3), 1.5), 0), "from 1.5 to 1.5"),
    (lambda: (torch.full((1, 2, 3), -0.5), 0), "let the network subtract its mean"),
    (lambda: (torch.zeros(1, 2, 3, dtype=torch.int64), 0), "type torch.int64"),
    (lambda: (torch.zeros(1, 3, 2), 0), "shape (1, 3, 2), but the first image has (1, 2, 3)"),
    (lambda: (torch.zeros(3), 0), "shape (3,)"),
    (lambda: (torch.zeros(1, 0, 3), 0), "shape (1, 0, 3)"),
    (lambda: (np.zeros((2, 5, 3)), 0), "channels last"),
    (lambda: (np.array(["a"]), 0), "type <U1"),
    (lambda: ("a", 0), "a str as image"),
    (lambda: (Image.new("I;16", (3, 2)), 0), "more than 8 bits"),
    (lambda: (torch.zeros(1, 2, 3), 3), "label 3; expected 0 to 2"),
    (lambda: (torch.zeros(1, 2, 3), -1), "label -1"),
    (lambda: (torch.zeros(1, 2, 3), 10**30), "label"),
    (lambda: (torch.zeros(1, 2, 3), 0.5), "0.5 as label"),
    (lambda: (torch.zeros(1, 2, 3), True), "a bool as label"),
    (lambda: (torch.zeros(1, 2, 3), "cat"), "a str as label"),
    (lambda: (torch.zeros(1, 2, 3), torch.zeros(3)), "a Tensor as label"),
    (lambda: torch.zeros(1, 2, 3), "expected a pair"),
    (lambda: {"image": 1, "label": 2}, "is a dict; expected a pair"),
    (lambda: (1, 2, 3), "expected a pair"),
    (fail, "KeyError: 'no such\\nfile'"),
]


@pytest.mark.parametrize(("wrong", "said"), BAD_ITEMS)
def test_bad_items_are_named(wrong: Callable[[], Any], said: str) -> None:
    lazy = Lazy(except_third(wrong), classes=3)
    lazy.batch(torch.tensor([2, 4]))
    refused(lambda: lazy.batch(torch.tensor([4, 2, 3, 5])), "Item 3 of the dataset", said)
    refused(lambda: lazy.select(torch.tensor([1, 3])).batch(torch.tensor([1])), "Item 3 of the dataset", said)


@pytest.mark.parametrize("wrong", [0, 2, -1])
def test_bad_items_are_named_by_workers_too(wrong: int) -> None:
    make, said = BAD_ITEMS[wrong]
    lazy = Lazy(except_third(make), workers=2, classes=3)
    stream = lazy.batches(torch.arange(10).split(2))
    assert torch.equal(next(stream)[0], torch.stack([grey(0)[0], grey(1)[0]]))
    refused(lambda: list(stream), "Item 3 of the dataset", said)


def test_a_worker_that_dies_is_told_of() -> None:
    def die() -> Any:
        if torch.utils.data.get_worker_info():
            import os

            os._exit(1)
        return grey(3)

    refused(lambda: list(Lazy(except_third(die), workers=1).batches([torch.arange(5)])), "A worker")


@pytest.mark.parametrize(
    ("dataset", "said"),
    [
        (Stream(), "cannot be read by index"),
        (StreamWithLength(7), "cannot be read by index"),
        (Made(grey, 0), "is empty"),
        (object(), "cannot be read by index"),
        (type("Endless", (Dataset,), {"__getitem__": lambda self, k: grey(k)})(), "has no length"),
    ],
)
def test_datasets_that_cannot_be_read(dataset: Any, said: str) -> None:
    refused(lambda: Lazy(dataset), said)


def test_samples_tell_sets_apart() -> None:
    def sample(make: Callable[[int], Any], length: int) -> dict[str, Tensor]:
        return Lazy(Made(make, length)).sample()

    one, same, longer, other = sample(grey, 10), sample(grey, 10), sample(grey, 11), sample(noisy, 10)
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["length"], longer["length"])
    assert not torch.equal(one["x"][:, :, 0, :1], other["x"][:, :, 0, :1])
    assert len(Lazy(Made(lambda k: (torch.zeros(1, 1, 1), 0), 1000)).sample()["y"]) == 16
    split = data.from_tensors(**arrays(train=2500), validation=0).train
    assert isinstance(split, Split)
    assert torch.equal(split.sample()["x"], split.x[::2])
    assert torch.equal(split.sample()["y"], split.y)


# Loader.


def tensors(n: int = 23) -> TensorDataset:
    x = torch.arange(n * 4).view(n, 1, 2, 2) / (n * 4)
    return TensorDataset(x, torch.arange(n) % 3)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own", [False, True])
def test_an_epoch_is_a_function_of_its_seed(workers: int, own: bool) -> None:
    generator = torch.Generator() if own else None
    loader = Loader(DataLoader(tensors(), 5, shuffle=True, num_workers=workers, generator=generator), classes=3)
    assert (len(loader), loader.batch_size, loader.shape) == (5, 5, (1, 2, 2))
    one = torch.cat([y for _, y in loader.batches(1)])
    torch.manual_seed(77)
    before = Randomness.now()
    pixels, again = (torch.cat(parts) for parts in zip(*loader.batches(1), strict=True))
    assert torch.equal(torch.get_rng_state(), before.torch_state)
    assert torch.equal(one, again)
    assert torch.equal(pixels.flatten().sort().values, tensors().tensors[0].flatten())  # every image once
    assert not torch.equal(pixels, torch.cat([x for x, _ in loader.batches(2)]))


@pytest.mark.parametrize("workers", [0, 2])
def test_its_augmentation_is_too_whatever_is_drawn_in_between(workers: int) -> None:
    loader = Loader(DataLoader(Made(noisy, 20), 4, shuffle=True, num_workers=workers), classes=3)
    one = torch.cat([x for x, _ in loader.batches(3)])
    two = []
    for x, _ in loader.batches(3):
        two.append(x)
        torch.manual_seed(len(two))
        np.random.seed(len(two))
        random.random()
    assert torch.equal(one, torch.cat(two))
    assert not torch.equal(one, torch.cat([x for x, _ in loader.batches(4)]))


def test_two_epochs_at_once_do_not_mix() -> None:
    loader = Loader(DataLoader(tensors(), 5, shuffle=True), classes=3)
    both = list(zip(loader.batches(1), loader.batches(2), strict=True))
    for which, seed in ((0, 1), (1, 2)):
        assert all(torch.equal(pair[which][0], x) for pair, (x, _) in zip(both, loader.batches(seed), strict=True))


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ((torch.zeros(2, 1, 2, 2) + 2, torch.zeros(2).long()), "Image 0 in batch 0 of the DataLoader has pixels"),
        ((torch.zeros(2, 1, 2, 2), torch.tensor([0, 3])), "Image 1 in batch 0 of the DataLoader has the label 3"),
        ((torch.zeros(2, 1, 2, 2), torch.zeros(2)), "labels of type torch.float32"),
        ((torch.zeros(2, 1, 2, 2), torch.zeros(2, 3).long()), "labels of shape (2, 3)"),
        ((torch.zeros(2, 1, 2, 2).long(), torch.zeros(2).long()), "type torch.int64"),
        ((torch.zeros(2), torch.zeros(2).long()), "shape (2,)"),
        ((torch.full((2, 4), torch.nan), torch.zeros(2).long()), "NaN"),
        ((torch.zeros(2, 1, 2, 2), [0, 0]), "does not contain tensors"),
        (torch.zeros(2, 1, 2, 2), "expected a pair"),
        ({"x": 1}, "is a dict"),
    ],
)
def test_bad_batches_are_named(batch: Any, said: str) -> None:
    loader = Loader(DataLoader(tensors(), 2, collate_fn=lambda items: batch), classes=3)
    refused(lambda: next(loader.batches(0)), "atch 0 of the DataLoader", said)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_its_dataset_raises_is_quoted(workers: int) -> None:
    loader = Loader(DataLoader(except_third(fail), 2, num_workers=workers), classes=3)
    refused(lambda: list(loader.batches(0)), "Batch 1 of the DataLoader", "KeyError", "no such")


def test_sizes_that_change_between_batches() -> None:
    loader = Loader(DataLoader(except_third(lambda: (torch.zeros(1, 5, 5), 0)), 1), classes=3)
    refused(lambda: list(loader.batches(0)), "in batch 3", "(1, 5, 5)", "(1, 2, 3)")


def test_lengths() -> None:
    refused(lambda: Loader(DataLoader(Stream()), 3), "no length", "__len__")
    refused(lambda: Loader(DataLoader(Made(grey, 3), 5, drop_last=True), 3), "is empty")
    promising = Loader(DataLoader(StreamWithLength(9)), 3)
    refused(lambda: list(promising.batches(0)), "ended after 7 batches")
    assert len(list(Loader(DataLoader(StreamWithLength(5)), 3).batches(0))) == 5


def test_bytes_and_images_without_channels() -> None:
    dataset = TensorDataset(torch.full((4, 2, 2), 51, dtype=torch.uint8), torch.zeros(4, dtype=torch.uint8))
    x, y = next(Loader(DataLoader(dataset, 4), 2).batches(0))
    assert torch.equal(x, torch.full((4, 1, 2, 2), 0.2))
    assert y.dtype == torch.int64


# Data out of them.


@given(st.integers(0, 20), st.sampled_from(["dataset", "subset", "split"]))
def test_held_out_images_are_those_of_load(validation: int, kind: str) -> None:
    whole = tensors()
    x, y = whole.tensors
    expected = data.from_tensors(x, y, x, y, validation=validation)
    train = {"dataset": whole, "subset": Subset(whole, range(23)), "split": Split(x, y)}[kind]
    found = data.from_datasets(train, (x, y), validation=validation)
    rows = torch.arange(len(expected.train))
    assert isinstance(expected.train, Split)
    assert isinstance(found.train, Split | Lazy)
    assert torch.equal(found.train.batch(rows)[0], expected.train.x)
    assert torch.equal(found.validation.x, expected.validation.x)
    assert torch.equal(found.validation.y, expected.validation.y)
    assert (found.classes, found.input_shape) == (3, (1, 2, 2))
    assert found.mean == pytest.approx(expected.mean)
    assert found.std == pytest.approx(expected.std)


@pytest.mark.parametrize("kind", ["dataset", "sequential loader", "shuffled loader", "tensors", "split"])
def test_kinds_of_test_and_validation_sets(kind: str) -> None:
    whole = tensors()
    given = {
        "dataset": whole,
        "sequential loader": DataLoader(whole, 4),
        "shuffled loader": DataLoader(whole, 4, shuffle=True),
        "tensors": whole.tensors,
        "split": Split(*whole.tensors),
    }[kind]
    found = data.from_datasets(DataLoader(whole, 4), given, validation=given)
    assert isinstance(found.train, Loader)
    assert isinstance(found.test, Lazy if kind in ("dataset", "sequential loader") else Split)
    test, _ = found.test.batch(torch.arange(23))
    if kind == "shuffled loader":
        test = test[test[:, 0, 0, 0].argsort()]
    assert torch.equal(test, whole.tensors[0])
    assert len(found.validation) == 23
    x = whole.tensors[0].double()
    assert found.mean == pytest.approx((x.mean().item(),))
    assert found.std == pytest.approx((x.std(correction=0).item(),))


def test_a_loader_that_takes_a_part_is_not_walked_past() -> None:
    whole = tensors()
    part = DataLoader(whole, sampler=SubsetRandomSampler(range(5)))
    assert len(data.from_datasets(whole, part, validation=1).test) == 5
    assert len(data.from_datasets(whole, DataLoader(whole, 10, drop_last=True), validation=1).test) == 20


def test_classes() -> None:
    whole = tensors()
    labelled = Made(grey)
    labelled.targets = [k % 3 for k in range(10)]  # type: ignore[attr-defined]
    for train in (whole, labelled, Subset(labelled, [0, 1, 2]), Split(*whole.tensors)):
        test = (torch.zeros(2, *Lazy(train).shape), [0, 1]) if not isinstance(train, Split) else train  # type: ignore[arg-type]
        assert data.from_datasets(train, test, validation=1).classes == 3  # type: ignore[arg-type]
    assert data.from_datasets(whole, whole, validation=1, classes=7).classes == 7
    refused(lambda: data.from_datasets(Made(grey), Made(grey), validation=1), "give classes=")
    refused(lambda: data.from_datasets(whole, whole, validation=1, classes=2), "labels up to 2")
    refused(lambda: data.from_datasets(Made(grey), Made(grey), validation=9, classes=2), "label 2")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"train": DataLoader(tensors(), sampler=SubsetRandomSampler([0, 1])), "validation": 5},
            "with its own sampler cannot be split",
        ),
        ({"train": Stream(), "classes": 3}, "cannot be read by index"),
        ({"validation": 23}, "expected auto, or 0 to 22"),
        ({"validation": -1}, "validation is -1"),
        ({"validation": True}, "validation is True"),
        ({"validation": (torch.zeros(2, 1, 3, 3), [0, 1])}, "differ in shape"),
        ({"test": (torch.zeros(2, 1, 3, 3), [0, 1])}, "differ in shape"),
        ({"test": (torch.zeros(2, 1, 2, 2) + 2, [0, 1])}, "x_test"),
        ({"test": (torch.zeros(2, 1, 2, 2), [0, 1, 2])}, "3 labels for 2 images"),
        ({"test": (torch.zeros(2, 1, 2, 2),)}, "expected a pair"),
        ({"workers": -1}, "workers is -1"),
    ],
)
def test_mistakes(options: dict[str, Any], said: str) -> None:
    usual: dict[str, Any] = {"train": tensors(), "test": tensors(), "validation": 5}
    refused(lambda: data.from_datasets(**(usual | options)), said)


def test_statistics_look_at_a_part() -> None:
    assert len(Lazy(Made(lambda k: (np.full((1, 1), k % 2, np.uint8), 0), 15_000)).pixels()) == 10_000
    assert len(Loader(DataLoader(tensors(15_000), 600), 3).pixels()) == 10_000
    with pytest.raises(UserError):
        Lazy(Made(lambda k: (torch.tensor([[[2.0]]]), 0))).pixels()
