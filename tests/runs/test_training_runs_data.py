"""`train` takes tensors, Datasets and DataLoaders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import advibp
from advibp import Silent, train

X = torch.rand(80, 1, 4, 4, generator=torch.Generator().manual_seed(0))
Y = (X.flatten(1).sum(1) > 8).long()
GIVEN: dict[str, Any] = {
    "pair": (X, Y),
    "four": (X, Y, X, Y),
    "dataset": TensorDataset(X, Y),
    "loader": DataLoader(TensorDataset(X, Y), batch_size=20, shuffle=True),
    "two": (TensorDataset(X, Y), (X, Y)),
    "three": (DataLoader(TensorDataset(X, Y), batch_size=20), (X[:9], Y[:9]), (X, Y)),
}
OPTIONS: dict[str, Any] = {"eps": 0.05, "epochs": 1, "method": "ibp", "warmup_natural": 0, "ramp": 0.5, "c_decay": 0.2}


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.mark.filterwarnings("ignore::advibp.CollapseWarning")
@pytest.mark.parametrize("kind", GIVEN)
def test_images_with_labels_are_trained_on_and_resumed(tmp_path: Path, kind: str) -> None:
    run = train(network(), GIVEN[kind], out=tmp_path / "run", show=Silent(), **OPTIONS)
    assert run.recipe.validation == run.summary["validation_images"] == (9 if kind == "three" else 8)
    again = train(network(), GIVEN[kind], out=tmp_path / "run", resume=True, show=Silent(), **OPTIONS)
    assert len(again.history) == 1
    assert len(advibp.certify(run.net, (X, Y), 0.01, attack=advibp.Attack(steps=2)).records) == 80


@pytest.mark.filterwarnings("ignore::advibp.CollapseWarning")
def test_the_number_of_validation_images_is_an_option() -> None:
    assert train(network(), (X, Y), validation=20, show=Silent(), **OPTIONS).recipe.validation == 20
    with pytest.raises(advibp.UserError, match="validation is 80"):
        train(network(), (X, Y), validation=80, show=Silent(), **OPTIONS)
