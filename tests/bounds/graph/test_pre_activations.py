"""The inputs of ReLUs are recorded for every spelling of ReLU, with their values before the ReLU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from advibp.bounds import Box, Zonotope
from advibp.bounds.domain import Rules
from advibp.bounds.graph.pre_activations import record_pre_activations

X = torch.tensor([[-1.0, 2.0, 0.5]])
WAYS: dict[str, Callable[[Any], Any]] = {
    "F.relu": F.relu,
    "torch.relu": torch.relu,
    "method": lambda x: x.relu(),
    "method in place": lambda x: x.relu_(),
    "F.relu in place": lambda x: F.relu(x, inplace=True),
    "by position": lambda x: F.relu(x, True),
    "by name": lambda x: F.relu(input=x),
    "module": nn.ReLU(),
    "module in place": nn.ReLU(inplace=True),
}
KINDS = {
    "tensor": lambda: X.clone(),
    "box": lambda: Box(center=X, radius=0.25),
    "zonotope": lambda: Zonotope.ball(X, 0.25, None),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_every_spelling_of_relu(way: str, kind: str) -> None:
    value = KINDS[kind]()
    with record_pre_activations() as seen:
        result = WAYS[way](value)
    assert len(seen) == 1
    assert type(seen[0]) is type(value)
    assert torch.equal(seen[0] if kind == "tensor" else seen[0].center, X)
    assert torch.equal(result if kind == "tensor" else result.upper, (X + (0 if kind == "tensor" else 0.25)).relu())


def test_order_is_that_of_the_calls() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 5), nn.Sigmoid(), nn.Linear(5, 6), nn.ReLU())
    with record_pre_activations() as seen:
        net(Box(center=X, radius=0.1))
    assert [tuple(box.shape) for box in seen] == [(1, 4), (1, 6)]


def test_recording_ends_with_the_context() -> None:
    with record_pre_activations() as outer:
        with record_pre_activations() as inner, pytest.raises(RuntimeError):
            torch.relu(torch.ones(2)) + torch.ones(3)
        F.relu(Box(center=X, radius=0.1))
    F.relu(Box(center=X, radius=0.1))
    assert (len(outer), len(inner)) == (2, 1)
    assert not Rules.watchers
