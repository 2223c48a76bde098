"""Mistakes in calls of the Python interface: each is answered by one sentence, a UserError.

tests/project/test_bad_arguments.py has the mistakes in single arguments of `certify`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import advibp
from advibp import Attack, Method, Recipe, UserError, data, nets, objectives
from advibp.data import Data

torch.set_num_threads(1)

X = torch.rand(60, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3
QUICK = Attack(steps=2)
SHORT: dict[str, Any] = {"eps": 0.1, "epochs": 1, "method": "ibp", "warmup_natural": 0, "warmup_adversarial": 0}
SHORT |= {"ramp": 0, "show": advibp.Silent()}


def network(inputs: int = 16, outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, outputs))


def images() -> Data:
    return data.from_tensors(X, Y, X, Y, validation=10)


class Pair(nn.Module):
    """Returns a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        return self.net(x), None


class Fails(nn.Module):
    """Raises an error."""

    def __init__(self) -> None:
        super().__init__()
        self.net = network()

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such layer")


class NoEpoch:
    """Not a display: it has no methods."""


def train(net: Any = None, images_: Any = None, /, **options: Any) -> object:
    return advibp.train(network() if net is None else net, images() if images_ is None else images_, **SHORT | options)


def certify(net: Any = None, /, **options: Any) -> object:
    return advibp.certify(network() if net is None else net, (X, Y), **{"eps": 0.1, "attack": QUICK, **options})


def frozen() -> nn.Module:
    net = network()
    for p in net.parameters():
        p.requires_grad_(False)
    return net


def not_finite() -> nn.Module:
    net = network()
    with torch.no_grad():
        net[1].weight[0, 0] = math.nan
    return net


#: What is wrong -> the call, and words of the sentence.
MISTAKES: dict[str, tuple[Callable[[], object], str]] = {
    # networks
    "a network that returns a tuple, in training": (lambda: train(Pair()), "returns a tuple"),
    "a network that returns a tuple, in certification": (lambda: certify(Pair()), "tuple"),
    "too few outputs, in training": (lambda: train(network(outputs=2)), r"\(2, 3\) was expected"),
    "too few outputs, in certification": (lambda: certify(network(outputs=2)), "0 to 1"),
    "another input shape": (lambda: train(network(inputs=9)), r"can't take images of shape \(1, 4, 4\)"),
    "a network that raises an error": (lambda: train(Fails()), "no such layer"),
    "a network of another type, in training": (lambda: train(network().double()), "float64"),
    "a network of another type, in certification": (lambda: certify(network().double()), "float64|float32"),
    "a network in half precision": (lambda: train(network().half()), "float16|half|Half"),
    "no trainable parameter": (lambda: train(frozen()), "no trainable parameter"),
    "a weight that is NaN, in training": (lambda: train(not_finite()), "not finite|NaN"),
    "a class instead of a network": (lambda: train(Pair), "the class Pair, not an instance of it"),
    "a layer without a rule": (lambda: train(nn.Sequential(network(), nn.Softmax(1))), "softmax has no rule"),
    "a list of layers": (lambda: train([nn.Flatten(), nn.Linear(16, 3)]), "must be an nn.Module"),
    # data
    "one class": (lambda: data.from_tensors(X, 0 * Y, X, 0 * Y), "class"),
    "no images": (lambda: data.from_tensors(X[:0], Y[:0], X, Y), "x_train"),
    "pixels up to 255": (lambda: data.from_tensors(255 * X, Y, X, Y), "scale them to"),
    "NaN pixels": (lambda: data.from_tensors(X * math.nan, Y, X, Y), "NaN"),
    "labels as words": (lambda: data.from_tensors(X, np.array(["a"] * 60), X, Y), "y_train"),
    "labels below 0": (lambda: data.from_tensors(X, Y - 1, X, Y), "y_train"),
    "one-hot labels": (lambda: data.from_tensors(X, torch.eye(3)[Y], X, Y), "y_train"),
    "fewer labels than images": (lambda: data.from_tensors(X, Y[:9], X, Y), "60"),
    "other shapes in test": (lambda: data.from_tensors(X, Y, X[..., 1:], Y), "differ in shape"),
    "more classes in labels than declared": (lambda: data.from_tensors(X, Y, X, Y, classes=2), "classes"),
    "all images for validation": (lambda: data.from_tensors(X, Y, X, Y, validation=60), "validation is 60"),
    "a word for validation": (lambda: data.from_tensors(X, Y, X, Y, validation="many"), "validation is 'many'"),
    "an unknown data set": (lambda: data.load("minst"), "did you mean 'mnist'"),
    "a folder that does not exist": (lambda: data.load("no/such/folder"), "no file or folder"),
    "an unknown keyword of load": (lambda: data.load("mnist", validaton=5), "did you mean validation"),
    # radii and norms
    "eps above 1": (lambda: train(eps=1.5), r"eps is 1.5, but must be a number in \(0, 1\]"),
    "eps in pixels": (lambda: certify(eps=8), r"\(0, 1\]"),
    "eps 0": (lambda: train(eps=0), "eps is 0"),
    "eps as a fraction of nothing": (lambda: train(eps="8/0"), "eps is '8/0'"),
    "another norm, in training": (lambda: train(norm="l2"), "only l_inf is supported"),
    "another norm, in certification": (lambda: certify(norm=2), "only l_inf is supported"),
    "another norm, in an attack": (lambda: Attack(norm="l2"), "only l_inf is supported"),  # type: ignore[call-arg]
    # names
    "an unknown method": (lambda: train(method="advipb"), "did you mean advibp"),
    "an unknown verifier": (lambda: certify(by=["crwn"]), "did you mean crown"),
    "an unknown recipe key": (lambda: train(epoch=3), "did you mean epochs"),
    "an unknown recipe": (lambda: train(recipe="dmeo"), "no recipe 'dmeo'"),
    "an unknown keyword of certify": (lambda: certify(verifiers=["ibp"]), "takes no argument verifiers"),
    "an unknown keyword of an attack": (lambda: Attack(step_size=0.1), "did you mean step"),  # type: ignore[call-arg]
    "an unknown network": (lambda: nets.build("dm-smal"), "did you mean 'dm-small'"),
    "an unknown arithmetic": (lambda: certify(arithmetic="float23"), "arithmetic"),
    # options of a run
    "negative epochs": (lambda: train(epochs=-1), "epochs is -1"),
    "a seed that is a text": (lambda: train(seed="today"), "seed is 'today'"),
    "a negative seed": (lambda: train(seed=-1), "seed is -1"),
    "a ramp longer than the run": (lambda: train(ramp=5), "but epochs is 1"),
    "a display without methods": (lambda: train(show=NoEpoch()), "must be a Display"),
    "a display class": (lambda: train(show=advibp.Silent), "Silent"),
    "resume without out": (lambda: train(resume=True), "resume needs out"),
    "resume that is a text": (lambda: train(resume="yes"), "resume is 'yes'"),
    "a device that does not exist": (lambda: train(device="gpu"), "gpu"),
    "a key of another method": (lambda: train(domain="hybrid"), "does not use domain"),
    "a weighting for one loss": (lambda: train(method="pgd", weighting="fixed"), "methods with two losses"),
    "a method that is a function": (lambda: train(method=objectives.ibp), "method is"),
    "an objective that returns a number": (
        lambda: train(method=Method(description="mine", lower=lambda *_: 0.5)),  # type: ignore[arg-type, return-value]
        "Evaluation",
    ),
    "a recipe that is a mapping": (lambda: train(recipe={"eps": 0.1}), "recipe is"),
    # files
    "a folder that is no run": (lambda: advibp.open_run("."), "is not a run"),
    "a run that is a number": (lambda: advibp.read_run(3), "path is 3"),  # type: ignore[arg-type]
    "a keyword that open_run does not have": (
        lambda: advibp.open_run("runs/first", network=network()),  # type: ignore[call-arg]
        "takes no argument network",
    ),
    "a recipe key of the wrong type": (lambda: Recipe(batch_size=2.5), "batch_size is 2.5"),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_sentence(mistake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, words = MISTAKES[mistake]
    with pytest.raises(UserError, match=words) as raised:
        call()
    sentence = str(raised.value)
    assert "\n" not in sentence
    assert len(sentence) < 500
    assert not list(tmp_path.iterdir())


def test_the_folder_of_another_run(tmp_path: Path) -> None:
    train(out=tmp_path / "run")
    for options, words in (
        ({}, "already has a run"),
        ({"resume": True, "lr": 0.5}, "was started with lr"),
        ({"resume": True, "seed": 1}, "was started with seed"),
    ):
        with pytest.raises(UserError, match=words):
            train(out=tmp_path / "run", **options)
    with pytest.raises(UserError, match="do not match"):
        train(network(outputs=4), out=tmp_path / "run", resume=True)
