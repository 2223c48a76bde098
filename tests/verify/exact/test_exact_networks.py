"""A part of checks/exactness.py: complete verifiers agree with the exact margin, and the others stay below it."""

from __future__ import annotations

import pytest
import torch
from exactness import check, sample

torch.set_num_threads(1)


@pytest.mark.parametrize("first", range(1000, 1015, 5))
def test_verifiers_agree_with_the_exact_margin_of_random_networks(first: int) -> None:
    wrong = [each for seed in range(first, first + 5) for eps in (0.05, 0.2) for each in check(sample(seed), eps)]
    assert not wrong
