"""The networks of checks/crafted.py are robust in real arithmetic and have adversarial examples in float32."""

from __future__ import annotations

import copy

import pytest
import torch
from crafted import CRAFTED, checked, find
from orders import into_ball


@pytest.mark.parametrize("name", CRAFTED)
def test_adversarial_example_in_float32(name: str) -> None:
    made, witness = CRAFTED[name](), find(name)
    assert witness is not None
    assert checked(made, witness)


@pytest.mark.parametrize("name", [name for name in CRAFTED if name not in ("tiny margin", "small variance")])
def test_no_adversarial_example_in_float64(name: str) -> None:
    """The two excluded networks have margins that are too small for float64 or for the search for a vertex."""
    made = CRAFTED[name]()
    assert made.margin > 0
    eps = torch.tensor(made.eps, dtype=torch.float64)
    noise = torch.rand(1000, *made.x.shape[1:], dtype=torch.float64) * 2 - 1
    noise[:10] = noise[:10].sign()
    points = into_ball(made.x.double() + eps * noise, made.x, eps)
    with torch.no_grad():
        z = copy.deepcopy(made.net).double()(points.double())
    assert (z[:, made.y] - z[:, 1 - made.y]).min() >= 0.999 * made.margin - 1e-6 * made.margin
