"""No verifier calls a network robust that is broken in float32, neither alone nor through files."""

from __future__ import annotations

import pytest
import torch
from crafted import CRAFTED, VERIFIERS, verdict_by, verdict_of_file, verdict_of_property

torch.set_num_threads(1)


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("name", CRAFTED)
def test_no_verifier_calls_it_robust(name: str, verifier: str) -> None:
    assert verdict_by(CRAFTED[name](), verifier) != "robust"


@pytest.mark.parametrize("name", CRAFTED)
def test_no_property_of_it_is_unsat(name: str) -> None:
    assert verdict_of_property(CRAFTED[name]()) != "unsat"


@pytest.mark.parametrize("name", CRAFTED)
def test_nor_of_its_file(name: str) -> None:
    assert verdict_of_file(CRAFTED[name]()) != "unsat"
