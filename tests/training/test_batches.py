"""The batches of a training: the same from memory, from a Dataset and from a DataLoader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from advibp import data, nets, train
from advibp.data import Data
from advibp.data.augment import augment
from advibp.execution.seeds import mix
from advibp.recipe import Recipe
from advibp.runs.training_display import Silent
from advibp.training.batches import Feed, choose_batch_size

torch.set_num_threads(1)

CPU = torch.device("cpu")
OPTIONS: dict[str, Any] = {"epochs": 2, "warmup_natural": 0, "warmup_adversarial": 0, "ramp": 1, "batch_size": 50}
OPTIONS |= {"eps": 0.1, "lr": 1e-3, "show": Silent(), "select": "last"}


@pytest.fixture(scope="module")
def digits() -> Data:
    return data.load("mnist", limit=500, validation=100)


@pytest.mark.parametrize(
    ("requested", "images", "epochs", "expected"),
    [("auto", 60_000, 60, 256), ("auto", 10_000, 60, 256), ("auto", 4000, 60, 64), ("auto", 900, 60, 16),
     ("auto", 5, 60, 5), (256, 900, 60, 256), (256, 100, 60, 100),
     ("auto", 60_000, 3, 256), ("auto", 60_000, 1, 64), ("auto", 4000, 4, 32), ("auto", 4000, 0.5, 16)],
)  # fmt: skip
def test_batch_size_auto_gives_enough_steps(requested: int | str, images: int, epochs: float, expected: int) -> None:
    assert choose_batch_size(requested, images, epochs) == expected


class Digits(Dataset[tuple[Tensor, int]]):
    """Images that are made when they are asked for: nothing is held in memory."""

    def __init__(self, held: Data) -> None:
        self.held, self.asked = held, 0

    def __len__(self) -> int:
        return len(self.held.train)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        self.asked += 1
        return self.held.train.x[i], int(self.held.train.y[i])


def first_epoch(train_on: Data) -> tuple[dict[str, Any], dict[str, Tensor]]:
    run = train(nets.build("FC 20", seed=0), train_on, **OPTIONS)
    first = {k: v for k, v in run.history[0].items() if k != "seconds"}
    return first, run.net.state_dict()


def test_dataset_and_dataloader_train_as_tensors_in_memory_do(digits: Data) -> None:
    """In the same order and without augmentation: the same losses, and the same weights, to the bit."""
    losses, weights = first_epoch(digits)
    order = torch.cat([Feed(digits, Recipe.of({"batch_size": 50}), CPU).order(epoch) for epoch in range(2)])

    class Epochs:
        """A sampler that gives the two epochs' orders one after the other."""

        epoch = 0

        def __len__(self) -> int:
            return 500

        def __iter__(self) -> Any:
            return iter(order[500 * (self.epoch % 2) :][:500].tolist())

    sampler = Epochs()

    class Orders(Silent):
        def epoch(self, training: Any, metrics: dict[str, Any]) -> None:
            sampler.epoch += 1

    dataset = TensorDataset(digits.train.x, digits.train.y)
    loader = DataLoader(dataset, batch_size=50, sampler=sampler)  # type: ignore[arg-type]
    held = (digits.validation.x, digits.validation.y)
    lazily = data.from_datasets(Digits(digits), digits.test, validation=held, classes=10)
    loaded = data.from_datasets(loader, digits.test, validation=held, classes=10)
    for other, show in ((lazily, Silent()), (loaded, Orders())):
        run = train(nets.build("FC 20", seed=0), other, **{**OPTIONS, "show": show})
        first = {k: v for k, v in run.history[0].items() if k != "seconds"}
        assert first == losses
        assert all(torch.equal(weights[k], v) for k, v in run.net.state_dict().items())


def test_a_dataset_is_read_as_it_is_needed(digits: Data) -> None:
    dataset = Digits(digits)
    lazily = data.from_datasets(dataset, digits.test, validation=100, classes=10)
    before = dataset.asked
    feed = Feed(lazily, Recipe.of({"batch_size": 20}), CPU)
    batches = feed.batches(0, 0, 5)
    next(batches)
    assert dataset.asked - before <= 20 + 1


@pytest.mark.parametrize("kind", ["memory", "dataset", "loader"])
def test_the_middle_of_an_epoch_is_the_middle_of_the_whole(kind: str, digits: Data) -> None:
    held = (digits.validation.x, digits.validation.y)
    dataset = TensorDataset(digits.train.x, digits.train.y)
    shuffled = DataLoader(dataset, batch_size=40, shuffle=True)
    sources = {
        "memory": lambda: digits,
        "dataset": lambda: data.from_datasets(dataset, digits.test, validation=held, classes=10),
        "loader": lambda: data.from_datasets(shuffled, digits.test, validation=held, classes=10),
    }
    recipe = Recipe.of({"batch_size": 40, "flip": True, "crop": 2, "seed": 5})
    feed = Feed(sources[kind](), recipe, CPU)
    whole = list(feed.batches(3, 0, 6))
    part = list(feed.batches(3, 2, 5))
    assert len(part) == 3
    for (x, y), (a, b) in zip(whole[2:5], part, strict=True):
        assert torch.equal(x, a)
        assert torch.equal(y, b)
    other = list(feed.batches(4, 0, 6))
    assert not torch.equal(whole[0][0], other[0][0])


def test_augmentation_is_that_of_the_batch_s_own_chance(digits: Data) -> None:
    plain = Feed(digits, Recipe.of({"batch_size": 40}), CPU)
    moved = Feed(digits, Recipe.of({"batch_size": 40, "flip": True, "crop": 3}), CPU)
    pairs = zip(plain.batches(1, 0, 3), moved.batches(1, 0, 3), strict=True)
    for k, ((x, y), (a, b)) in enumerate(pairs):
        chance = torch.Generator().manual_seed(mix(0, 3, plain.steps_per_epoch + k))
        assert torch.equal(a, augment(x, flip=True, crop=3, generator=chance))
        assert torch.equal(y, b)
        assert not torch.equal(x, a)
