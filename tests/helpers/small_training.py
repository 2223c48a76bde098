"""A small training, and a deterministic attack."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from advibp import attacks, data, nets
from advibp.data import Data
from advibp.recipe import Recipe
from advibp.training import Training


def halves(count: int = 160, seed: int = 0, validation: int = 40) -> Data:
    """Images (1, 4, 4) whose left or right half is bright: separable by a wide margin."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (count,), generator=generator)
    x = 0.25 * torch.rand(count, 1, 4, 4, generator=generator)
    x[y == 0, :, :, :2] += 0.7
    x[y == 1, :, :, 2:] += 0.7
    return data.from_tensors(x, y, x[:20], y[:20], validation=validation, name="halves")


def begin(net: nn.Module | str = "FC 6", data: Data | None = None, **options: Any) -> Training:
    data = data or halves()
    net = nets.build(net, data.input_shape, data.classes, seed=0) if isinstance(net, str) else net
    return Training(net, data, Recipe.load(**{**SHORT, **options}))


SHORT: dict[str, Any] = {
    "epochs": 6,
    "warmup_natural": 1,
    "warmup_adversarial": 1,
    "ramp": 2,
    "batch_size": 30,
    "eps": 0.2,
}


def weights_of(net: nn.Module) -> Tensor:
    return torch.cat([p.detach().reshape(-1) for p in net.parameters()])


def fgsm_without_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that depends only on the image."""
    monkeypatch.setattr(
        attacks, "linf_fgsm_random", lambda net, x, y, eps, **_: attacks.linf_fgsm(net, x, y, eps, rel_stepsize=0.5)
    )
