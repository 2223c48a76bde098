"""The optimizers of a recipe."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from advibp import Recipe
from advibp.training.optimizers import make_optimizer


@pytest.mark.parametrize(
    ("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("radam", torch.optim.RAdam)]
)
def test_a_recipe_names_its_optimizer(name: str, kind: type[torch.optim.Optimizer]) -> None:
    recipe = Recipe.load(optimizer=name, lr=0.01, weight_decay=0.5)
    optimizer = make_optimizer(recipe, list(nn.Linear(1, 1).parameters()))
    assert type(optimizer) is kind
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert optimizer.param_groups[0]["weight_decay"] == 0.5
