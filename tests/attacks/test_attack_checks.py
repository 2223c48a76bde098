"""Bad arguments of attacks are refused: a typo must not look like a robust network."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from advibp import UserError
from advibp.attacks import linf_apgd, linf_fgsm, linf_pgd

X, Y = torch.rand(3, 2), torch.tensor([0, 1, 0])


@pytest.mark.parametrize("attack", [linf_pgd, linf_apgd])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"loss": "foo"}, "There is no loss 'foo'; choose from ce, margin, dlr"),
        ({"eps": -1.0}, "finite and not negative"),
        ({"eps": math.nan}, "finite and not negative"),
        ({"eps": torch.rand(3)}, "must broadcast to x"),
        ({"eps": "0.1"}, "must be a number or a tensor"),
        ({"steps": 0}, "steps is 0, but must be a whole number of at least 1"),
        ({"steps": 1.5}, "steps is 1.5"),
        ({"restarts": -1}, "restarts is -1"),
        ({"within": (1.0, 0.0)}, "lowest value must not be above its highest"),
        ({"within": 3}, "within is 3"),
        ({"within": ("a", "b")}, "two numbers"),
        ({"generators": []}, "There are 0 generators, but must be 3"),
        ({"y": torch.tensor([0])}, "y must be a tensor of 3 integers"),
        ({"y": torch.rand(3)}, "y must be a tensor of 3 integers"),
        ({"x": [0.5]}, "x must be a floating-point tensor"),
    ],
)
def test_bad_arguments_are_refused(attack: Any, options: dict[str, Any], message: str) -> None:
    arguments = {"x": X, "y": Y, "eps": 0.1, **options}
    with pytest.raises(UserError, match=message):
        attack(torch.nn.Identity(), **arguments)


@pytest.mark.parametrize("size", [0, -1, math.nan, math.inf, "a"])
def test_bad_step_sizes_are_refused(size: Any) -> None:
    for attack in (linf_pgd, linf_fgsm):
        with pytest.raises(UserError, match="rel_stepsize is"):
            attack(torch.nn.Identity(), X, Y, 0.1, rel_stepsize=size)
