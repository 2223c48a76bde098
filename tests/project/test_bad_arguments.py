"""Bad arguments of the Python interface: one sentence that says what was expected, and no other exception.

What is not bad, only written in another way, is understood.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import advibp
from advibp import Attack, Box, UserError, certify, train
from advibp.bounds import Zonotope, crown
from advibp.data import Split, from_datasets, from_tensors
from advibp.verify import largest_proved_eps
from advibp.verify.radius import radii

torch.set_num_threads(1)

QUICK = Attack(steps=2)
X = torch.rand(6, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(6) % 3


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 3))


def refused(call: Callable[[], object], word: str) -> None:
    with pytest.raises(UserError) as raised:
        call()
    sentence = str(raised.value)
    assert word in sentence
    assert "\n" not in sentence
    assert len(sentence) < 400


class Stream(IterableDataset[tuple[Tensor, int]]):
    """A data set without __getitem__ and __len__."""

    def __iter__(self) -> Iterator[tuple[Tensor, int]]:
        raise NotImplementedError


class Opaque:
    """An object that is neither a number nor a sequence."""

    def __repr__(self) -> str:
        return "Opaque"


NETS: dict[str, tuple[Any, str]] = {
    "function": (lambda x: x, "must be an nn.Module"),
    "class": (nn.Linear, "the class Linear"),
    "None": (None, "must be an nn.Module"),
    "images": (X, "must be an nn.Module"),
    "meta": (nn.Sequential(nn.Flatten(), nn.Linear(16, 3, device="meta")), "meta device"),
    "lazy": (nn.Sequential(nn.Flatten(), nn.LazyLinear(3)), "lazy layers"),
    "no weights": (nn.Flatten(), "no parameters"),
}


@pytest.mark.parametrize("kind", NETS)
def test_invalid_network(kind: str) -> None:
    net, word = NETS[kind]
    refused(lambda: certify(net, (X, Y), 0.1, attack=QUICK), word)
    refused(lambda: radii(net, (X, Y)), word)  # type: ignore[arg-type]
    if kind != "no weights":
        refused(lambda: largest_proved_eps(net, X, Y), word)
        refused(lambda: train(net, from_tensors(X, Y, X, Y, validation=2), eps=0.1), word)


IMAGES: dict[str, tuple[tuple[Any, ...], str]] = {
    "nothing": ((), "no images"),
    "no eps": (((X, Y),), "eps is missing"),
    "no labels": ((X,), "without labels"),
    "radius for labels": ((X, 0.1), "without labels"),
    "too many": (((X, Y), 0.1, ["ibp"]), "by name"),
    "network again": ((network(), 0.1), "Sequential"),
    "name": (("mnist", 0.1), "a pair"),
    "mapping": (({"x": X, "y": Y}, 0.1), "a pair"),
    "three": (((X, Y, Y), 0.1), "tuple of 3 (Tensor, Tensor, Tensor)"),
    "empty list": (([], 0.1), "list of 0"),
    "words for labels": (((X, "digits"), 0.1), "(Tensor, str)"),
    "objects": ((np.array([Opaque()]), Y, 0.1), "object"),
    "no images": (((X[:0], Y[:0]), 0.1), "at least one image"),
    "one number": (((torch.tensor(0.5), Y), 0.1), "one label per image"),
    "more labels": (((X, torch.cat([Y, Y])), 0.1), "one label per image"),
    "labels in a column": (((X, Y[:, None]), 0.1), "one label per image"),
    "bool labels": (((X, Y > 0), 0.1), "torch.bool"),
    "float labels": (((X, Y.float()), 0.1), "torch.float32"),
    "labels above": (((X, Y + 1), 0.1), "0 to 2"),
    "labels below": (((X, Y - 1), 0.1), "0 to 2"),
    "bytes": ((((255 * X).byte(), Y), 0.1), "x.float() / 255"),
    "double": (((X.double(), Y), 0.1), "torch.float64"),
    "NaN": (((X * math.nan, Y), 0.1), "NaN"),
    "other shape": (((X[:, :, 1:], Y), 0.1), "(1, 3, 4)"),
    "meta": (((X.to("meta"), Y), 0.1), "meta"),
    "sparse": (((X.to_sparse(), Y), 0.1), "sparse"),
    "split of numbers": ((Split(3, 4), 0.1), "dense tensor"),  # type: ignore[arg-type]
    "no test images": ((from_datasets(TensorDataset(X, Y), None, validation=2), 0.1), "has no test images"),
    "three sets": (((Split(X, Y), Split(X, Y), Split(X, Y)), 0.1), "tuple of 3 (Split, Split, Split)"),
    "stream": ((Stream(), 0.1), "by index"),
    "loader of a stream": ((DataLoader(Stream()), 0.1), "length"),
    "loader of bad labels": ((DataLoader(TensorDataset(X, Y > 0), shuffle=True), 0.1), "torch.bool"),
}  # fmt: skip


@pytest.mark.parametrize("kind", IMAGES)
def test_invalid_images(kind: str) -> None:
    given, word = IMAGES[kind]
    refused(lambda: certify(network(), *given, attack=QUICK), word)


@pytest.mark.parametrize("swapped", [(X, network()), ((X, Y), network(), 0.1), (TensorDataset(X, Y), network(), 0.1)])
def test_swapped_arguments(swapped: tuple[Any, ...]) -> None:
    refused(lambda: certify(*swapped), "The network comes first")
    refused(lambda: train(*swapped[:2]), "The network comes first")


RADII: list[Any] = [
    [], (), torch.empty(0), math.nan, math.inf, 0, -0.1, 2, True, [True], [[0.1]], {0.1: 1}, {}, "", "x", "1/0", "2/1",
    "0.1 0.2", "nan", b"0.1", 0.1j, Opaque(), None, torch.ones(2, 2), torch.tensor(True), np.array([[0.1]]), [None],
]  # fmt: skip


@pytest.mark.parametrize("eps", RADII, ids=repr)
def test_invalid_radii(eps: Any) -> None:
    refused(lambda: certify(network(), (X, Y), eps, attack=QUICK), "eps is")


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("sample", [2.5, True, "3", 0, -1, [3], math.nan]),
        ("budget", ["5", True, 0, -1.0, math.nan, [1], 1j]),
        ("batch_size", ["5", 2.5, 0, None, True]),
        ("workers", [1.5, "2", 0, None, True]),
        ("seed", ["x", 1.5, None, True]),
        ("progress", [3, "bar"]),
        ("by", [[], 3, None, [3], "", "magic", [None], {}]),
        ("attack", ["pgd", 3, Attack]),
        ("out", [3, "a\0b", ["folder"], "/proc/new/folder", b"folder"]),
    ],
)
def test_invalid_options(option: str, values: list[Any]) -> None:
    for value in values:
        refused(lambda: certify(network(), (X, Y), 0.1, **{"attack": QUICK, option: value}), "")  # noqa: B023


def test_options_that_would_be_ignored() -> None:
    refused(lambda: Attack(kind="apgd", step=0.1), "leave step out")
    assert Attack(step=0.1) == Attack()
    for by in ("ibp", ["crown-ibp", "ibp"]):
        refused(lambda: certify(network(), (X, Y), 0.1, by=by, attack=QUICK, budget=5), "leave budget out")  # noqa: B023
    refused(lambda: certify(network(), (X, Y), 0.1, attack=QUICK, command="advibp certify"), "leave command out")


def test_the_signature_of_certify_names_every_option() -> None:
    parameters = inspect.signature(certify).parameters.values()
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY}
    assert "Args:" in str(certify.__doc__)
    documented = re.findall(
        r"^        (\w+): ", str(certify.__doc__).partition("Args:")[2].partition("Returns:")[0], re.M
    )
    assert documented == [p.name for p in parameters]


def test_file_instead_of_a_folder(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("in the way")
    for out in (file, file / "below", str(file)):
        refused(lambda: certify(network(), (X, Y), 0.1, attack=QUICK, out=out), f"{file} is a file")  # noqa: B023
    data = from_tensors(X, Y, X, Y, validation=2)
    refused(lambda: train(network(), data, eps=0.1, out=file), f"{file} is a file")
    assert file.read_text() == "in the way"


@pytest.mark.parametrize(
    "options",
    [
        {"steps": "5"}, {"steps": 2.5}, {"steps": True}, {"step": "1"}, {"restarts": 1.5},
        {"kind": []}, {"kind": "cw"}, {"loss": 3}, {"step": math.inf},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_attack(options: dict[str, Any]) -> None:
    refused(lambda: Attack(**options), "is not an attack")


@pytest.mark.parametrize(
    "data",
    [X, (X, Y, X), (X,), (X, Y, X, Y, X), (), ((X, Y), X), {"x": X}, None, "mnist", network()],
    ids=lambda data: type(data).__name__,
)
def test_training_without_a_data_set_says_what_it_may_be(data: Any) -> None:
    refused(lambda: train(network(), data, eps=0.1), "but must be a Data set, a pair (x, y)")


@pytest.mark.parametrize("options", [{"recipe": 3}, {"method": 3}, {"eps": [0.1]}, {"show": 3}, {"out": 3}], ids=str)
def test_invalid_training_options(options: dict[str, Any]) -> None:
    data = from_tensors(X, Y, X, Y, validation=2)
    refused(lambda: train(network(), data, **{"eps": 0.1, **options}), next(iter(options)))


LABELS = {
    "above": Y + 1,
    "below": Y - 1,
    "float": Y.float(),
    "bool": Y > 0,
    "fewer": Y[:3],
    "column": Y[:, None],
    "scalar": torch.tensor(1),
    "list": Y.tolist(),
    "None": None,
}


@pytest.mark.parametrize("kind", LABELS)
def test_invalid_labels(kind: str) -> None:
    net, box = network(), Box.ball(X, 0.1)
    bounds = crown(net, box)
    asked: list[Callable[[Any], object]] = [bounds.margins, bounds.interval_margins]
    for outputs in (net(box), net(Zonotope.ball(X, 0.1))):
        asked += [outputs.margins, outputs.lower_margins]
    for margins in asked:
        refused(lambda: margins(LABELS[kind]), "labels")  # noqa: B023
    refused(lambda: largest_proved_eps(net, X, LABELS[kind]), "labels")  # type: ignore[arg-type]


@pytest.mark.parametrize("tolerance", ["x", -1.0, math.nan, None, True])
def test_invalid_tolerance(tolerance: Any) -> None:
    refused(lambda: largest_proved_eps(network(), X, Y, tolerance=tolerance), "tolerance is")


@pytest.mark.parametrize("eps", ["0.1", True, None, math.nan, -1, torch.tensor(True)], ids=repr)
def test_a_ball_without_a_radius(eps: Any) -> None:
    refused(lambda: Box.ball(X, eps), "eps must be")


def test_invalid_path() -> None:
    refused(lambda: advibp.open_run(3), "path is 3")  # type: ignore[arg-type]
    refused(lambda: advibp.data.load(3), "data set is a int")  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16], ids=str)
def test_labels_of_any_integer_type(dtype: torch.dtype) -> None:
    net = network()
    want = verdicts(certify(net, X, Y, 0.05, attack=QUICK))
    y = Y.to(dtype)
    for images in ((X, y), [X, y], Split(X, y)):
        assert verdicts(certify(net, images, 0.05, attack=QUICK)) == want
    assert verdicts(certify(net, X, y, 0.05, attack=QUICK)) == want
    outputs = net(Box.ball(X, 0.05))
    assert torch.equal(outputs.lower_margins(y), outputs.lower_margins(Y))


def test_images_in_any_form() -> None:
    net = network()
    want = verdicts(certify(net, (X, Y), 0.05, attack=QUICK))
    dataset = TensorDataset(X, Y)
    forms: list[Any] = [[X, Y], (X.numpy(), Y.numpy()), dataset, DataLoader(dataset, batch_size=4)]
    forms += [DataLoader(dataset, batch_size=4, collate_fn=torch.utils.data.default_collate, num_workers=0)]
    forms += [DataLoader(dataset, batch_sampler=[[0, 1, 2, 3], [4, 5]]), (X.clone().requires_grad_(), Y)]
    for images in forms:
        assert verdicts(certify(net, images, 0.05, attack=QUICK)) == want
    shuffled = [certify(net, DataLoader(dataset, shuffle=True), 0.05, attack=QUICK) for _ in range(2)]
    assert shuffled[0].counts(0.05) == certify(net, dataset, 0.05, attack=QUICK).counts(0.05)
    assert verdicts(shuffled[0]) == verdicts(shuffled[1])
    last = certify(net, DataLoader(dataset, batch_size=4, drop_last=True), 0.05, attack=QUICK)
    assert len(last.records) == 4


def test_radii_in_any_form() -> None:
    net = network()
    for eps in ("8/255", ["8/255"], 8 / 255, torch.tensor(8 / 255, dtype=torch.float64), np.array([8 / 255])):
        assert certify(net, (X, Y), eps, attack=QUICK).eps == [8 / 255]
    for several in ([0.01, "0.02"], np.array([0.01, 0.02]), (e for e in (0.01, 0.02)), ["0.01", 0.02, 0.01]):
        assert certify(net, (X, Y), several, attack=QUICK).eps == [0.01, 0.02]
    assert len(certify(net, (X, Y), "0.01", sample=np.int64(3), seed=np.int32(2), attack=QUICK).records) == 3


def verdicts(certificate: advibp.Certificate) -> list[str]:
    return [f"{r.index} {r.verdict} {r.image}" for r in certificate.records]
