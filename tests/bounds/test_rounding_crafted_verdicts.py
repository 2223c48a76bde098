"""No verifier certifies a network that has adversarial examples in float32, neither in Python nor from files."""

from __future__ import annotations

import pytest
import torch
from crafted import CRAFTED, VERIFIERS, verdict_by, verdict_of_file, verdict_of_property

torch.set_num_threads(1)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", CRAFTED)
def test_no_verifier_returns_robust(name: str, verifier: str) -> None:
    assert verdict_by(CRAFTED[name](), verifier) != "robust"


@pytest.mark.parametrize("name", CRAFTED)
def test_no_property_is_unsat(name: str) -> None:
    assert verdict_of_property(CRAFTED[name]()) != "unsat"


@pytest.mark.parametrize("name", CRAFTED)
def test_no_property_of_the_exported_file_is_unsat(name: str) -> None:
    assert verdict_of_file(CRAFTED[name]()) != "unsat"
