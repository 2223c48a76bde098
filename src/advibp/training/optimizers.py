"""The optimizer of a recipe."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from advibp.recipe import Recipe


def make_optimizer(recipe: Recipe, params: Sequence[nn.Parameter]) -> torch.optim.Optimizer:
    """Return a new optimizer.

    Args:
        recipe: its `optimizer`, `lr` and `weight_decay` are used.
        params: the trained parameters.
    """
    lr, decay = recipe.lr, recipe.weight_decay
    match recipe.optimizer:
        case "adamw":
            return torch.optim.AdamW(params, lr=lr, weight_decay=decay, fused=True)
        case "radam":
            return torch.optim.RAdam(params, lr=lr, weight_decay=decay)
        case _:
            return torch.optim.Adam(params, lr=lr, weight_decay=decay, fused=True)
